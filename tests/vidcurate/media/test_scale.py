"""A picture in two passes is, byte for byte, that of FFmpeg's one pass; where it is not, one is taken."""

from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from vidcurate.media import scale


def _frame(height: int, width: int, *, seed: int, colorspace: int = 2, color_range: int = 0) -> av.VideoFrame:
    """Return a 4:2:0 frame of ramps, edges in colour, and noise over all values of a byte."""
    chance = np.random.default_rng(seed)
    frame = av.VideoFrame(width, height, "yuv420p")
    for number, plane in enumerate(frame.planes):
        rows, columns = np.indices((plane.height, plane.line_size))
        values = rows * (number + 1) + columns * 2 + 97 * (columns // 16 % 2) + 150 * (rows // 24 % 2)
        noisy = np.where(rows % 64 < 32, values, chance.integers(0, 256, values.shape))
        plane.update((noisy % 256).astype(np.uint8).tobytes())
    frame.colorspace, frame.color_range = colorspace, color_range
    return frame


def _by(filters: scale.Filters, frame: av.VideoFrame) -> NDArray[np.uint8]:
    colours = f"colorspace={frame.colorspace:d}:range={frame.color_range:d}"
    source = f"video_size={frame.width}x{frame.height}:pix_fmt=yuv420p:time_base=1/1000:{colours}"
    graph = scale.graph_of(source, filters)
    graph.vpush(frame)
    image: NDArray[Any] = graph.vpull().to_ndarray()
    return image


@pytest.mark.parametrize(
    "colours", [(2, 0), (1, 1), (1, 2), (9, 1)], ids=str
)  # BT.601, 709, full range, 2020
@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        ((720, 1280), (256, 256)),
        ((480, 720), (240, 426)),
        ((1080, 1920), (144, 256)),
        ((642, 642), (256, 256)),
    ],
    ids=str,
)
def test_a_picture_in_two_passes_is_that_of_one(
    size: tuple[int, int], wanted: tuple[int, int], colours: tuple[int, int]
) -> None:
    frame = _frame(*size, seed=sum(size), colorspace=colours[0], color_range=colours[1])
    still = (False, False, False)
    for place in (None, 0, 2**31 + 12345):
        crop, flags = scale.chain_of(frame.format, 1.0, *wanted, place)
        cut_height, cut_width, *_ = scale.crop_of(frame.format, 1.0, *wanted, place)
        named = f"colorspace={colours[0]}:range={colours[1]}"

        shown = scale.cover(frame, *wanted, 1.0, still, place=place)

        assert scale.two_passes_are_exact(cut_height, cut_width, named, *wanted, flags)
        assert np.array_equal(shown, _by(scale.one_pass_filters(crop, *wanted, flags), frame))
        assert np.array_equal(shown, _by(scale.two_pass_filters(crop, *wanted, flags), frame))


def test_where_two_passes_round_otherwise_one_is_taken() -> None:
    frame, wanted = _frame(360, 640, seed=1), (240, 426)  # three rows become two: FFmpeg takes two for each

    shown = scale.cover(frame, *wanted, 1.0, (False, False, False))

    one, two = (
        _by(way("", *wanted, "area"), frame) for way in (scale.one_pass_filters, scale.two_pass_filters)
    )
    assert not scale.two_passes_are_exact(360, 640, "colorspace=2:range=0", *wanted, "area")
    assert np.array_equal(shown, one)
    assert not np.array_equal(shown, two)


@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        ((1080, 1920), (240, 426)),
        ((360, 640), (240, 426)),
        ((480, 640), (241, 427)),
        ((270, 480), (240, 360)),
        ((144, 176), (256, 256)),
        ((720, 480), (240, 480)),
    ],
    ids=str,
)
def test_a_narrow_frame_tells_of_a_whole_one_whether_two_passes_are_exact(
    size: tuple[int, int], wanted: tuple[int, int]
) -> None:
    flags = "area" if wanted[0] * wanted[1] < size[0] * size[1] else "bicubic"
    noise, chance = av.VideoFrame(size[1], size[0], "yuv420p"), np.random.default_rng(3)
    for plane in noise.planes:
        plane.update(chance.bytes(plane.buffer_size))
    noise.colorspace = 2

    one, two = (
        _by(way("", *wanted, flags), noise) for way in (scale.one_pass_filters, scale.two_pass_filters)
    )

    reported = scale.two_passes_are_exact(*size, "colorspace=2:range=0", *wanted, flags)
    assert reported == np.array_equal(one, two)
