"""FFmpeg's scaler gives the same bytes with and without gather instructions; the faster one is chosen."""

from collections.abc import Iterator

import av
import numpy as np
import pytest

from vidcurate.media import scale, slow_gather
from vidcurate.media.slow_gather import SLOW_GATHER


@pytest.fixture(autouse=True)
def flags() -> Iterator[int]:
    """Flags under which FFmpeg scales with gathers; a test leaves those of the process."""
    before = slow_gather.cpu_flags()
    if not before:
        pytest.skip("FFmpeg has one horizontal scaler here")
    slow_gather.set_cpu_flags(before & ~SLOW_GATHER)
    yield before & ~SLOW_GATHER
    slow_gather.set_cpu_flags(before)
    scale._scalers.of.cache_clear()


@pytest.mark.parametrize("wanted", [(240, 426), (144, 256), (241, 427), (720, 1280)], ids=str)
@pytest.mark.parametrize("size", [(1080, 1920), (720, 1280), (480, 852), (362, 641), (144, 176)], ids=str)
@pytest.mark.parametrize("pixels", ["yuv420p", "yuv444p", "yuv420p10le", "gray", "rgb24"])
def test_every_byte_is_the_same_with_and_without_gathers(
    pixels: str, size: tuple[int, int], wanted: tuple[int, int], flags: int
) -> None:
    frame = av.VideoFrame(size[1], size[0], pixels)
    chance = np.random.default_rng(sum(size))
    for plane in frame.planes:
        plane.update(chance.bytes(plane.buffer_size))
    pictures = []
    for one in (flags, flags | SLOW_GATHER):
        slow_gather.set_cpu_flags(one)
        scale._scalers.of.cache_clear()
        pictures.append(scale.cover(frame, *wanted, 1.0, (False, False, False)).copy())

    assert np.array_equal(pictures[0], pictures[1])


@pytest.mark.parametrize("is_slow", [True, False])
def test_the_faster_scaler_is_chosen_and_no_other_flag_is_changed(flags: int, is_slow: bool) -> None:
    if not flags & slow_gather._AVX2:
        pytest.skip("FFmpeg's scaler has no gathers here")

    chosen = slow_gather.choose_scaler(lambda tried: 1.0 if bool(tried & SLOW_GATHER) == is_slow else 2.0)

    assert chosen is is_slow
    assert slow_gather.cpu_flags() == (flags | SLOW_GATHER if is_slow else flags)


def test_a_flag_that_ffmpeg_set_stays() -> None:
    slow_gather.set_cpu_flags(slow_gather.cpu_flags() | SLOW_GATHER)

    assert slow_gather.choose_scaler(lambda tried: 1 / 0)
