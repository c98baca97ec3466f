"""Changed data and recipes: which changes a resumed run refuses and accepts."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.forked_runs import Forks
from tests.trainer.shards_for_tests import SMOKE, events, make_shards, numbers, settings
from trainer import __main__ as command
from trainer.cli import training_arguments
from trainer.data import open_stage
from trainer.report.preview import stages as preview_stages
from vidcurate.sampler import order
from vidcurate.sampler.order_state import FLAGS
from vidcurate.shards.index import read_index
from vidcurate.shards.index_file import INDEX_NAME, write_index

SHORT = ("sample=null", "stages.0.checkpoint_every=100")


def words(shards: Path, run: Path, steps: int, *more: str) -> list[str]:
    """Return the command line that trains up to step `steps`; `more` are --set values and flags."""
    given = settings(shards, run, *SHORT, f"stages.0.steps={steps}", *(m for m in more if "=" in m))
    return [
        str(SMOKE),
        *(m for m in more if "=" not in m),
        *(word for value in given for word in ("--set", value)),
    ]


def rewrite(shards: Path, change: Callable[[dict[str, list[Any]]], None]) -> None:
    """Write the index of some shards again with changed rows."""
    rows = pq.read_table(shards / INDEX_NAME).to_pydict()
    change(rows)
    write_index(shards, {name: rows[name] for name in rows if not name.endswith("_hash")})


def edit_captions(rows: dict[str, list[Any]]) -> None:
    for row, clip_id in enumerate(rows["clip_id"]):
        if clip_id in ("clip-003", "clip-004"):
            rows["caption"][row] = "edited"


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("made") / "shards")


@pytest.fixture(scope="module")
def more_shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("more") / "shards", num_clips=16)


@pytest.fixture(scope="module")
def trained(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("trained") / "run"
    assert command.main(words(shards, run, 3)) == 0
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "run")


def state(run: Path, step: int) -> dict[str, Any]:
    kept: dict[str, Any] = json.loads((run / f"step-{step:08d}" / "state.json").read_text())
    return kept


def check_hashes(run: Path) -> None:
    """The hash of every step is that of the clips that the run's own journal plans for it."""
    found, so_far = preview_stages.read_stages(run), ""
    for line in numbers(run):
        stage, number = preview_stages.at(found, line["step"])
        so_far = order.rolling_hash(so_far, [clip.clip_id for clip in open_stage.clips(stage, number)])
        assert line["clips_hash"] == so_far


