"""From a decoded frame to a picture of the wanted size: cut, scaled and converted by FFmpeg.

The picture is that of `crop, scale, format=rgb24`, as the `ffmpeg` program would run it: cutting first moves
no byte and spares scaling what is thrown away. FFmpeg's one pass sums rows for RGB without vector
instructions, but has them for planes; so a picture is scaled to 4:2:2 and then converted, wherever a frame of
noise has shown that every byte comes out the same (it does not where one pass takes two rows for one: it
cuts off what the other rounds). Colour matrix and range are those that the frame names (BT.601 and
limited where it names none, as FFmpeg takes them); HDR is not tone-mapped, alpha is dropped. Turning comes
last, on the small picture.
"""

import struct
import threading
from functools import lru_cache
from typing import Any

import numpy as np
from av import VideoFormat, VideoFrame
from av.filter import Graph
from av.sidedata.sidedata import Type as SideData
from numpy.typing import NDArray

from vidcurate.media.conversion import Conversion

_MOST_SCALERS = 32  # 1 ms to make, about 1 MB each; most data sets have few sizes
_MOST_SHAPES = 1000  # for which is known whether two passes make the same picture
_TRIED_COLUMNS = 32
_TRIED = "yuv420p"  # what nearly all videos are; others go through in one pass
_UNSPECIFIED = (
    2  # FFmpeg refuses transfer curves and primaries that it does not know (PyAV 2208); unused here
)
_BT709 = 1  # what FFmpeg takes for the matrix "RGB" of a picture that is none


Filters = tuple[tuple[str, str], ...]  # name and arguments


def in_one_pass(crop: str, height: int, width: int, flags: str) -> Filters:
    """Return the filters that cut, scale and convert as `ffmpeg` does by itself."""
    return (
        *((("crop", crop),) if crop else ()),
        ("scale", f"{width}:{height}:flags={flags}"),
        ("format", "rgb24"),
    )


def in_two_passes(crop: str, height: int, width: int, flags: str) -> Filters:
    """Return the filters that scale to 4:2:2 and convert afterwards; colour is as wide as one pass has it."""
    return (
        *((("crop", crop),) if crop else ()),
        ("scale", f"{width}:{height}:flags={flags}+accurate_rnd"),
        ("format", "yuv422p"),
        ("scale", "flags=accurate_rnd"),  # without it FFmpeg converts by another, coarser arithmetic
        ("format", "rgb24"),
    )


def quickly(crop: str, height: int, width: int, flags: str) -> Filters:
    """Return the filters that scale to 4:2:2 and convert with vector instructions, which round otherwise."""
    *scaled, _, rgb = in_two_passes(crop, height, width, flags)
    return (*scaled, ("scale", "flags=bicubic"), rgb)


def graph_of(source: str, filters: Filters) -> Graph:
    """Return the filters, ready for frames of this source."""
    graph = Graph()
    graph.threads = 1
    chain = [graph.add("buffer", source), *(graph.add(*one) for one in filters), graph.add("buffersink")]
    graph.link_nodes(*chain).configure()
    return graph


def _source_of(width: int, height: int, pixels: str, colours: str) -> str:
    return f"video_size={width}x{height}:pix_fmt={pixels}:time_base=1/1000:{colours}"


@lru_cache(maxsize=_MOST_SHAPES)
def two_passes_are_exact(
    cut_height: int, cut_width: int, colours: str, height: int, width: int, flags: str
) -> bool:
    """Say whether both ways make the same bytes of 4:2:0 noise of this size; 1 to 2 ms, asked once.

    What can differ is how rows are summed, which no column changes: so the noise is as high as the picture
    and a few columns wide, scaled in width by about as much.
    """
    narrow = _TRIED_COLUMNS + width % 2  # FFmpeg converts odd widths by another way
    cut_width = narrow if cut_width == width else max(2, round(cut_width / width * narrow / 2) * 2)
    width = narrow
    source = _source_of(cut_width, cut_height, _TRIED, colours)
    noise = VideoFrame(cut_width, cut_height, _TRIED)
    chance = np.random.default_rng(0)
    for plane in noise.planes:
        plane.update(chance.bytes(plane.buffer_size))
    pictures = []
    for filters in (in_one_pass, in_two_passes):
        graph = graph_of(source, filters("", height, width, flags))
        graph.vpush(noise)
        pictures.append(graph.vpull().to_ndarray())
    return np.array_equal(pictures[0], pictures[1])


def _scaler(
    size: tuple[int, int],
    pixels: str,
    colourspace: int,
    colour_range: int,
    sample_aspect_ratio: float,
    height: int,
    width: int,
    place: int | None,
    conversion: Conversion,
) -> Graph:
    """Return the filters for frames of this kind: asked for each frame, so by nothing that must be made."""
    shown = VideoFormat(pixels, *size)
    crop, flags = chain_of(shown, sample_aspect_ratio, height, width, place)
    cut_height, cut_width, *_ = cut_of(shown, sample_aspect_ratio, height, width, place)
    colours = f"colorspace={colourspace:d}:range={colour_range:d}"
    filters = in_one_pass
    if pixels == _TRIED and (cut_height, cut_width) != (height, width):  # as it is, FFmpeg converts at once
        if conversion == "quick":
            filters = quickly
        elif two_passes_are_exact(cut_height, cut_width, colours, height, width, flags):
            filters = in_two_passes
    return graph_of(_source_of(*size, pixels, colours), filters(crop, height, width, flags))


