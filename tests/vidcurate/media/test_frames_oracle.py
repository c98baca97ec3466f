"""Frames of real clips, one by one, against the `ffmpeg` program."""

import csv
from pathlib import Path

import numpy as np
import pytest

from tests import frame_oracle
from tests.frame_oracle import needs_ffmpeg, psnr
from vidcurate.media import decode, headers, packets

# One of a kind, and small: the soak reads all of them.
QUICK = {
    "bbb_176x144_h263.3gp": "H.263",
    "bbb_642x642_vp9.webm": "VP9, an odd multiple of two",
    "bbb_800x640_h264_pyramid.mp4": "B-frame pyramid, pixels that are no squares",
    "decord_rot180.mov": "turned by 180 degrees",
    "decord_rot90.mov": "turned by 90 degrees",
    "decord_unordered.mov": "reordered at once",
    "dn_mpeg2.m2v": "MPEG program stream, no seek, a colour matrix that is none",
    "dn_kodak_mjpeg.avi": "full range, 4:2:2",
    "dn_sample_mpeg4.mp4": "MPEG-4, 190 px wide",
    "hf_66x50.mov": "an edit list, an odd half width",
    "libwebm_bbb_480p_vp9.webm": "VP9",
    "media3_android_slowmo.mp4": "variable rate",
    "media3_rot270.mp4": "turned by 270 degrees",
    "media3_rotate_reflect.mp4": "mirrored",
    "media3_sample.flv": "FLV",
    "moviepy_transparent.webm": "alpha beside the picture",
    "opencv_tree.avi": "Cinepak, RGB, empty packets",
    "skv_carphone_distorted.mp4": "pixels that are no squares",
    "tc_bt709_full.mp4": "BT.709, full range",
    "tc_h264_10bit.mp4": "10 bits",
    "tc_h265.mp4": "HEVC",
}


# FFmpeg 5.1 and 8 decode its MPEG-4 one level apart in some values.
OTHER_DECODER = "media3_sample.avi"


def _compare(path: Path, count: int, most: int, firsts: tuple[int, ...]) -> None:
    """Hold the first `most` of the clip's `count` frames, from several starts, against ffmpeg's."""
    size = {"height": 72, "width": 104}
    most = min(most, count)
    expected = frame_oracle.frames(path, most, **size)
    assert len(expected) == most
    frame_map = packets.frame_map_of(path)
    for first in {first for first in firsts if first < most} | {most - 1}:
        for stride, known in ((1, frame_map), (3, frame_map), (1, None))[: 3 if first else 2]:
            wanted = list(range(first, min(most, first + 4 * stride), stride))
            found = decode.read_frames(path, wanted, frame_map=known, accept_corrupt=True, **size)
            apart = np.abs(found.astype(int) - expected[wanted])
            assert apart.max() <= (path.name == OTHER_DECODER), (path.name, wanted, known is not None)
            assert (apart > 0).mean() < 1e-4, (path.name, wanted, known is not None)


@pytest.mark.engine
@needs_ffmpeg
@pytest.mark.parametrize("name", QUICK)
def test_frames_of_real_clips_are_those_of_the_ffmpeg_program(shared: Path, name: str) -> None:
    with (shared / "data" / "manifest.csv").open() as file:
        (count,) = [int(row["frames"]) for row in csv.DictReader(file) if row["file"] == name]
    _compare(shared / "data" / "clips" / name, count, 16, (0, 7))


@pytest.mark.engine
@needs_ffmpeg
@pytest.mark.soak
def test_frames_of_every_real_clip_are_those_of_the_ffmpeg_program(shared: Path) -> None:
    with (shared / "data" / "manifest.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if not row["decode_error"]]
    assert len(rows) > 50
    for row in rows:
        _compare(shared / "data" / "clips" / row["file"], int(row["frames"]), 150, (0, 1, 49, 100))


@pytest.mark.engine
@needs_ffmpeg
@pytest.mark.parametrize(
    "name",
    ["decord_rot180.mov", "decord_rot90.mov", "media3_rot270.mp4", "media3_rotate_reflect.mp4"],
)
def test_clips_are_turned_the_way_ffmpeg_turns_them(shared: Path, name: str) -> None:
    path = shared / "data" / "clips" / name
    header, _ = headers.read_header_and_index(path)
    size = {"height": header.height // 4 // 2 * 2, "width": header.width // 4 // 2 * 2}

    ours = decode.read_frames(path, [0, 1, 2], **size)
    theirs = frame_oracle.frames_as_ffmpeg_turns_them(path, 3, **size)

    assert psnr(ours, theirs) > 33
    for other in (np.flip(ours, 1), np.flip(ours, 2), np.flip(ours, (1, 2))):
        assert psnr(other, theirs) < psnr(ours, theirs) - 8
