"""Clips that are intervals of their file: a cut shows its interval, and its facts are those of its bytes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.shard_runs import build, contents, make_run, write_table
from vidcurate.curation.clip_table import rejection_ledger, table
from vidcurate.curation.report import inspect_clip
from vidcurate.curation.report.build import run_report
from vidcurate.media import decode, packets
from vidcurate.shards import index
from vidcurate.shards.layout import ShardSpec
from vidcurate.shards.manifest import read_manifest
from vidcurate.shards.read_clip import read_clip_bytes, read_clip_facts


@pytest.fixture
def intervals(tmp_path: Path, make_video: Callable[..., Path]) -> Path:
    """Return a folder with clips cut from one video of 48 frames at 24 fps, a key frame every 12."""
    source = make_video("long.mp4", num_frames=48, gop=12)
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "long.mp4").write_bytes(source.read_bytes())
    table_rows = [
        {
            "clip_id": f"cut{i}", "source_id": "long", "video_path": "long.mp4", "caption": "a square",
            "codec": "h264", "width": 96, "height": 64, "fps": 24.0, "num_frames": 48,
            "duration_seconds": 2.0, "duration_seconds_from_header": 2.0, "start_seconds": start,
            "end_seconds": end, "fold": "train", "level": 1, "is_kept": True, "probe_status": "ok",
            "source_dataset": "made", "ingest_problem": None,
            "reject_stage": None, "reject_rule": None, "reject_value": None, "reject_threshold": None,
        }
        for i, (start, end) in enumerate([(0.5, 1.5), (0.9, 1.9), (1.6, 1.9), (None, None)])
    ]  # fmt: skip
    make_run(tmp_path, table_rows)
    return tmp_path


@pytest.mark.parametrize(
    ("mode", "frames"),
    [
        ("trim", {"cut0": (12, 36), "cut1": (24, 45), "cut3": (0, 48)}),
        ("transcode", {"cut0": (12, 36), "cut1": (22, 46), "cut2": (38, 46), "cut3": (0, 48)}),
    ],
)
def test_a_cut_shows_its_interval_and_the_facts_are_those_of_the_bytes(
    intervals: Path, mode: Any, frames: dict[str, tuple[int, int]]
) -> None:
    summary = build(intervals, ShardSpec(mode=mode))
    opened = index.read_index(intervals / "shards")
    assert set(opened.words("clip_id").to_pylist()) == set(frames)
    assert summary.rows_failed == 4 - len(frames)
    for row in range(len(opened)):
        payload = read_clip_bytes(opened, row)
        count = decode.count_decodable_frames(payload)
        assert count == opened.num_frames[row]
        first, end = frames[opened.word("clip_id", row)]
        shown = decode.read_frames(payload, range(count), height=64, width=96)[:, 4, 4, 0].astype(int)
        # Frame t of the source has the value 8 t in its corner. A cut at forward references may end earlier.
        assert abs(shown[0] - 8 * first % 256) <= 6
        assert abs(shown[-1] - 8 * (first + count - 1) % 256) <= 6
        assert first + count <= end
        assert mode == "trim" or first + count == end
        known = packets.frame_map_of(payload)
        assert known is not None
        assert opened.words("frame_map")[row].as_py() == known.to_bytes()
        assert len(known) == count
        facts = read_clip_facts(opened, row)
        assert facts["num_frames"] == count
        assert opened.numbers("duration_seconds")[row] == pytest.approx(count / 24, abs=1e-3)
        if opened.word("clip_id", row) != "cut3":
            assert facts["start_seconds"] == pytest.approx(first / 24, abs=1e-5)
        assert bool(facts.get("codec")) == (mode == "trim" and opened.word("clip_id", row) == "cut3")


@pytest.mark.parametrize(("mode", "levels"), [("trim", {"full": 3}), ("transcode", {"index": 4})])
def test_the_levels_are_those_of_the_files_that_were_written(
    intervals: Path, mode: Any, levels: dict[str, int]
) -> None:
    rows = table.scan(intervals / "run", "split").collect().to_dicts()
    write_table(intervals / "run", [{**row, "integrity_level": "full"} for row in rows])
    build(intervals, ShardSpec(mode=mode))  # trim: one of the four has no key frame and is not written
    manifest = read_manifest(intervals / "shards")
    assert manifest is not None
    assert manifest["integrity_levels"] == levels


def test_a_clip_without_a_key_frame_is_named_with_the_way_on(intervals: Path) -> None:
    summary = build(intervals, ShardSpec(mode="trim"))
    assert summary.failed == ("cut2: no key frame between 1.6 s and 1.9 s; use mode: transcode",)
    assert build(intervals, ShardSpec(mode="trim")).up_to_date


@pytest.mark.parametrize("mode", ["trim", "transcode"])
def test_cuts_are_the_same_bytes_for_any_number_of_workers(intervals: Path, mode: Any) -> None:
    spec = ShardSpec(mode=mode, max_clips=1)
    build(intervals, spec)
    build(intervals, spec, workers=3, out="other")
    assert contents(intervals / "shards") == contents(intervals / "other")
    victim = sorted((intervals / "shards").glob("*.tar"))[0]
    victim.unlink()
    assert build(intervals, spec).num_shards_written >= 1
    assert contents(intervals / "shards") == contents(intervals / "other")


def test_a_damaged_source_fails_by_name_when_it_is_cut(intervals: Path) -> None:
    path = intervals / "videos" / "long.mp4"
    path.write_bytes(bytes(path.stat().st_size))
    summary = build(intervals, ShardSpec(mode="transcode"))
    assert summary.rows_failed == 4
    assert "not a video that FFmpeg opens" in summary.failed[0]


def test_a_kept_clip_that_cannot_be_cut_has_its_fate_in_ledger_inspect_and_report(intervals: Path) -> None:
    run = intervals / "run"
    build(intervals, ShardSpec(mode="trim"), out="run/shards")
    reason = "no key frame between 1.6 s and 1.9 s; use mode: transcode"

    entry = rejection_ledger.read_ledger(run).collect().row(0, named=True)
    assert (entry["clip_id"], entry["stage"], entry["rule"]) == ("cut2", "build-shards", "cannot_cut")
    assert (entry["value"], entry["threshold"]) == (reason, "written to a shard")
    assert rejection_ledger.check_ledger(run) == {"rows_in": 4, "rows_rejected": 1, "entries_replayed": 1}
    assert rejection_ledger.overview(run)["by_stage"] == {"build-shards": 1}
    assert rejection_ledger.rejected(run).collect()["clip_id"].to_list() == ["cut2"]
    assert inspect_clip.clip_fate(run, "cut2")["verdict"] == (
        f"kept until build-shards, which could not write it: cannot_cut ({reason})"
    )
    assert inspect_clip.clip_fate(run, "cut1")["verdict"] == "kept, level 1, train"
    summary = run_report(run)
    assert (summary.rows_kept, summary.rows_rejected) == (3, 1)
    assert "build-shards" in (run / "report.html").read_text(encoding="utf-8")

    build(intervals, ShardSpec(mode="transcode"), out="run/other")  # this build writes every clip
    assert rejection_ledger.read_ledger(run).collect().is_empty()
    build(intervals, ShardSpec(mode="trim"), out="run/shards")  # up to date, and the ledger says so again
    assert len(rejection_ledger.read_ledger(run).collect()) == 1
