import csv
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import moving_square
from vidcurate.curation.demo_data import damage
from vidcurate.errors import MediaError
from vidcurate.media import decode, encode, headers

Make = Callable[..., Path]

KINDS = [
    ("a.mp4", {"codec": "libx264"}),
    ("b.mp4", {"codec": "libx265"}),
    ("c.webm", {"codec": "libvpx-vp9"}),
    ("d.webm", {"codec": "libvpx"}),
    ("e.avi", {"codec": "mpeg4", "crf": None}),
    ("f.mkv", {"codec": "mpeg4", "crf": None}),
    ("g.mp4", {"codec": "libx264", "container_options": {"movflags": "frag_keyframe+empty_moov"}}),
]


@pytest.mark.parametrize(("name", "options"), KINDS)
def test_header_and_index_agree_with_what_was_written(make_video: Make, name: str, options: dict) -> None:  # type: ignore[type-arg]
    path = make_video(name, num_frames=30, gop=12, **options)

    header, index = headers.read_header_and_index(path)

    assert (header.width, header.height, header.rotation_degrees) == (96, 64, 0)
    assert header.fps == pytest.approx(24.0)
    assert index.num_frames == 30 == decode.count_decodable_frames(path)
    assert index.duration_seconds == pytest.approx(30 / 24, abs=0.01)
    assert index.num_keyframes >= 1
    assert not index.is_variable_fps
    assert index.end_offset_bytes is None or index.end_offset_bytes <= path.stat().st_size


@pytest.mark.parametrize(("name", "options"), KINDS)
def test_frames_reached_by_a_seek_are_those_reached_from_the_start(
    make_video: Make,
    name: str,
    options: dict,  # type: ignore[type-arg]
) -> None:
    path = make_video(name, num_frames=30, gop=12, **options)
    every = decode.read_frames(path, range(30), height=32, width=48)

    for start in (1, 11, 12, 13, 25):
        wanted = list(range(start, min(start + 4, 30)))
        assert np.array_equal(
            decode.read_frames(path.read_bytes(), wanted, height=32, width=48), every[wanted]
        )


def test_every_frame_is_the_one_that_was_written(make_video: Make) -> None:
    path = make_video("exact.mp4", num_frames=24, crf=1)

    frames = decode.read_frames(path, range(24), height=64, width=96)

    corners = frames[:, 4:12, 4:12].mean(axis=(1, 2, 3))
    assert np.abs(corners - 8 * np.arange(24)).max() < 4
    assert np.abs(frames.astype(int) - moving_square()).mean() < 3


def test_writing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    for name, options in KINDS:
        encode.write_video(tmp_path / f"1{name}", moving_square(8), fps=24, **options)  # type: ignore[arg-type]
        encode.write_video(tmp_path / f"2{name}", moving_square(8), fps=24, **options)  # type: ignore[arg-type]
        assert (tmp_path / f"1{name}").read_bytes() == (tmp_path / f"2{name}").read_bytes(), name


