"""Clips that a file lists, such as the guard's, are rejected by the rule `left_out`."""

import json
from pathlib import Path

import polars as pl
import pytest

from tests.guard_runs import make_poisoned, words
from tests.vidcurate.curation.filter.test_filter import KEPT, clip, scored, verdicts
from trainer import __main__ as trainer_command
from trainer.training.guard.bad_clips import BAD_CLIPS
from vidcurate.cli.main import main
from vidcurate.curation.clip_table import rejection_ledger, table
from vidcurate.curation.filter.bind_rules import Masks, plan_of, survivors
from vidcurate.curation.filter.spec import FilterSpec, Limit
from vidcurate.curation.filter.stage import run_filter
from vidcurate.curation.report import card, what_if
from vidcurate.errors import InputError, MissingError

LISTED = ("left_out", "listed", "not listed to be left out")


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_the_file_that_the_guard_wrote_is_read_by_the_filter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = make_poisoned(tmp_path / "made", poison=(3, 3), scale=float("nan"), clips=16)
    short = ("stages.0.steps=8", "stages.0.checkpoint_every=8", "guard.nonfinite=skip")
    assert trainer_command.main(words(recipe, tmp_path / "trained", *short)) == 0
    file = tmp_path / "trained" / BAD_CLIPS
    bad = {json.loads(line)["clip_id"] for line in file.read_text().splitlines()}
    ids = [f"made-{number:06d}" for number in range(16)]
    run = scored(tmp_path / "run", *map(clip, ids))
    capsys.readouterr()

    with pytest.raises(SystemExit) as ended:
        main(["filter", str(run), "--set", f"leave_out={file}", "--json"])
    assert ended.value.code == 0

    summary = json.loads(capsys.readouterr().out)
    assert verdicts(run) == {clip_id: LISTED if clip_id in bad else KEPT for clip_id in ids}
    assert summary["by_rule"] == {"left_out": len(bad)}
    assert summary["left_out"] == {"listed": len(bad), "not_in_table": 0}
    assert rejection_ledger.check_ledger(run)["entries_replayed"] == len(bad) > 0


def test_ids_are_kept_with_the_settings_so_the_file_may_go(tmp_path: Path) -> None:
    run = scored(tmp_path / "run", *(clip(f"c{n}") for n in range(4)))
    file = write(tmp_path / "bad.txt", "c1", '{"clip_id": "c3", "step": 7}', "", "elsewhere", "c1")

    first = run_filter(run, FilterSpec(leave_out=file))
    again = run_filter(run, FilterSpec(leave_out=file))
    file.unlink()

    assert first.left_out == {"listed": 3, "not_in_table": 1}
    assert (first.rows_kept, first.up_to_date, again.up_to_date) == (2, False, True)
    assert again.left_out == first.left_out
    assert table.provenance(run / "filter.parquet").settings["leave_out"] == ["c1", "c3", "elsewhere"]
    assert what_if.what_if(run, what_if.spec_of(run))["kept"]["clips"] == 2


def test_a_clip_that_the_guard_adds_to_the_file_is_rejected_by_the_same_command(tmp_path: Path) -> None:
    run = scored(tmp_path / "run", *(clip(f"c{n}") for n in range(4)))
    spec = FilterSpec(leave_out=write(tmp_path / "bad.txt", "c1"))
    run_filter(run, spec)

    write(tmp_path / "bad.txt", "c1", "c2")
    summary = run_filter(run, spec)

    assert (summary.up_to_date, summary.rows_kept) == (False, 2)
    assert [name for name, verdict in verdicts(run).items() if verdict == LISTED] == ["c1", "c2"]


def test_a_list_of_ids_and_a_preset_go_together(tmp_path: Path) -> None:
    run = scored(tmp_path / "run", *(clip(f"c{n}") for n in range(3)))

    run_filter(run, FilterSpec(leave_out=("c0",), limits={"noun_count": Limit(min=1)}))
    assert verdicts(run) == {"c0": LISTED, "c1": KEPT, "c2": KEPT}

    tried = what_if.spec_of(run, settings=["leave_out=null"])
    assert what_if.what_if(run, tried)["kept"]["clips"] == 3
    of_preset = what_if.spec_of(run, preset="lambda", settings=["leave_out=[c2]"])
    assert (of_preset.leave_out, "file_size_bytes" in of_preset.limits) == (("c2",), True)


@pytest.mark.parametrize(
    ("line", "error", "message"),
    [
        (None, MissingError, r"bad\.txt: no such file of clip ids \(leave_out\)\."),
        ('{"clip_id": 3}', InputError, r"bad\.txt:1: is neither a clip id nor .*sed -i 1d"),
        ("{", InputError, r"bad\.txt:1: is neither"),
    ],
)
def test_a_missing_or_forged_file_changes_no_table(
    tmp_path: Path, line: str | None, error: type[Exception], message: str
) -> None:
    run = scored(tmp_path / "run", clip("c0"))
    run_filter(run, FilterSpec())
    before = (run / "filter.parquet").read_bytes()
    if line is not None:
        write(tmp_path / "bad.txt", line)

    with pytest.raises(error, match=message):
        run_filter(run, FilterSpec(leave_out=tmp_path / "bad.txt"))

    assert (run / "filter.parquet").read_bytes() == before


def test_a_card_counts_a_long_list_instead_of_printing_it(tmp_path: Path) -> None:
    run = scored(tmp_path / "run", clip("c0"), clip("c1"))
    run_filter(run, FilterSpec(leave_out=("c0", *(f"other-{n:04d}" for n in range(1999)))))

    text = card.text(run, card.CardSpec())

    assert "leave_out: 2,000 values" in text
    assert "other-0007" not in text


def test_long_lists_that_differ_in_the_middle_are_not_taken_for_each_other(tmp_path: Path) -> None:
    rows = pl.DataFrame({"clip_id": [f"c{n:03d}" for n in range(100)], "ingest_problem": [None] * 100})
    facts = rows.cast({"ingest_problem": pl.String})
    listed = [f"c{n:03d}" for n in range(100)]
    known = Masks()

    for left in (7, 50):
        spec = FilterSpec(leave_out=(*listed[:left], "elsewhere", *listed[left + 1 :]))
        kept = survivors(facts, plan_of(facts.schema, spec, tmp_path), known)
        assert facts["clip_id"].filter(kept).to_list() == [f"c{left:03d}"]
