"""The stage dedup: which clips are the same, by which kind of likeness, and how the stage runs."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.vidcurate.curation.dedup.hashed_clips import LOOK, copies, found_in, looks, make_run
from vidcurate.curation.clip_table import table
from vidcurate.curation.dedup.spec import DedupSpec, PerceptualSpec
from vidcurate.curation.dedup.stage import run_dedup
from vidcurate.curation.frame_scores.spec import FramesSpec
from vidcurate.curation.frame_scores.stage import run_frames
from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.curation.ingest.stage import run_ingest
from vidcurate.curation.probe.stage import ProbeSpec, run_probe
from vidcurate.errors import InputError, StageError
from vidcurate.media import encode


def test_files_with_the_same_bytes_are_copies_and_others_of_their_size_are_not(tmp_path: Path) -> None:
    videos = tmp_path / "videos"
    videos.mkdir()
    for name, data in (("a.mp4", b"x" * 100), ("b.mp4", b"x" * 100), ("c.mp4", b"y" * 100), ("d.mp4", b"x")):
        (videos / name).write_bytes(data)
    rows = [
        {
            "clip_id": name,
            "video_path": f"{name}.mp4",
            "file_size_bytes": (videos / f"{name}.mp4").stat().st_size,
        }
        for name in "abcd"
    ]
    run = make_run(tmp_path / "run", rows)
    summary = run_dedup(run, DedupSpec(), videos=videos)
    assert copies(run) == {"b": "a"}
    assert found_in(run)["b"]["duplicate_kind"] == "exact"
    assert (summary.rows_in, summary.clusters, summary.duplicates) == (4, 1, 1)
    assert summary.by_kind == {"exact": 1}
    assert summary.largest[0]["kept"] == "a"


def test_two_intervals_of_one_file_are_two_clips(tmp_path: Path) -> None:
    (tmp_path / "v").mkdir()
    rows = [
        {
            "clip_id": name,
            "video_path": "long.mp4",
            "start_seconds": start,
            "end_seconds": end,
            "packet_hash": "p",
        }
        for name, start, end in (("a", 0.0, 2.0), ("b", 2.0, 4.0), ("c", 0.0, 2.0))
    ]
    run = make_run(tmp_path / "run", rows)
    run_dedup(run, DedupSpec(), videos=tmp_path / "v")
    assert copies(run) == {"c": "a"}


def test_the_same_packets_in_another_container_are_a_copy(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "run",
        [
            {"clip_id": name, "packet_hash": value}
            for name, value in (("a", "p"), ("b", "q"), ("c", "p"), ("d", None), ("e", None))
        ],
    )
    run_dedup(run, DedupSpec())
    assert copies(run) == {"c": "a"}
    assert found_in(run)["c"]["duplicate_kind"] == "packets"


@pytest.mark.parametrize(
    ("changed", "is_copy"),
    [
        ((0, 0, 0, 0, 0), True),
        ((8, 8, 8, 8, 8), True),
        ((20, 20, 3, 3, 3), True),
        ((9, 9, 9, 9, 9), False),
        ((20, 20, 20, 0, 0), False),
    ],
)
def test_three_of_five_frames_within_the_limit_make_a_twin(
    tmp_path: Path, changed: tuple[int, ...], is_copy: bool
) -> None:
    run = make_run(
        tmp_path / "run",
        [
            {"clip_id": "a", "perceptual_hashes": LOOK},
            {"clip_id": "b", "perceptual_hashes": looks(*changed)},
        ],
    )
    run_dedup(run, DedupSpec(perceptual=PerceptualSpec(max_bits=8)))
    assert copies(run) == ({"b": "a"} if is_copy else {})
    if is_copy:
        assert found_in(run)["b"]["duplicate_kind"] == "perceptual"
        assert found_in(run)["b"]["duplicate_distance"] == sorted(changed)[2]


def test_black_and_one_coloured_clips_are_not_twins_of_each_other(tmp_path: Path) -> None:
    rows = [
        {"clip_id": name, "perceptual_hashes": hashes}
        for name, hashes in (
            ("a", [0] * 5),
            ("b", [0] * 5),
            ("c", [0, 0, 0, LOOK[3], LOOK[4]]),
            ("d", [0, 0, 0, LOOK[3], LOOK[4]]),
        )
    ]
    run = make_run(tmp_path / "run", rows)
    assert run_dedup(run, DedupSpec()).silent_clips == 4
    assert copies(run) == {}


def test_clips_with_an_ingest_problem_take_no_part_and_keep_their_rows(tmp_path: Path) -> None:
    rows = [
        {"clip_id": "a", "packet_hash": "p", "ingest_problem": "empty_caption"},
        {"clip_id": "b", "packet_hash": "p"},
        {"clip_id": "b", "packet_hash": "p", "ingest_problem": "duplicate_id"},
        {"clip_id": "c", "packet_hash": "p"},
    ]
    run = make_run(tmp_path / "run", rows)
    summary = run_dedup(run, DedupSpec())
    assert (summary.rows_in, summary.rows_compared) == (4, 2)
    written = table.scan(run, "dedup").select("clip_id", "duplicate_of").collect()
    assert written.rows() == [("a", None), ("b", None), ("b", None), ("c", "b")]


def test_neighbours_of_one_source_can_be_left_alone(tmp_path: Path) -> None:
    rows = [
        {"clip_id": name, "source_id": source, "perceptual_hashes": LOOK}
        for name, source in (("a", "v1"), ("b", "v1"), ("c", "v2"))
    ]
    run = make_run(tmp_path / "run", rows)
    run_dedup(run, DedupSpec())
    assert copies(run) == {"b": "a", "c": "a"}
    run_dedup(run, DedupSpec(within_source=False))
    assert copies(run) == {"c": "a"}


def thumbnail(colour: tuple[int, int, int], corner: int = 0) -> list[int]:
    """Return a dark thumbnail with a patch of this colour, left of the middle; `corner` marks one corner."""
    cells = np.full((8, 8, 3), 20, np.uint8)
    cells[3:5, 1:3] = colour
    cells[0, 0] += np.uint8(corner)
    return cells.reshape(-1).tolist()


def test_colours_part_what_hashes_alike(tmp_path: Path) -> None:
    red, green = (228, 38, 38), (36, 190, 66)
    shown = {"a": thumbnail(red), "b": thumbnail((220, 44, 40), corner=30), "c": thumbnail(green), "d": None}
    rows = [
        {"clip_id": name, "perceptual_hashes": looks(*[bits] * 5), "perceptual_thumbnail": shown[name]}
        for bits, name in enumerate("abcd")
    ]
    run = make_run(tmp_path / "run", rows)
    run_dedup(run, DedupSpec())
    assert copies(run) == {"b": "a", "d": "a"}  # without a thumbnail the hashes decide
    run_dedup(run, DedupSpec(perceptual=PerceptualSpec(max_thumbnail_distance=255)))
    assert copies(run) == {"b": "a", "c": "a", "d": "a"}


def test_the_same_hashes_with_another_thumbnail_are_not_joined_as_equal(tmp_path: Path) -> None:
    rows = [
        {"clip_id": name, "perceptual_hashes": LOOK, "perceptual_thumbnail": thumbnail(colour)}
        for name, colour in (("a", (228, 38, 38)), ("b", (36, 190, 66)), ("c", (36, 190, 66)))
    ]
    run = make_run(tmp_path / "run", rows)
    run_dedup(run, DedupSpec())
    assert copies(run) == {"c": "b"}


def test_thumbnails_are_laid_on_each_other_in_the_orientation_that_was_found(tmp_path: Path) -> None:
    from vidcurate.curation.dedup import orientations, thumbnails

    rng = np.random.default_rng(1)
    cells = rng.integers(0, 255, (1, 8, 8, 3)).astype(np.float32)
    hashes = np.array([LOOK], dtype=np.uint64)
    own = cells.astype(np.uint8).reshape(-1).tolist()
    rows: list[dict[str, Any]] = [{"clip_id": "a", "perceptual_hashes": LOOK, "perceptual_thumbnail": own}]
    for name in orientations.ORIENTATIONS:
        turned = thumbnails.turned(0.6 * cells + 40, name).astype(np.uint8).reshape(-1).tolist()
        hashed = orientations.turned(hashes, name)[0].tolist()
        rows.append({"clip_id": f"b {name}", "perceptual_hashes": hashed, "perceptual_thumbnail": turned})
    run = make_run(tmp_path / "run", rows)
    run_dedup(run, DedupSpec())
    assert copies(run) == {f"b {name}": "a" for name in orientations.ORIENTATIONS}
    found = found_in(run)
    for name in orientations.ORIENTATIONS:
        # The column says how the kept clip is turned to match the copy.
        assert found[f"b {name}"]["duplicate_orientation"] == name


def test_a_kind_that_cannot_be_looked_for_is_named_with_the_command(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [{"clip_id": "a"}])
    summary = run_dedup(run, DedupSpec())
    assert "score-frames" in summary.not_looked_for["perceptual"]
    assert "--videos" in summary.not_looked_for["exact"]
    assert summary.not_looked_for["caption"] == "switched off"


def test_a_second_run_is_up_to_date_and_a_changed_file_is_read_again(tmp_path: Path) -> None:
    videos = tmp_path / "videos"
    videos.mkdir()
    for name in "ab":
        (videos / name).write_bytes(b"x" * 100)
    rows = [{"clip_id": name, "video_path": name, "file_size_bytes": 100} for name in "ab"]
    run = make_run(tmp_path / "run", rows)
    first = run_dedup(run, DedupSpec(), videos=videos)
    before = table.stage_path(run, "dedup").read_bytes()
    again = run_dedup(run, DedupSpec(), videos=videos)
    assert (first.up_to_date, again.up_to_date, again.duplicates) == (False, True, 1)
    table.stage_path(run, "dedup").unlink()
    run_dedup(run, DedupSpec(), videos=videos, num_workers=2)
    assert table.stage_path(run, "dedup").read_bytes() == before
    (videos / "b").write_bytes(b"y" * 100)
    assert run_dedup(run, DedupSpec(), videos=videos).duplicates == 0
    assert not list(run.glob(".dedup-*"))


def test_an_empty_table_and_a_run_without_one(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [])
    everything = DedupSpec(captions=0.8)
    assert run_dedup(run, everything).rows_in == 0
    with pytest.raises(StageError, match="Run `vidcurate ingest` first"):
        run_dedup(tmp_path / "none", DedupSpec())
    with pytest.raises(InputError, match="no such video folder"):
        run_dedup(run, DedupSpec(), videos=tmp_path / "none")


def test_real_files_are_found_in_every_way(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    """Files through ingest, probe, frames, dedup: a byte copy, a remux, a re-encoding, a rotated one."""
    videos = tmp_path / "videos"
    videos.mkdir()
    rng = np.random.default_rng(3)
    coarse = rng.integers(0, 255, (2, 9, 12, 3), dtype=np.uint8)
    frames, other = (np.stack([np.kron(image, np.ones((8, 8, 1), np.uint8))] * 16) for image in coarse)
    frames, other = (
        np.stack([np.roll(image, n, 1) for n, image in enumerate(part)]) for part in (frames, other)
    )
    encode.write_video(videos / "a.mp4", frames, fps=8)
    shutil.copy(videos / "a.mp4", videos / "b.mp4")
    encode.write_video(videos / "c.mp4", frames, fps=8, crf=34)
    encode.write_video(videos / "d.mp4", np.ascontiguousarray(np.rot90(frames, -1, (1, 2))), fps=8, crf=24)
    encode.write_video(videos / "e.mp4", other, fps=8)
    encode.write_video(videos / "f.mkv", frames, fps=8)
    metadata = tmp_path / "captions.csv"
    metadata.write_text(
        "video,caption\n" + "".join(f"{path.name},a dog\n" for path in sorted(videos.iterdir()))
    )
    run = tmp_path / "run"
    run_ingest(run, IngestSpec(metadata=metadata, videos=videos))
    run_probe(run, ProbeSpec(videos=videos))
    run_frames(run, FramesSpec(), videos=videos)
    run_dedup(run, DedupSpec(prefer=()), videos=videos)
    found = {name.partition(".")[0]: row for name, row in found_in(run).items()}
    kinds = {name: row["duplicate_kind"] for name, row in found.items()}
    assert kinds == {"a": None, "b": "exact", "c": "perceptual", "d": "perceptual", "e": None, "f": "packets"}
    assert found["d"]["duplicate_orientation"] == "rotated 90"
    assert found["c"]["duplicate_orientation"] == "same"


def test_the_settings_are_in_the_table_and_its_notes_beside_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [{"clip_id": "a", "perceptual_hashes": LOOK}])
    run_dedup(run, DedupSpec(perceptual=PerceptualSpec(max_bits=4)))
    assert table.provenance(table.stage_path(run, "dedup")).settings["perceptual"]["max_bits"] == 4
    assert json.loads((run / "dedup.json").read_text())["rows_compared"] == 1
