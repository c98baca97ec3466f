"""Scale a decoded frame: crop, resize and convert to RGB with FFmpeg filters.

The result equals `crop, scale=flags=…+accurate_rnd, format=gbrp` of the `ffmpeg` program: cropping first
copies no byte and avoids scaling pixels that the crop removes. To planes of RGB FFmpeg interpolates the
colour to full width and has vector instructions that give the bytes of its plain code, so a picture is the
same on every processor; its packed RGB has neither, is further from exact colours and takes longer. Colour
matrix and range are those of the frame (BT.601 and limited by default, as in FFmpeg); HDR is not tone-mapped,
alpha is dropped. Rotation comes last, on the small image.
"""

import math
import struct
import threading
from functools import lru_cache
from typing import Any

import numpy as np
from av import VideoFormat, VideoFrame
from av.filter import Graph
from av.sidedata.sidedata import Type as SideData
from numpy.typing import NDArray

from vidcurate.media.coded_units import display_orientation
from vidcurate.media.container import packets_of

_MOST_SCALERS = 32  # 1 ms to make, about 1 MB each; most data sets have few sizes
# FFmpeg refuses transfer curves and primaries that it does not know (PyAV 2208); unused here.
_UNSPECIFIED = 2


def _scaler(
    size: tuple[int, int],
    pixels: str,
    colourspace: int,
    colour_range: int,
    sample_aspect_ratio: float,
    height: int,
    width: int,
    place: int | None,
) -> Graph:
    """Return the filter graph for frames of this kind; called per frame, so the arguments are cheap."""
    crop, flags = chain_of(VideoFormat(pixels, *size), sample_aspect_ratio, height, width, place)
    source = (
        f"video_size={size[0]}x{size[1]}:pix_fmt={pixels}:time_base=1/1000"
        f":colorspace={colourspace:d}:range={colour_range:d}"
    )
    graph = Graph()
    graph.threads = 1
    chain = [
        graph.add("buffer", source),
        *([graph.add("crop", crop)] if crop else []),
        graph.add("scale", f"{width}:{height}:flags={flags}+accurate_rnd"),
        graph.add("format", "gbrp"),
        graph.add("buffersink"),
    ]
    graph.link_nodes(*chain).configure()
    return graph


class _Scalers(threading.local):
    """Filter graphs of one thread: a graph shared by two threads would mix up their frames."""

    def __init__(self) -> None:
        self.of = lru_cache(maxsize=_MOST_SCALERS)(_scaler)


_scalers = _Scalers()

Orientation = tuple[bool, bool, bool]


def orientation_of(frame: Any) -> Orientation:
    """Return whether to transpose the image, then flip it left to right, then upside down.

    The display matrix maps (x, y) to (a·x + c·y, b·x + d·y); it encodes rotations and reflections alike
    (ISO/IEC 14496-12, 8.3.2). Call this once per clip: a frame whose side data was read references itself,
    and stays in memory until a garbage collection.
    """
    matrix = frame.side_data.get(SideData.DISPLAYMATRIX)
    if matrix is None:
        return False, False, False
    a, b, _, c, d = struct.unpack_from("=5i", bytes(matrix))
    if abs(b) > abs(a):
        return True, c < 0, b < 0
    return False, a < 0, d < 0


def quarter_turns_of(frame: Any) -> int:
    """Return the counter-clockwise quarter turns (0 to 3) that show the frame upright but for reflections."""
    matrix = frame.side_data.get(SideData.DISPLAYMATRIX)
    if matrix is None:
        return 0
    a, b = struct.unpack_from("=2i", bytes(matrix))
    return round(-math.degrees(math.atan2(b, a)) / 90) % 4


class ClipOrientation:
    """Orientation of a clip's frames, from the first frame that the decoder gives.

    H.264 carries an orientation message with key frames only, or the first of them; it holds for the frames
    after them.
    """

    def __init__(self) -> None:
        self._found: Orientation | None = None

    def of(self, frame: Any) -> Orientation:
        """Return the orientation; call this first with the first frame decoded, wanted or not."""
        if self._found is None:
            self._found = orientation_of(frame)
        return self._found

    def take(self, frame: Any) -> None:
        """Take the orientation of the file's first frame, known before a seek behind it; of None, nothing."""
        if frame is not None:
            self.of(frame)


