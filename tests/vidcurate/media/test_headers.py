"""Headers of real files: the codec's own name, the display rotation, and the size as displayed."""

import os
import struct
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import pytest

from tests.conftest import moving_square
from vidcurate.errors import MediaError
from vidcurate.media import decode
from vidcurate.media.encode import write_video
from vidcurate.media.headers import read_header_and_index

Make = Callable[..., Path]


def with_pixel_shape(path: Path, shape: Fraction, rotation_degrees: int = 0) -> Path:
    """Write 12 coded frames of 96 x 64 whose pixels have this shape."""
    with av.open(os.fspath(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=24)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        stream.codec_context.sample_aspect_ratio = shape
        if rotation_degrees:
            stream.set_display_rotation(-rotation_degrees)
        for image in moving_square(12):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
@pytest.mark.parametrize("name", ["clip.mp4", "clip.mkv", "clip.webm"])
def test_the_header_turns_as_the_decoder_does(make_video: Make, name: str, degrees: int) -> None:
    codec = {"codec": "libvpx-vp9"} if name.endswith("webm") else {}
    path = make_video(name, num_frames=4, rotation_degrees=degrees, **codec)

    header, _ = read_header_and_index(path)

    with av.open(os.fspath(path)) as container:
        turned = -int(next(container.decode(video=0)).rotation) % 360
    assert header.rotation_degrees == turned == degrees
    assert (header.width, header.height) == ((64, 96) if degrees % 180 else (96, 64))
    assert (header.coded_width, header.coded_height) == (96, 64)


@pytest.mark.parametrize(("a", "b", "c", "d"), [
    (-1, 0, 0, 1), (1, 0, 0, -1), (0, 1, 1, 0), (0, -1, -1, 0), (0, 1, -1, 0), (-1, 0, 0, -1),
])  # fmt: skip
def test_a_mirrored_clip_has_the_same_rotation_in_mp4_and_matroska(
    make_video: Make, tmp_path: Path, a: int, b: int, c: int, d: int
) -> None:
    path, copy = make_video("clip.mp4", num_frames=4), tmp_path / "copy.mkv"
    data = bytearray(path.read_bytes())
    matrix_at = data.index(b"tkhd") + 4 + 40  # ISO/IEC 14496-12, 8.3.2, version 0
    data[matrix_at : matrix_at + 20] = struct.pack(">5i", a << 16, b << 16, 0, c << 16, d << 16)
    path.write_bytes(data)
    with av.open(os.fspath(path)) as before, av.open(os.fspath(copy), "w") as after:
        stream = after.add_stream_from_template(before.streams.video[0])
        for packet in before.demux(before.streams.video[0]):
            if packet.size:
                packet.stream = stream
                after.mux(packet)

    turned = []
    for one in (path, copy):
        with av.open(os.fspath(one)) as container:
            turned.append(-int(next(container.decode(video=0)).rotation) % 360)

    assert [read_header_and_index(one)[0].rotation_degrees for one in (path, copy)] == turned
    assert turned[0] == turned[1]


@pytest.mark.parametrize(("suffix", "degrees"), [("mp4", 0), ("mp4", 90), ("mkv", 0), ("mkv", 270)])
def test_width_and_height_count_the_shape_of_pixels(tmp_path: Path, suffix: str, degrees: int) -> None:
    path = with_pixel_shape(tmp_path / f"clip.{suffix}", Fraction(3, 4), degrees)

    header, _ = read_header_and_index(path)

    assert header.sample_aspect_ratio == pytest.approx(0.75)
    assert (header.width, header.height) == ((64, 72) if degrees else (72, 64))
    # The frame read at this size shows the whole picture, with nothing cut off.
    frame = decode.read_frames(path, [11], height=header.height, width=header.width)[0]
    corner = frame[:10, -8:] if degrees == 90 else frame[-8:, :8] if degrees == 270 else frame[:10, :8]
    assert abs(int(corner[4, 4, 0]) - 88) <= 12


@pytest.mark.skipif("libsvtav1" not in av.codec.codecs_available, reason="this PyAV writes no AV1")
def test_the_codec_is_not_the_name_of_its_decoder(make_video: Make) -> None:
    header, _ = read_header_and_index(make_video("clip.mp4", num_frames=4, codec="libsvtav1", crf=40))
    assert header.codec == "av1"


@pytest.mark.skipif("libsvtav1" not in av.codec.codecs_available, reason="this PyAV writes no AV1")
def test_a_stream_without_parameter_sets_has_no_size_and_no_header(make_video: Make) -> None:
    path = make_video("clip.ts", num_frames=6)
    data = path.read_bytes()
    assert b"\0\0\1\x67" in data
    path.write_bytes(data.replace(b"\0\0\1\x67", b"\0\0\1\x0c"))  # the parameter set becomes filler

    with pytest.raises(MediaError, match=r"clip\.ts: the video stream has no size") as caught:
        read_header_and_index(path)
    assert caught.value.kind == "unreadable"


def test_the_count_of_an_ivf_header_is_not_believed(make_video: Make, tmp_path: Path) -> None:
    source, copy = make_video("clip.webm", num_frames=6, codec="libvpx-vp9"), tmp_path / "copy.ivf"
    with av.open(os.fspath(source)) as before, av.open(os.fspath(copy), "w") as after:
        stream = after.add_stream_from_template(before.streams.video[0])
        for packet in before.demux(before.streams.video[0]):
            if packet.dts is not None:
                packet.stream = stream
                after.mux(packet)
    data = bytearray(copy.read_bytes())
    data[24:28] = (240).to_bytes(4, "little")  # FFmpeg's remux writes ticks there
    copy.write_bytes(data)

    header, index = read_header_and_index(copy)

    assert (header.num_frames, index.num_frames) == (None, 6)


def test_an_av1_encoder_leaves_no_real_time_priority_behind(tmp_path: Path) -> None:
    """Run by root, SVT-AV1 made the process SCHED_FIFO: a spinning child then starved all of its core."""
    write_video(tmp_path / "clip.mp4", moving_square(2), fps=24.0, codec="libsvtav1", crf=40)

    assert os.sched_getscheduler(0) == os.SCHED_OTHER
