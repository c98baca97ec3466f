"""Frame count, duration, rotation and verdict of a file are the same at every level and after any history."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import polars as pl
import pytest

from tests.numbered_clips import numbers_in, write
from tests.vidcurate.curation.probe.copied_clips import LEVELS, OPEN_GOP, copied, facts_of, packed
from tests.vidcurate.curation.probe.test_clean_clips import trimmed
from tests.vidcurate.curation.probe.test_probe_levels import ingested
from vidcurate.curation.demo_data import damage
from vidcurate.curation.frame_scores.decode_once import Walked, walk
from vidcurate.curation.probe.stage import ProbeSpec, probe_file, run_probe
from vidcurate.errors import MediaError
from vidcurate.media import decode, transcode
from vidcurate.media.packets import frame_map_of

Make = Callable[..., Path]


def test_key_frames_of_an_intra_refresh_are_not_missing(tmp_path: Path) -> None:
    options = {"x264-params": "intra-refresh=1:keyint=12:bframes=0:scenecut=0:threads=1"}
    source = write(tmp_path / "whole.mp4", options=options, num_frames=48)

    assert probe_file(str(source))["num_keyframes_from_index"] > 1
    assert facts_of(source)[:3] == ("ok", None, 48)
    trimmed(source, tmp_path / "trimmed.mp4", start=6, count=36)
    assert facts_of(tmp_path / "trimmed.mp4")[:1] == ("ok",)
    cut = copied(source, tmp_path / "cut.mp4", first=18)
    assert [probe_file(str(cut), level)["probe_status"] for level in LEVELS[2:]] == ["missing_frames"] * 2


@pytest.fixture(scope="module")
def with_b_frames(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("edits") / "whole.mp4"
    return write(path, num_frames=96, gop=24, options={"bf": "3", "x264-params": "threads=1"})


@pytest.mark.parametrize(
    ("start", "count"), [(0, 95), (0, 92), (1, 95), (2, 90), (3, 65), (4, 12), (5, 3), (30, 50)]
)
def test_an_edit_list_of_any_length_gives_one_duration(
    tmp_path: Path, with_b_frames: Path, start: int, count: int
) -> None:
    path = trimmed(with_b_frames, tmp_path / "trimmed.mp4", start=start, count=count)

    status, found, frames, duration, _ = facts_of(path)

    assert status == "ok"
    assert found in (None, "header_duration_differs")  # `trimmed` leaves the movie's duration as it was
    assert abs(frames - count) <= 1  # FFmpeg rounds an edit's ends to frames
    assert duration == pytest.approx(frames / 24, abs=0.002)
    header = probe_file(str(path), "header")
    assert (header["num_frames"], header["num_frames_from_header"]) == (None, 96)
    assert header["duration_seconds"] == pytest.approx(count / 24, abs=0.002)


@pytest.mark.parametrize("num_b_frames", [0, 2])
def test_an_avi_of_h264_with_dropped_frames_is_clean(tmp_path: Path, num_b_frames: int) -> None:
    times = [number * 40 for number in range(60) if not (10 <= number < 16 or number == 40)]
    options = {"bf": str(num_b_frames), "x264-params": "threads=1"}
    source = write(tmp_path / "gaps.mkv", times=times, num_frames=len(times), options=options)

    path = copied(source, tmp_path / "gaps.avi", filters="h264_mp4toannexb")

    status, found, frames, duration, _ = facts_of(path)
    assert (status, frames) == ("ok", 53)
    assert duration == pytest.approx(2.4, abs=0.1)
    assert set((found or "").split(", ")) <= {"", "timestamp_gaps"}


def test_an_avi_without_an_index_has_all_its_frames(tmp_path: Path, make_video: Make) -> None:
    data = make_video("clip.avi", codec="mpeg4", num_frames=96).read_bytes()
    data = data[: data.rfind(b"idx1")]
    path = tmp_path / "no_index.avi"
    path.write_bytes(data[:4] + (len(data) - 8).to_bytes(4, "little") + data[8:])

    assert facts_of(path)[:4] == ("ok", None, 96, pytest.approx(4.0))


def orientation_message(angle: int, *, flips: tuple[bool, bool] = (False, False)) -> bytes:
    """Return an HEVC unit with a display orientation message (H.265 §D.2.17)."""
    bits = f"0{flips[0]:d}{flips[1]:d}{round(angle / 360 * 65536):016b}10"
    content = int(bits.ljust(24, "1"), 2).to_bytes(3, "big")
    return bytes([39 << 1, 1, 47, len(content)]) + content + b"\x80"


def with_orientation(source: Path, target: Path, angle: int, flip: str = "") -> Path:
    if "265" in source.name:
        unit = orientation_message(angle, flips=(flip == "horizontal", flip == "vertical"))
        return copied(source, target, edit=lambda data: len(unit).to_bytes(4, "big") + unit + data)
    option = f"h264_metadata=display_orientation=insert:rotate={angle}{':flip=' if flip else ''}{flip}"
    return copied(source, target, filters=option)


@pytest.mark.parametrize(
    ("angle", "flip", "suffix"),
    [
        (90, "", ".mp4"),
        (180, "", ".mkv"),
        (270, "", ".mkv"),
        (90, "horizontal", ".mp4"),
        (90, "vertical", ".mkv"),
        (0, "horizontal", ".mp4"),
    ],
)
def test_a_rotation_in_the_coded_pictures_is_the_tables(
    tmp_path: Path, open_gop: Path, angle: int, flip: str, suffix: str
) -> None:
    path = with_orientation(open_gop, tmp_path / f"turned{suffix}", angle, flip)

    rotation = facts_of(path)[4]

    with av.open(os.fspath(path)) as container:
        frame = next(container.decode(video=0))
        matrix = np.frombuffer(bytes(frame.side_data["DISPLAYMATRIX"]), np.int32)
        turned = round(np.degrees(np.arctan2(matrix[1], matrix[0])) / 90) * 90 % 360
    assert rotation == turned
    row = probe_file(str(path), "header")
    assert (row["width"], row["height"]) == ((64, 96) if angle in (90, 270) else (96, 64))


def test_a_rotation_in_the_coded_pictures_wins_over_the_containers(tmp_path: Path, open_gop: Path) -> None:
    source = with_orientation(open_gop, tmp_path / f"turned_{open_gop.stem}.mp4", 180)
    data = bytearray(source.read_bytes())
    assert data.count(b"tkhd") == 1
    at = data.find(b"tkhd") + 4 + 40
    for place, number in enumerate((0, 1, 0, -1, 0)):
        data[at + 4 * place : at + 4 * place + 4] = (number << 16).to_bytes(4, "big", signed=True)
    source.write_bytes(data)

    assert facts_of(source)[4] == 180
    frames = decode.read_frames(source, [5], height=64, width=96)
    frames = np.concatenate([frames, transcode.first_frame(source, 5 / 24, 1.0, height=64, width=96)[None]])
    assert numbers_in(frames[:, ::-1, ::-1]) == [5, 5]
    walked = list(walk(source, 5 / 24, 6 / 24, short_side_px=64, details_per_second=0, walked=Walked()))
    assert numbers_in(np.stack([walked[0].bgr])[:, ::-1, ::-1]) == [5]


@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_a_rotation_in_the_first_picture_alone_holds_for_all(tmp_path: Path, suffix: str) -> None:
    source = write(tmp_path / "clip_265.mkv", codec="libx265", options=OPEN_GOP["libx265"], num_frames=36)
    unit = orientation_message(180)
    message = len(unit).to_bytes(4, "big") + unit
    given = iter([message])

    path = copied(source, tmp_path / f"turned{suffix}", edit=lambda data: next(given, b"") + data)

    frame_map = frame_map_of(path)
    for number in (5, 30):
        frames = [
            decode.read_frames(path, [number], height=64, width=96, frame_map=frame_map)[0],
            transcode.first_frame(path, number / 24, 2.0, height=64, width=96),
            next(walk(path, number / 24, 2.0, short_side_px=64, details_per_second=0, walked=Walked())).bgr,
        ]
        assert numbers_in(np.stack(frames)[:, ::-1, ::-1]) == [number] * 3


def test_frames_of_h264_in_avi_are_found_by_their_number(tmp_path: Path) -> None:
    source = write(tmp_path / "clip.mkv", options={"bf": "3", "x264-params": "threads=1"})

    path = copied(source, tmp_path / "clip.avi", filters="h264_mp4toannexb")

    for number in (1, 5, 14, 30):
        frames = decode.read_frames(path, [number], height=64, width=96, frame_map=frame_map_of(path))
        assert numbers_in(frames) == [number]
    views = walk(path, None, None, short_side_px=64, details_per_second=0, walked=Walked())
    assert numbers_in(np.stack([view.bgr for view in views])) == list(range(40))
    cut = transcode.transcode_video(path, None, None, transcode.TranscodeSpec())
    made = tmp_path / "made.mp4"
    made.write_bytes(cut.payload)
    frames = decode.read_frames(made, range(cut.facts["num_frames"]), height=64, width=96)
    assert sorted(numbers_in(frames)) == numbers_in(frames)
    assert set(numbers_in(frames)) == set(range(40))
    with pytest.raises(MediaError, match="use mode: transcode"):
        transcode.trim_video(path, None, None)


def test_frames_of_a_packed_bitstream_come_in_order(tmp_path: Path) -> None:
    source = write(tmp_path / "clip.avi", codec="mpeg4", options={"bf": "1", "b": "2M"})
    path = packed(source, tmp_path / "packed.avi")

    count = facts_of(path)[2]
    every = numbers_in(decode.read_frames(path, range(count), height=64, width=96))

    assert every == sorted(set(every))
    for number in (1, 2, 3, 20, 21):
        frames = decode.read_frames(path, [number], height=64, width=96, frame_map=frame_map_of(path))
        assert numbers_in(frames) == every[number : number + 1]
    views = walk(path, None, None, short_side_px=64, details_per_second=0, walked=Walked())
    assert numbers_in(np.stack([view.bgr for view in views])) == every
    cut = transcode.transcode_video(path, None, None, transcode.TranscodeSpec())
    (tmp_path / "made.mp4").write_bytes(cut.payload)
    frames = decode.read_frames(tmp_path / "made.mp4", range(cut.facts["num_frames"]), height=64, width=96)
    assert sorted(numbers_in(frames)) == numbers_in(frames)


def test_full_after_keyframes_is_full_afresh(tmp_path: Path, make_video: Make) -> None:
    videos = tmp_path / "videos"
    videos.mkdir()
    good = make_video("good.mp4", num_frames=48, height=120, width=160)
    shutil.copy(good, videos / "good.mp4")
    (videos / "zeroed.mp4").write_bytes(
        damage.zero_block(good.read_bytes(), size_bytes=400, within=(0.6, 1.0))
    )
    for run in ("one", "two"):
        ingested(tmp_path / run, ["good.mp4", "zeroed.mp4"])
    run_probe(tmp_path / "one", ProbeSpec(videos=videos, level="keyframes"))
    assert probe_file(str(videos / "zeroed.mp4"), "keyframes")["probe_status"] != "ok"

    for run in ("one", "two"):
        run_probe(tmp_path / run, ProbeSpec(videos=videos, level="full"))

    tables = [pl.read_parquet(tmp_path / run / "probe.parquet") for run in ("one", "two")]
    assert tables[0].equals(tables[1])
    assert tables[0]["integrity_level"].to_list() == ["full", "full"]


def test_a_message_that_ends_early_is_no_rotation(tmp_path: Path) -> None:
    source = write(tmp_path / "clip_265.mkv", codec="libx265", options=OPEN_GOP["libx265"], num_frames=12)
    unit = bytes([39 << 1, 1, 47, 1, 0x20, 0x80])

    path = copied(source, tmp_path / "cut.mp4", edit=lambda data: len(unit).to_bytes(4, "big") + unit + data)

    assert [probe_file(str(path), level)["rotation_degrees"] for level in LEVELS] == [0] * 4
