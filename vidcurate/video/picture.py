"""From a decoded frame to a picture of the wanted size: cut, scaled and converted in one pass of FFmpeg's.

The chain is `crop, scale, format=rgb24`, as the `ffmpeg` program would run it: cutting first moves no byte
and spares scaling what is thrown away. Colour matrix and range are those that the frame names (BT.601 and
limited where it names none, as FFmpeg takes them); HDR is not tone-mapped, alpha is dropped. Turning comes
last, on the small picture.
"""

import struct
import threading
from functools import lru_cache
from typing import Any

import numpy as np
from av.filter import Graph
from av.sidedata.sidedata import Type as SideData
from numpy.typing import NDArray

_MOST_SCALERS = 8  # about 1 MB each; most data sets have few sizes
_UNSPECIFIED = (
    2  # FFmpeg refuses transfer curves and primaries that it does not know (PyAV 2208); unused here
)
_BT709 = 1  # what FFmpeg takes for the matrix "RGB" of a picture that is none


def _scaler(source: str, crop: str, height: int, width: int, flags: str) -> Graph:
    graph = Graph()
    graph.threads = 1
    filters = [
        graph.add("buffer", source),
        *([graph.add("crop", crop)] if crop else []),
        graph.add("scale", f"{width}:{height}:flags={flags}"),
        graph.add("format", "rgb24"),
        graph.add("buffersink"),
    ]
    graph.link_nodes(*filters).configure()
    return graph


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
    frame: Any, sample_aspect_ratio: float, height: int, width: int, place: int | None = None
) -> tuple[int, int, int, int]:
    """Return (height, width, top, left) of a part of the frame that has the shape height x width.

    It is as large as fits, in the middle, or where the 32 bits of `place` say: all places that there are come
    from equally many numbers. In whole samples of colour, so that brightness and colour stay together.
    """
    format_ = frame.format
    tall, wide = 4 // (format_.chroma_height(4) or 4), 4 // (format_.chroma_width(4) or 4)
    shape = width / height / sample_aspect_ratio
    cut_height = min(frame.height, max(tall, round(frame.width / shape / tall) * tall))
    cut_width = min(frame.width, max(wide, round(frame.height * shape / wide) * wide))
    spare_height, spare_width = frame.height - cut_height, frame.width - cut_width
    if place is None:
        return cut_height, cut_width, spare_height // 2 // tall * tall, spare_width // 2 // wide * wide
    top, left = (
        ((spare // sample + 1) * place >> 32) * sample
        for spare, sample in ((spare_height, tall), (spare_width, wide))
    )
    return cut_height, cut_width, top, left


def chain_of(
    frame: Any, sample_aspect_ratio: float, height: int, width: int, place: int | None = None
) -> tuple[str, str]:
    """Return the crop ("" for none) and the scaler's flags that give the frame this size before turning."""
    cut_height, cut_width, top, left = cut_of(frame, sample_aspect_ratio, height, width, place)
    is_whole = (cut_height, cut_width) == (frame.height, frame.width)
    shrinks = height * width < cut_height * cut_width
    return (
        "" if is_whole else f"{cut_width}:{cut_height}:{left}:{top}:exact=1",
        "area" if shrinks else "bicubic",
    )


def cover(
    frame: Any,
    height: int,
    width: int,
    sample_aspect_ratio: float,
    turn: Turn | None = None,
    *,
    place: int | None = None,
    mirror: bool = False,
) -> NDArray[np.uint8]:
    """Return the middle of the frame, upright, as uint8 RGB (height, width, 3): a view of FFmpeg's memory.

    `turn` is that of the clip (`turn_of` its first frame) where the caller knows it. `place`: of the cut, as
    for `cut_of`. `mirror`: left to right, as seen upright.
    """
    transposed, mirrored, upside_down = turn_of(frame) if turn is None else turn
    if transposed:
        height, width = width, height
    crop, flags = chain_of(frame, sample_aspect_ratio, height, width, place)
    frame.color_trc = frame.color_primaries = _UNSPECIFIED
    if frame.colorspace == 0 and not frame.format.is_rgb:
        frame.colorspace = _UNSPECIFIED
    source = (
        f"video_size={frame.width}x{frame.height}:pix_fmt={frame.format.name}:time_base=1/1000"
        f":colorspace={int(frame.colorspace)}:range={int(frame.color_range)}"
    )
    graph = _scalers.of(source, crop, height, width, flags)
    graph.vpush(frame)
    image: NDArray[Any] = graph.vpull().to_ndarray()
    if transposed:
        image = image.transpose(1, 0, 2)
    if mirrored != mirror:
        image = image[:, ::-1]
    return image[::-1] if upside_down else image


def pixel_shape(stream: Any) -> float:
    """Return a pixel's width over its height, from the container or else from the decoder."""
    return float(stream.sample_aspect_ratio or stream.codec_context.sample_aspect_ratio or 1)