def test_a_run_resumes_through_one_accepted_change_after_another(
    shards: Path, more_shards: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Clips were added: refused with the difference and the flag, also by the dry run; then accepted.
    assert command.main(words(more_shards, run, 6)) == 2
    refusal = capsys.readouterr().err
    assert "4 clips added in 2 shards (train-level1-000000.tar: clip-012, clip-014;" in refusal
    assert "accept the change with --append, or start a new order with --start-from-scratch" in refusal
    page = " ".join((SMOKE.parents[1] / "docs" / "changed-data.md").read_text().split())
    assert refusal.strip().splitlines()[-1].replace(str(more_shards), "more") in page
    assert all(flag in page for flag in FLAGS.values())
    assert len(numbers(run)) == 3
    assert command.main([*words(more_shards, run, 6), "--dry-run"]) == 2
    captured = capsys.readouterr()
    assert f"refused from {run}/step-00000003, step 3" in captured.out
    assert "(not accepted: --append)" in captured.out
    before = sorted(path for path in run.rglob("*"))
    assert command.main([*words(more_shards, run, 6, "--append"), "--dry-run", "--json"]) == 0
    dry = json.loads(capsys.readouterr().out)
    assert [change["accepted"] for change in dry["resume"]["changes"]] == [True]
    assert sorted(path for path in run.rglob("*")) == before
    assert command.main(words(more_shards, run, 6, "--append")) == 0
    assert "data changed: 4 clips added" in capsys.readouterr().err
    (reported,) = events(run, "data_changed")
    assert (reported["step"], reported["kinds"], reported["counts"]) == (3, ["added"], {"added": 4})
    assert reported["clip_ids"]["added"] == ["clip-012", "clip-014", "clip-013", "clip-015"]
    check_hashes(run)

    # The same command resumes without a flag, and over shards that only lie elsewhere under other names.
    assert command.main(words(more_shards, run, 7)) == 0
    elsewhere = shutil.copytree(more_shards, tmp_path / "elsewhere")
    (elsewhere / "train-level1-000000.tar").rename(elsewhere / "a.tar")
    rewrite(
        elsewhere,
        lambda rows: rows["shard"].__setitem__(
            slice(None), ["a.tar" if name == "train-level1-000000.tar" else name for name in rows["shard"]]
        ),
    )
    assert command.main(words(elsewhere, run, 8)) == 0
    assert len(events(run, "data_changed")) == 1

    # Clips removed and captions edited at once need both flags.
    fewer = make_shards(tmp_path / "fewer", num_clips=15)
    rewrite(fewer, edit_captions)
    assert command.main(words(fewer, run, 11, "--tombstone")) == 2
    assert "2 clips with another caption or video in 2 shards (train-level1-000000.tar: clip-004; " in (
        capsys.readouterr().err
    )
    assert command.main(words(fewer, run, 11, "--tombstone", "--accept-content")) == 0
    reported = events(run, "data_changed")[-1]
    assert reported["counts"] == {"content": 2, "removed": 1}
    assert reported["clip_ids"]["removed"] == ["clip-015"]
    assert reported["fallback_clips_take_the_places"]
    assert "fallback clips of the same cells replace" in capsys.readouterr().err

    # Another number of micro-batches is another plan.
    other = "stages.0.data.micro_batches_per_step=3"
    assert command.main(words(fewer, run, 14, other)) == 2
    assert "say that it is meant: --accept-plan" in capsys.readouterr().err
    assert command.main(words(fewer, run, 14, other, "--accept-plan")) == 0
    assert [line["clips"] for line in numbers(run)][-4:] == [4, 6, 6, 6]

    kept = state(run, 14)["loader"]
    assert kept["changes"] == [
        "step 0: begin",
        "step 3: 4 added",
        "step 8: 2 content, 1 removed",
        "step 11: plan",
    ]
    assert len(json.dumps(kept)) < 2048
    check_hashes(run)
    assert [line["delivered_hash"] for line in numbers(run)] == [line["clips_hash"] for line in numbers(run)]


def test_every_kind_of_change_has_its_flag() -> None:
    flags = tuple(FLAGS.values())

    assert set(training_arguments.CHANGES) == set(flags)
    assert training_arguments.parser().parse_args(["recipe.yaml", *flags]).accept == list(flags)


def test_a_seed_and_another_data_set_are_refused_whatever_is_accepted(
    shards: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    every = ("--append", "--tombstone", "--accept-content", "--accept-plan")
    assert command.main(words(shards, run, 5, "seed=7", *every)) == 2
    assert "--start-from-scratch" in capsys.readouterr().err
    other = make_shards(tmp_path / "other", name="other")
    assert command.main(words(other, run, 5, *every)) == 2
    assert "none of the 12 old clips is among the 12 new ones: another data set" in capsys.readouterr().err
    shutil.rmtree(run / "index")
    assert command.main(words(make_shards(tmp_path / "m", num_clips=14), run, 5, *every)) == 2
    assert "the run has no copy of the old index" in capsys.readouterr().err
    assert len(numbers(run)) == 3


def test_ranks_resume_after_added_clips_as_one_rank_does(
    more_shards: Path, run: Path, tmp_path: Path, forks: Forks
) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    assert command.main(words(more_shards, copy, 6, "--append")) == 0
    forks.start(words(more_shards, run, 6, "--append"), ranks=2).succeed()
    hashes = [[line["delivered_hash"] for line in numbers(folder)] for folder in (copy, run)]
    assert hashes[0] == hashes[1]
    assert len(events(run, "data_changed")) == 1
    assert state(run, 6)["loader"] == state(copy, 6)["loader"]


def test_another_run_takes_the_journal_with_the_checkpoint(
    more_shards: Path, run: Path, tmp_path: Path
) -> None:
    assert command.main(words(more_shards, run, 5, "--append")) == 0
    new = tmp_path / "new"
    assert command.main([*words(more_shards, new, 7), "--load", str(run)]) == 0
    shutil.rmtree(run)
    assert command.main([*words(more_shards, new, 8)]) == 0
    assert state(new, 8)["loader"]["changes"] == ["step 0: begin", "step 3: 4 added"]


def test_what_was_delivered_is_hashed_beside_what_was_planned(tmp_path: Path) -> None:
    cut = make_shards(tmp_path / "cut", cut_short=(3,))
    run = tmp_path / "run"
    assert command.main(words(cut, run, 12, "loader.max_failure_share=1.0")) == 0
    lines, reported = numbers(run), events(run, "clip_substituted")
    first = min(event["step"] for event in reported)
    index = read_index(cut, check_files=False)
    (stage,) = preview_stages.read_stages(run).stages
    so_far = ""
    for step, line in enumerate(lines):
        fallbacks = {
            event["slot"] + 2 * (event["position"] % 2): event["fallback"]
            for event in reported
            if event["step"] == step + 1
        }
        ids = [clip.clip_id for clip in open_stage.clips(stage, step)]
        assert all(ids[place] == "clip-003" for place in fallbacks)
        so_far = order.rolling_hash(so_far, [fallbacks.get(place, name) for place, name in enumerate(ids)])
        assert line["delivered_hash"] == so_far
        assert (line["delivered_hash"] == line["clips_hash"]) == (step + 1 < first)
    assert len(index) == 12
