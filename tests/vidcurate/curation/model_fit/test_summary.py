"""Fit of a run: every kept clip is counted once, the file for the report is fresh or not read."""

import json
from pathlib import Path

import pytest

from tests import shard_runs
from vidcurate.cli import main as cli
from vidcurate.curation.model_fit import summary
from vidcurate.curation.model_fit.fit_clip import fit_clip
from vidcurate.curation.model_fit.models import MODELS, models_named
from vidcurate.errors import ColumnError


@pytest.fixture
def run(tmp_path: Path) -> Path:
    rows = shard_runs.rows()
    for number, row in enumerate(rows):
        row |= {"width": 1280 if number % 2 else 640, "height": 720 if number % 2 else 360}
        if number % 7 == 0:
            row |= {"num_frames": 12, "duration_seconds": 12 / 29.97}
    rows[5]["num_frames"] = None
    return shard_runs.write_table(tmp_path / "run", rows)


def test_every_kept_clip_is_counted_once_and_as_fit_clip_says(run: Path) -> None:
    found = summary.run_fit(run, list(MODELS.values()), size=None, frames=None)
    kept = [row for row in shard_runs.rows() if row["is_kept"]]

    assert found.clips == len(kept) == 36
    for record in found.models:
        parts = [
            record[f"{name}_clips"] for name in ("taken", "too_short", "too_small", "still_image", "unknown")
        ]
        assert sum(parts) == found.clips
        assert record["unknown_clips"] == 1
        assert sum(record["frame_counts"].values()) == record["taken_clips"]
        assert record["hours_written"] <= record["taken_hours"] + 1e-9
    (mochi,) = [record for record in found.models if record["model"] == "mochi"]
    own = fit_clip(
        MODELS["mochi"], width=1280, height=720, fps=29.97, num_frames=101, duration_seconds=101 / 29.97
    )
    assert mochi["retimed_clips"] == mochi["taken_clips"] > 0
    assert mochi["crop_share_most"] == round(own.crop_share, 4)
    assert mochi["frame_counts"] == {"85": mochi["taken_clips"]}


def test_the_report_shows_the_counts_until_the_table_changes(run: Path) -> None:
    assert summary.read_fit(run) is None
    summary.run_fit(run, models_named("wan2.1"), size=None, frames=None)
    kept = summary.read_fit(run)
    assert kept is not None
    assert kept["models"][0]["model"] == "wan2.1"

    shard_runs.write_table(run, shard_runs.rows(39))
    assert summary.read_fit(run) is None
    (run / summary.NAME).write_text('{"stage": [', encoding="utf-8")
    assert summary.read_fit(run) is None


def test_a_table_that_was_not_probed_is_refused(tmp_path: Path) -> None:
    rows = [{name: row[name] for name in ("clip_id", "is_kept")} for row in shard_runs.rows()]
    run = shard_runs.write_table(tmp_path / "run", rows)

    with pytest.raises(ColumnError, match=r"width.*Run `vidcurate probe` first"):
        summary.run_fit(run, models_named("wan2.1"), size=None, frames=None)
    assert not (run / summary.NAME).exists()


def test_the_command_prints_the_counts(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--json"]):
        cli.app(args=["fit", str(run), "--model", "wan2.1,mochi", *arguments], standalone_mode=False)
    text, _, last = capsys.readouterr().out.strip().rpartition("\n")
    counts = {record["model"]: record for record in json.loads(last)["models"]}

    assert f"{counts['wan2.1']['taken_clips']} clips" in text
    assert "Mochi 1" in text
    assert "too short" in text