@pytest.mark.parametrize("turn", [90, 180, 270])
def test_rotation_is_in_the_header_and_applied_to_the_frames(make_video: Make, turn: int) -> None:
    upright = make_video("upright.mp4", num_frames=4, crf=1)
    turned = make_video("turned.mp4", num_frames=4, crf=1, rotation_degrees=turn)

    header, _ = headers.read_header_and_index(turned)
    size = (96, 64) if turn != 180 else (64, 96)  # (height, width) as displayed
    shown = decode.read_frames(turned, range(4), height=size[0], width=size[1])
    plain = decode.read_frames(upright, range(4), height=64, width=96)

    assert header.rotation_degrees == turn
    assert (header.height, header.width) == size
    assert np.array_equal(shown, np.rot90(plain, -turn // 90, axes=(1, 2)))


def test_frames_cover_the_size_and_keep_the_centre(make_video: Make) -> None:
    path = make_video("wide.mp4", num_frames=1, height=64, width=192)

    square = decode.read_frames(path, [0], height=64, width=64)
    whole = decode.read_frames(path, [0], height=64, width=192)

    assert np.array_equal(square, whole[:, :, 64:128])


@pytest.mark.parametrize(
    ("content", "kind"),
    [(b"", "empty"), (b"not a video, but text", "unreadable"), (b"\0" * 4096, "unreadable")],
)
def test_a_file_that_is_no_video_is_named(tmp_path: Path, content: bytes, kind: str) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(content)

    with pytest.raises(MediaError, match=r"clip\.mp4: ") as caught:
        headers.read_header_and_index(path)

    assert caught.value.kind == kind


def test_a_file_that_is_not_there_is_missing(tmp_path: Path) -> None:
    with pytest.raises(MediaError, match="no such file") as caught:
        decode.read_frames(tmp_path / "none.mp4", [0], height=8, width=8)
    assert caught.value.kind == "missing"


def test_a_frame_behind_the_end_is_an_error_and_not_a_black_frame(make_video: Make) -> None:
    path = make_video("short.mp4", num_frames=10)

    for wanted in ([8, 9, 10], [10], [50]):
        with pytest.raises(MediaError, match="does not exist") as caught:
            decode.read_frames(path, wanted, height=16, width=16)
        assert caught.value.kind == "too_few_frames"


KEPT_BY_READS = """
import ctypes, gc, sys
from pathlib import Path
from vidcurate.curation.demo_data import damage
from vidcurate.media import decode
from vidcurate.errors import MediaError

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "abcdefghij"]

library = ctypes.CDLL(None)
if not hasattr(library, "mallinfo2"):
    print("unknown")
    sys.exit()
library.mallinfo2.restype = Info

def in_use():
    gc.collect()
    now = library.mallinfo2()
    return now.h + now.e  # uordblks and hblkhd

def read(count):
    for _ in range(count):
        for path in sys.argv[1:]:
            try:
                decode.read_frames(Path(path), [2, 3], height=32, width=48)
            except MediaError:
                continue

read(20)
before = in_use()
read(200)
print((in_use() - before) / 200 / len(sys.argv[1:]))
"""


def test_reads_that_end_early_or_fail_leave_no_memory_behind(make_video: Make, tmp_path: Path) -> None:
    path = make_video("a.mp4", num_frames=30, gop=12)
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(damage.zero_block(path.read_bytes(), size_bytes=1000))

    said = subprocess.run(
        [sys.executable, "-c", KEPT_BY_READS, str(path), str(broken)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()

    if said == "unknown":
        pytest.skip("the C library does not say what is allocated")
    assert float(said) < 50  # bytes a read; an unclosed demux of PyAV's keeps 150


def test_frame_numbers_must_rise(make_video: Make) -> None:
    with pytest.raises(ValueError, match="must rise"):
        decode.read_frames(make_video(), [3, 2], height=8, width=8)


def test_a_sound_file_has_no_video_stream(tmp_path: Path) -> None:
    import wave

    with wave.open(str(tmp_path / "sound.wav"), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(b"\0\0" * 8000)

    with pytest.raises(MediaError) as caught:
        headers.read_header_and_index(tmp_path / "sound.wav")
    assert caught.value.kind == "no_video_stream"


def test_damage_that_the_decoder_conceals_is_an_error(make_video: Make) -> None:
    data = bytearray(make_video("flip.mp4", num_frames=48, gop=48, height=128, width=128).read_bytes())
    start = data.index(b"mdat") + 600
    data[start : start + 200] = bytes(200)

    with pytest.raises(MediaError) as caught:
        decode.read_frames(bytes(data), range(48), height=64, width=64)
    assert caught.value.kind in ("corrupt_frame", "unreadable", "too_few_frames")


@pytest.mark.parametrize("codec", ["mjpeg", "png"])
def test_an_image_is_what_its_bytes_say(codec: str) -> None:
    data = encode.encode_image(moving_square(1)[0], codec)

    assert data.startswith(b"\xff\xd8" if codec == "mjpeg" else b"\x89PNG")


def test_real_clips_have_the_sizes_and_counts_of_their_manifest(shared: Path) -> None:
    # decord_corrupted.mp4 indexes 50 frames of which 28 decode: only decoding can tell.
    with (shared / "data" / "manifest.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if not row["decode_error"]]

    for row in rows:
        header, index = headers.read_header_and_index(shared / "data" / "clips" / row["file"])
        # The manifest turns the coded size and leaves out the shape of pixels.
        turned = (header.coded_width, header.coded_height)[:: -1 if header.rotation_degrees % 180 else 1]
        assert turned == (int(row["display_width"]), int(row["display_height"])), row
        shape = header.sample_aspect_ratio ** (-1 if header.rotation_degrees % 180 else 1)
        assert abs(header.width / header.height - turned[0] / turned[1] * shape) < 0.01, row
        assert index.num_frames == int(row["frames"]), row
        assert header.has_audio == (row["has_audio"] == "True"), row
