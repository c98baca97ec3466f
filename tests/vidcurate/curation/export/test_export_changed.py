"""An export of clips that are damaged, promised wrongly or changed afterwards."""

import json
from pathlib import Path

import pytest

from tests import shard_runs
from tests.vidcurate.curation.export import clip_runs
from tests.vidcurate.curation.export.exported import WAN, exported
from vidcurate.curation.clip_table import table
from vidcurate.curation.export import record
from vidcurate.errors import InputError, StorageError


def test_a_damaged_clip_is_listed_and_the_others_are_written(tmp_path: Path) -> None:
    clip_runs.make_run(tmp_path, lambda name: name in ("exact.mp4", "faster.mp4", "slower.mkv"))
    data = (tmp_path / "videos/slower.mkv").read_bytes()
    (tmp_path / "videos/slower.mkv").write_bytes(data[: len(data) // 2])
    (tmp_path / "videos/faster.mp4").unlink()
    summary = exported(tmp_path, "out", WAN, ["hf"])

    assert summary.clips == 1
    assert sum(summary.failed.values()) == 2
    found = json.loads((tmp_path / "out" / record.RECORD).read_text())
    assert [(one["clip_id"], one["kind"]) for one in found["failed"][:1]] == [("faster", "missing")]
    assert [path.name for path in (tmp_path / "out/train").glob("*.txt")] == ["exact.txt"]


def test_a_table_that_promises_too_much_is_found_after_writing(tmp_path: Path) -> None:
    clip_runs.make_run(tmp_path, lambda name: name in ("exact.mp4", "faster.mp4"))
    rows = table.scan(tmp_path / "run", "split").collect().to_dicts()
    rows[1] |= {"num_frames": 90, "duration_seconds": 3.0}
    shard_runs.write_table(tmp_path / "run", rows)
    exported(tmp_path, "out", WAN, ["hf"])

    (problem,) = json.loads((tmp_path / "out" / record.RECORD).read_text())["failed"]
    assert problem["kind"] == "wrong_export"
    assert "frames of 96x64 at 16 frames/s were written, 45 frames" in problem["problem"]


def test_a_changed_caption_or_clip_is_another_export(tmp_path: Path) -> None:
    clip_runs.make_run(tmp_path, lambda name: name in ("exact.mp4", "dots.mp4"))
    exported(tmp_path, "out", WAN, ["hf"])
    (tmp_path / "out/train/exact.mp4").unlink()
    with pytest.raises(StorageError, match=r"exact.mp4: missing or changed since the export"):
        exported(tmp_path, "out", WAN, ["musubi"])
    rows = table.scan(tmp_path / "run", "split").collect().to_dicts()
    rows[0]["caption"] = "another"
    shard_runs.write_table(tmp_path / "run", rows)
    with pytest.raises(InputError, match="made from other clips, captions or files"):
        exported(tmp_path, "out", WAN, ["musubi"])