class _Scalers(threading.local):
    """A thread's own: a graph that two threads push frames into gives one the other's pictures."""

    def __init__(self) -> None:
        self.of = lru_cache(maxsize=_MOST_SCALERS)(_scaler)


_scalers = _Scalers()

Turn = tuple[bool, bool, bool]


def turn_of(frame: Any) -> Turn:
    """Return whether the picture must be transposed, then flipped left to right, then upside down.

    The display matrix maps (x, y) to (a·x + c·y, b·x + d·y); it says rotations and reflections alike
    (ISO/IEC 14496-12, 8.3.2). Ask once a clip: a frame whose side data was looked at refers to itself, and
    stays in memory until a cyclic collection.
    """
    matrix = frame.side_data.get(SideData.DISPLAYMATRIX)
    if matrix is None:
        return False, False, False
    a, b, _, c, d = struct.unpack_from("=5i", bytes(matrix))
    if abs(b) > abs(a):
        return True, c < 0, b < 0
    return False, a < 0, d < 0


def cut_of(
    shown: VideoFormat, sample_aspect_ratio: float, height: int, width: int, place: int | None = None
) -> tuple[int, int, int, int]:
    """Return (height, width, top, left) of a part of frames of this format that has the shape height x width.

    It is as large as fits, in the middle, or where the 32 bits of `place` say: all places that there are come
    from equally many numbers. In whole samples of colour, so that brightness and colour stay together.
    """
    tall, wide = 4 // (shown.chroma_height(4) or 4), 4 // (shown.chroma_width(4) or 4)
    shape = width / height / sample_aspect_ratio
    cut_height = min(shown.height, max(tall, round(shown.width / shape / tall) * tall))
    cut_width = min(shown.width, max(wide, round(shown.height * shape / wide) * wide))
    fallback_height, fallback_width = shown.height - cut_height, shown.width - cut_width
    if place is None:
        return cut_height, cut_width, fallback_height // 2 // tall * tall, fallback_width // 2 // wide * wide
    top, left = (
        ((fallback // sample + 1) * place >> 32) * sample
        for fallback, sample in ((fallback_height, tall), (fallback_width, wide))
    )
    return cut_height, cut_width, top, left


def chain_of(
    shown: VideoFormat, sample_aspect_ratio: float, height: int, width: int, place: int | None = None
) -> tuple[str, str]:
    """Return the crop ("" for none) and the scaler's flags that give frames this size before turning."""
    cut_height, cut_width, top, left = cut_of(shown, sample_aspect_ratio, height, width, place)
    is_whole = (cut_height, cut_width) == (shown.height, shown.width)
    shrinks = height * width < cut_height * cut_width
    return (
        "" if is_whole else f"{cut_width}:{cut_height}:{left}:{top}:exact=1",
        "area" if shrinks else "bicubic",
    )


def _pixels(frame: VideoFrame) -> NDArray[np.uint8]:
    """Return a view of a frame of packed RGB: `to_ndarray` copies it where its rows are padded."""
    plane = frame.planes[0]
    return np.ndarray((frame.height, frame.width, 3), np.uint8, plane, strides=(plane.line_size, 3, 1))


def cover(
    frame: Any,
    height: int,
    width: int,
    sample_aspect_ratio: float,
    turn: Turn | None = None,
    *,
    place: int | None = None,
    mirror: bool = False,
    conversion: Conversion = "ffmpeg",
) -> NDArray[np.uint8]:
    """Return the middle of the frame, upright, as uint8 RGB (height, width, 3): a view of FFmpeg's memory.

    `turn` is that of the clip (`turn_of` its first frame) where the caller knows it. `place`: of the cut, as
    for `cut_of`. `mirror`: left to right, as seen upright.
    """
    transposed, mirrored, upside_down = turn_of(frame) if turn is None else turn
    if transposed:
        height, width = width, height
    frame.color_trc = frame.color_primaries = _UNSPECIFIED
    if frame.colorspace == 0 and not frame.format.is_rgb:
        frame.colorspace = _UNSPECIFIED
    graph = _scalers.of(
        (frame.width, frame.height),
        frame.format.name,
        frame.colorspace,
        frame.color_range,
        sample_aspect_ratio,
        height,
        width,
        place,
        conversion,
    )
    graph.vpush(frame)
    image = _pixels(graph.vpull())
    if transposed:
        image = image.transpose(1, 0, 2)
    if mirrored != mirror:
        image = image[:, ::-1]
    return image[::-1] if upside_down else image


def pixel_shape(stream: Any) -> float:
    """Return a pixel's width over its height, from the container or else from the decoder."""
    return float(stream.sample_aspect_ratio or stream.codec_context.sample_aspect_ratio or 1)
