"""A picture has the colours of the formulas, rounded once, and the same bytes on every processor."""

from collections.abc import Iterator

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from vidcurate.media import scale, slow_gather

STILL = (False, False, False)
MATRICES = {2: (0.299, 0.114), 1: (0.2126, 0.0722), 9: (0.2627, 0.0593)}  # BT.601 (default), 709, 2020
LIMITED, FULL = 1, 2
_AVX512, _AVX2 = 0x100000, 0x8000  # AV_CPU_FLAG_… of libavutil/cpu.h


def _frame(planes: list[NDArray[np.uint8]], colorspace: int = 2, color_range: int = 0) -> av.VideoFrame:
    """Return a 4:2:0 frame of these planes."""
    frame = av.VideoFrame(planes[0].shape[1], planes[0].shape[0], "yuv420p")
    for plane, values in zip(frame.planes, planes, strict=True):
        rows = np.zeros((plane.height, plane.line_size), np.uint8)
        rows[:, : plane.width] = values
        plane.update(rows.tobytes())
    frame.colorspace, frame.color_range = colorspace, color_range
    return frame


def _noise(height: int, width: int, *, least: int = 0, most: int = 255) -> list[NDArray[np.uint8]]:
    chance = np.random.default_rng(height + width)
    half = ((height + 1) // 2, (width + 1) // 2)
    light = chance.integers(least, most + 1, (height, width), np.uint8)
    return [light, *(chance.integers(least, most + 1, half, np.uint8) for _ in range(2))]


def _exact(planes: list[NDArray[np.uint8]], colorspace: int, color_range: int) -> NDArray[np.float64]:
    """Return RGB of half the size, by the formula; each chroma sample lies amid four of light."""
    height, width = planes[1].shape
    light, blue, red = (plane.astype(np.float64) for plane in planes)
    light = light.reshape(height, 2, width, 2).mean(axis=(1, 3))
    if color_range == LIMITED:
        light, blue, red = (light - 16) * 255 / 219, (blue - 128) * 255 / 224, (red - 128) * 255 / 224
    else:
        blue, red = blue - 128, red - 128
    of_red, of_blue = MATRICES[colorspace]
    reds, blues = light + 2 * (1 - of_red) * red, light + 2 * (1 - of_blue) * blue
    greens = (light - of_red * reds - of_blue * blues) / (1 - of_red - of_blue)
    return np.stack([reds, greens, blues], axis=-1).clip(0, 255)


@pytest.mark.parametrize("color_range", [LIMITED, FULL])
@pytest.mark.parametrize("colorspace", MATRICES)
@pytest.mark.parametrize("size", [(480, 852), (720, 1280)], ids=str)
def test_a_picture_of_half_the_size_is_the_formula_rounded_once(
    size: tuple[int, int], colorspace: int, color_range: int
) -> None:
    planes = _noise(*size, least=90, most=166)  # no value leaves 0 to 255
    height, width = size[0] // 2, size[1] // 2
    exact, frame = _exact(planes, colorspace, color_range), _frame(planes, colorspace, color_range)

    shown = scale.cover(frame, height, width, 1.0, STILL)

    assert np.abs(shown - exact).max() < 0.6
    packed = frame.reformat(width, height, "rgb24", interpolation="AREA").to_ndarray()
    assert np.abs(packed - exact).max() > 20  # what docs/order-and-loader.md says of it


@pytest.fixture
def every_processor() -> Iterator[list[int]]:
    """Yield FFmpeg's flags of this processor and of lesser ones, down to plain C."""
    flags = slow_gather.cpu_flags()
    if not flags:
        pytest.skip("FFmpeg's flags of the processor are set on x86 only")
    yield [flags, flags & ~_AVX512, flags & ~_AVX2 & ~_AVX512, 0]
    slow_gather.set_cpu_flags(flags)
    scale._scalers.of.cache_clear()


@pytest.mark.parametrize("wanted", [(240, 426), (144, 256), (241, 427), (360, 640)], ids=str)
@pytest.mark.parametrize("size", [(360, 640), (720, 1280), (362, 641), (144, 176)], ids=str)
@pytest.mark.parametrize("pixels", ["yuv420p", "yuvj420p", "yuv444p", "yuv420p10le", "gray", "rgb24", "nv12"])
def test_every_byte_is_the_same_with_and_without_vector_instructions(
    pixels: str, size: tuple[int, int], wanted: tuple[int, int], every_processor: list[int]
) -> None:
    frame, chance = av.VideoFrame(size[1], size[0], pixels), np.random.default_rng(sum(size))
    for plane in frame.planes:
        if pixels.endswith("10le"):
            plane.update(chance.integers(0, 1024, plane.buffer_size // 2, np.uint16).tobytes())
        else:
            plane.update(chance.bytes(plane.buffer_size))
    pictures = []
    for flags in every_processor:
        slow_gather.set_cpu_flags(flags)
        scale._scalers.of.cache_clear()
        pictures.append(scale.cover(frame, *wanted, 1.0, STILL))

    assert len({picture.tobytes() for picture in pictures}) == 1


@pytest.mark.parametrize("turn", [STILL, (True, False, True), (False, True, False), (True, True, True)])
def test_a_turned_picture_is_stored_plane_by_plane(turn: scale.Orientation) -> None:
    upright = scale.cover(_frame(_noise(64, 96)), 64, 96, 1.0, STILL)
    height, width = (96, 64) if turn[0] else (64, 96)

    shown = scale.cover(_frame(_noise(64, 96)), height, width, 1.0, turn)

    expected = upright.transpose(1, 0, 2) if turn[0] else upright
    expected = expected[:, ::-1] if turn[1] else expected
    assert np.array_equal(shown, expected[::-1] if turn[2] else expected)
    assert shown.transpose(2, 0, 1).flags.c_contiguous
