"""Any frames of any clip are those of a full decode, and show what was put into them."""

import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from tests import numbered_clips
from tests.numbered_clips import NUM_FRAMES, numbers_in
from vidcurate.errors import MediaError
from vidcurate.media import decode, encode, packets

UNEVEN = np.cumsum(np.resize([15, 17, 40, 33, 120, 41], NUM_FRAMES)).tolist()
X264 = "mbtree=0:"
HARD: dict[str, dict[str, Any]] = {
    "b_frames_at_the_end.mp4": {"gop": 60, "options": {"x264-params": X264 + "bframes=3:b-adapt=0"}},
    "open_gop.mkv": {"options": {"x264-params": X264 + "open-gop=1:bframes=3:b-adapt=0:keyint=12"}},
    "intra_refresh.mp4": {"options": {"x264-params": X264 + "intra-refresh=1:keyint=12:bframes=0"}},
    "hevc_open_gop.mp4": {"codec": "libx265", "options": {"x265-params": "log-level=none:ctu=32:pools=none"}},
    "edit_list.mp4": {"hidden": 7},
    "variable_rate.mp4": {"times": UNEVEN},
    "variable_rate.mkv": {"times": UNEVEN, "codec": "libvpx-vp9", "options": {"lag-in-frames": "16"}},
    "fragments.mov": {},
    "b_frames.avi": {"codec": "mpeg4", "options": {"bf": "2"}},
    "mpeg2.ts": {"codec": "mpeg2video", "options": {"bf": "2"}},
    "ten_bits.mp4": {"pixel_format": "yuv420p10le"},
    "odd.mkv": {"codec": "ffv1", "height": 63, "width": 97, "gop": 1},
    "odd_444.mp4": {"height": 63, "width": 97, "pixel_format": "yuv444p"},
    "alpha.mov": {"codec": "qtrle", "pixel_format": "argb"},
    "grey.mkv": {"codec": "ffv1", "pixel_format": "gray"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hard")


@pytest.mark.parametrize("name", HARD)
def test_any_frames_are_those_of_a_full_decode(folder: Path, name: str) -> None:
    path = numbered_clips.write(folder / name, **HARD[name])
    hidden = HARD[name].get("hidden", 0)
    count = NUM_FRAMES - hidden
    data, frame_map = path.read_bytes(), packets.frame_map_of(path)

    every = decode.read_frames(data, range(count), height=48, width=72)

    assert numbers_in(every) == list(range(hidden, NUM_FRAMES))
    assert frame_map is None or len(frame_map) == count
    assert (frame_map is None) == (name == "mpeg2.ts")
    for first in (0, 1, 5, 11, 12, 13, 23, count - 2, count - 1):
        for stride in (1, 4):
            wanted = list(range(first, min(count, first + 3 * stride), stride))
            for known in (frame_map, None):
                found = decode.read_frames(data, wanted, height=48, width=72, frame_map=known)
                assert np.array_equal(found, every[wanted]), (wanted, known is not None)


def test_a_number_may_stand_several_times(folder: Path) -> None:
    path = numbered_clips.write(folder / "twice.mp4")
    wanted = [3, 3, 4, 20, 20, 20]

    for known in (packets.frame_map_of(path), None):
        found = decode.read_frames(path, wanted, height=48, width=72, frame_map=known)
        assert numbers_in(found) == wanted


def test_a_map_of_another_file_gives_an_error_and_no_other_frames(folder: Path) -> None:
    path = numbered_clips.write(folder / "even.mp4")
    other = packets.frame_map_of(numbered_clips.write(folder / "uneven.mp4", times=UNEVEN))

    with pytest.raises(MediaError) as caught:
        decode.read_frames(path, [20, 21, 22], height=48, width=72, frame_map=other)
    assert caught.value.kind == "too_few_frames"


MATRICES = {"bt709": 1, "smpte170m": 6, "bt2020nc": 9}
COLOURS = [(200, 40, 40), (40, 180, 60), (50, 60, 210), (128, 128, 128), (240, 240, 240), (15, 15, 15)]


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("color_range", [1, 2])
@pytest.mark.parametrize("pixel_format", ["yuv420p", "yuv444p10le"])
def test_colours_come_back_by_the_matrix_and_range_that_the_file_names(
    tmp_path: Path, matrix: str, color_range: int, pixel_format: str
) -> None:
    image = np.repeat(np.repeat(np.array(COLOURS, dtype=np.uint8)[None], 16, 1), 64, 0)  # (64, 96, 3)
    path = tmp_path / "colours.mp4"
    planes = _to_yuv(image, matrix, is_full=color_range == 2)
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=24, options={"crf": "1"})
        stream.height, stream.width, stream.pix_fmt = 64, 96, pixel_format
        context = stream.codec_context
        context.thread_count, context.colorspace, context.color_range = 1, MATRICES[matrix], color_range
        frame = av.VideoFrame.from_ndarray(planes, format="yuv444p").reformat(format=pixel_format)
        frame.colorspace, frame.color_range = MATRICES[matrix], color_range
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)

    (found,) = decode.read_frames(path, [0], height=64, width=96)

    patches = found[16:48].reshape(32, len(COLOURS), 16, 3)[:, :, 4:12].mean(axis=(0, 2))
    assert np.abs(patches - np.array(COLOURS)).max() < 5


