"""`vidcurate review RUN --sample N --blind` and `--summary`."""

import json
from pathlib import Path

import pytest

from tests.vidcurate.curation.filter.test_reviews import decide
from tests.vidcurate.curation.review_decisions.test_blind_sample import SPEC, filtered
from vidcurate.cli.main import main
from vidcurate.curation.filter.stage import run_filter
from vidcurate.curation.review_decisions.blind_sample import read_sample


def called(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    try:
        main([*words])
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_sample_is_drawn_reviewed_and_summed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = filtered(tmp_path)
    words = ("review", str(run), "--sample", "40", "--blind", "--name", "first")
    code, out, _ = called(capsys, *words, "--json")
    drawn = json.loads(out)
    assert code == 0
    assert [line["drawn"] for line in drawn["strata"]] == [20, 10, 10]
    assert "Review it: vidcurate review" in called(capsys, *words)[2]
    for clip_id, stratum in read_sample(run, "first").strata.items():
        decide(run, clip_id, "keep" if stratum == "kept" else "reject", blind_sample="first")
    code, out, _ = called(capsys, "review", str(run), "--summary", "--json", "--level", "0.9")
    found = json.loads(out)
    assert found["decisions"] == 40
    assert found["num_contradictions"] == 1  # filter first
    assert "run `vidcurate filter" in found["contradictions"][0]["what"]
    (sample,) = found["blind_samples"]
    assert (sample["level"], sample["reviewed"]) == (0.9, 40)
    assert [line["share"] for line in sample["strata"]] == [0, 0, 0]
    assert 0.05 < sample["strata"][0]["high"] < 0.15
    assert sample["wrong_rejections"]["clips"] == 70
    run_filter(run, SPEC)
    code, out, _ = called(capsys, "review", str(run), "--summary")
    assert code == 0
    assert "wrong rejection" in out
    assert "reject wins" in out


def test_a_damaged_clip_kept_by_eye_and_an_unknown_clip_are_contradictions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = filtered(tmp_path)
    decide(run, "broken", "keep", reason="fine")
    decide(run, "nowhere", "reject")
    run_filter(run, SPEC)
    found = json.loads(called(capsys, "review", str(run), "--summary", "--json")[1])
    assert [(one["clip_id"], one["stage"], one["what"]) for one in found["contradictions"]] == [
        ("broken", "probe", "kept by eye, and rejected by truncated"),
        ("nowhere", "table", "no clip of the table has this id"),
    ]


@pytest.mark.parametrize(
    "words", [("--sample", "40"), ("--blind",), ("--sample", "40", "--blind", "--summary")]
)
def test_options_that_do_not_go_together_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    code, _, error = called(capsys, "review", str(filtered(tmp_path)), *words)
    assert code == 2
    assert error.startswith("error: --")
    assert not (tmp_path / "blind_samples").exists()