def frame_with_message(container: Any, stream: Any) -> Any:
    """Return the first frame of a file whose first packet has an orientation message, else None.

    Reads from the container's place, the file's start.
    """
    for number, packet in enumerate(packets_of(container, stream)):
        if number == 0 and display_orientation.rotation_degrees(stream, bytes(packet)) is None:
            return None
        for frame in packet.decode():
            return frame
    return None


def crop_of(
    shown: VideoFormat, sample_aspect_ratio: float, height: int, width: int, place: int | None = None
) -> tuple[int, int, int, int]:
    """Return the largest crop (height, width, top, left) with the aspect ratio of height x width.

    The crop is centred, or at the position that the 32 bits of `place` select, uniformly among all. It is a
    whole number of chroma samples, so that luma and chroma stay aligned.
    """
    tall, wide = 4 // (shown.chroma_height(4) or 4), 4 // (shown.chroma_width(4) or 4)
    shape = width / height / sample_aspect_ratio
    cut_height = min(shown.height, max(tall, round(shown.width / shape / tall) * tall))
    cut_width = min(shown.width, max(wide, round(shown.height * shape / wide) * wide))
    extra_height, extra_width = shown.height - cut_height, shown.width - cut_width
    if place is None:
        return cut_height, cut_width, extra_height // 2 // tall * tall, extra_width // 2 // wide * wide
    top, left = (
        ((extra // sample + 1) * place >> 32) * sample
        for extra, sample in ((extra_height, tall), (extra_width, wide))
    )
    return cut_height, cut_width, top, left


def chain_of(
    shown: VideoFormat, sample_aspect_ratio: float, height: int, width: int, place: int | None = None
) -> tuple[str, str]:
    """Return the crop filter ("" for none) and the scaler's flags for this size before rotation."""
    cut_height, cut_width, top, left = crop_of(shown, sample_aspect_ratio, height, width, place)
    is_whole = (cut_height, cut_width) == (shown.height, shown.width)
    shrinks = height * width < cut_height * cut_width
    return (
        "" if is_whole else f"{cut_width}:{cut_height}:{left}:{top}:exact=1",
        "area" if shrinks else "bicubic",
    )


def _planes(frame: VideoFrame) -> list[NDArray[np.uint8]]:
    """Return views of the planes red, green and blue; FFmpeg has them in the order green, blue, red."""
    green, blue, red = (
        np.ndarray((frame.height, frame.width), np.uint8, plane, strides=(plane.line_size, 1))
        for plane in frame.planes
    )
    return [red, green, blue]


def cover(
    frame: Any,
    height: int,
    width: int,
    sample_aspect_ratio: float,
    turn: Orientation | None = None,
    *,
    place: int | None = None,
    mirror: bool = False,
) -> NDArray[np.uint8]:
    """Crop and scale a frame upright, to uint8 RGB (height, width, 3), stored plane by plane.

    `turn` is the clip's orientation (`orientation_of` its first frame), when known. `place`: position of the
    crop, as for `crop_of`. `mirror`: flip left to right, as seen upright.
    """
    transposed, mirrored, upside_down = orientation_of(frame) if turn is None else turn
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
    )
    graph.vpush(frame)
    planes = _planes(graph.vpull())
    if transposed:
        planes = [plane.T for plane in planes]
    down, right = -1 if upside_down else 1, -1 if mirrored != mirror else 1
    image: NDArray[np.uint8] = np.empty((3, *planes[0].shape), np.uint8)
    for channel, plane in zip(image, planes, strict=True):
        channel[:] = plane[::down, ::right]
    return image.transpose(1, 2, 0)


def pixel_shape(stream: Any) -> float:
    """Return a pixel's width over its height, from the container, else from the decoder, else 1."""
    return float(stream.sample_aspect_ratio or stream.codec_context.sample_aspect_ratio or 1)