def _to_yuv(image: Any, matrix: str, *, is_full: bool) -> Any:
    """Return planes (3, H, W) of 8 bits by the formulas of ITU-R BT.601, BT.709 and BT.2020."""
    red, blue = {"bt709": (0.2126, 0.0722), "smpte170m": (0.299, 0.114), "bt2020nc": (0.2627, 0.0593)}[matrix]
    rgb = image.astype(np.float64) / 255
    luma = red * rgb[..., 0] + (1 - red - blue) * rgb[..., 1] + blue * rgb[..., 2]
    chroma = [(rgb[..., 2] - luma) / (2 - 2 * blue), (rgb[..., 0] - luma) / (2 - 2 * red)]
    light, colour = (255, 255) if is_full else (219, 224)
    planes = [luma * light + (0 if is_full else 16), *(value * colour + 128 for value in chroma)]
    return np.stack(planes).round().clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize(("a", "b", "c", "d"), [
    (1, 0, 0, 1), (-1, 0, 0, 1), (1, 0, 0, -1), (-1, 0, 0, -1),
    (0, 1, 1, 0), (0, 1, -1, 0), (0, -1, 1, 0), (0, -1, -1, 0),
])  # fmt: skip
def test_a_picture_is_turned_and_mirrored_as_its_matrix_says(
    folder: Path, a: int, b: int, c: int, d: int
) -> None:
    path = folder / "corner.mp4"
    if not path.exists():
        image = np.full((64, 96, 3), 30, dtype=np.uint8)
        image[:20, :30] = 240  # bright above on the left
        image[-20:, :30] = 130  # grey below on the left
        encode.write_video(path, image[None], fps=24, crf=1)
    data = bytearray(path.read_bytes())
    matrix_at = data.index(b"tkhd") + 4 + 40  # ISO/IEC 14496-12, 8.3.2, version 0
    data[matrix_at : matrix_at + 36] = struct.pack(
        ">9i", a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30
    )
    height, width = (96, 64) if b else (64, 96)

    (found,) = decode.read_frames(bytes(data), [0], height=height, width=width)

    for (x, y), light in {(10, 10): 240, (10, 54): 130, (86, 10): 30, (86, 54): 30}.items():
        column, row = a * x + c * y, b * x + d * y  # counted from the right or from below where negative
        assert abs(int(found[row % height, column % width].mean()) - light) < 8, (x, y)


def test_pixels_that_are_no_squares_are_shown_as_squares(tmp_path: Path) -> None:
    path = tmp_path / "wide.mkv"
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=24, options={"crf": "1"})
        stream.height, stream.width, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.thread_count = 1
        stream.codec_context.sample_aspect_ratio = Fraction(2, 1)
        image = np.full((64, 48, 3), 20, dtype=np.uint8)
        image[:, 16:32] = 235  # the middle third
        frame = av.VideoFrame.from_ndarray(image, format="rgb24")
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)

    (whole,) = decode.read_frames(path, [0], height=64, width=96)
    (square,) = decode.read_frames(path, [0], height=64, width=64)

    assert (whole[32, 36:60] > 200).all()
    assert (whole[32, :28] < 60).all()
    assert (square[32, 20:44] > 200).all()
    assert (square[32, :12] < 60).all()


def test_decoding_and_scaling_start_no_thread(run_python, folder: Path) -> None:  # type: ignore[no-untyped-def]
    path = numbered_clips.write(folder / "threads.mp4", height=256, width=256, num_frames=8)

    reported = run_python(
        "import os\n"
        "from pathlib import Path\n"
        "from vidcurate.media.decode import read_frames\n"
        "before = len(os.listdir('/proc/self/task')) if os.path.isdir('/proc/self/task') else 0\n"
        f"read_frames(Path({str(path)!r}), [1, 2, 3], height=64, width=64)\n"
        "print(before, len(os.listdir('/proc/self/task')) if before else 0)"
    )

    before, after = reported.split()
    assert before == after


AT_ONCE = """
import sys, threading
import av, numpy as np
from vidcurate.media.scale import cover

sys.setswitchinterval(1e-6)
found = []

def grey(level):
    picture = np.full((360, 640, 3), level, np.uint8)
    return av.VideoFrame.from_ndarray(picture, "rgb24").reformat(format="yuv420p")

def work(level):
    frame = grey(level)
    alone = expected[level]
    found.append(all((cover(frame, 64, 64, 1.0) == alone).all() for _ in range(200)))

levels = range(0, 256, 64)
expected = {}
for level in levels:
    frame = grey(level)
    expected[level] = cover(frame, 64, 64, 1.0).copy()
threads = [threading.Thread(target=work, args=(level,)) for level in levels]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(found)
"""


def test_threads_that_decode_at_once_do_not_show_each_others_pictures(run_python) -> None:  # type: ignore[no-untyped-def]
    assert run_python(AT_ONCE).strip() == "[True, True, True, True]"
