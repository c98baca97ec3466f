"""Videos whose every frame shows its number, in all the ways in which files are hard to read."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

NUM_FRAMES = 40
_BITS = 6
_LEFT, _STEP = 0.08, 0.14  # of the width


def picture(number: int, height: int, width: int) -> NDArray[np.uint8]:
    """Return a frame (H, W, 3) that shows its number as six bars, the lowest bit on the left."""
    image = np.full((height, width, 3), 90, dtype=np.uint8)
    for bit in range(_BITS):
        left, right = (round(width * (_LEFT + _STEP * (bit + more))) for more in (0, 0.85))
        image[height // 8 : -(height // 8), left:right] = 235 if number >> bit & 1 else 20
    return image


def numbers_in(frames: NDArray[np.uint8]) -> list[int]:
    """Return the numbers that frames (T, H, W, 3) of any size show."""
    height, width = frames.shape[1:3]
    found = []
    for image in frames:
        middles = [round(width * (_LEFT + _STEP * (bit + 0.425))) for bit in range(_BITS)]
        rows = image[height // 3 : height // 2]
        found.append(sum(int(rows[:, middle].mean() > 128) << bit for bit, middle in enumerate(middles)))
    return found


def write(
    path: Path,
    *,
    codec: str = "libx264",
    pixel_format: str = "yuv420p",
    height: int = 64,
    width: int = 96,
    gop: int = 12,
    options: Mapping[str, str] = {},
    times: Sequence[int] | None = None,
    hidden: int = 0,
    num_frames: int = NUM_FRAMES,
) -> Path:
    """Write numbered frames to `path`; `times` in ms where the rate is not constant (24 frames/s).

    An edit list (mp4, mov) hides the first `hidden` frames.
    """
    base = Fraction(1, 1000) if times is not None else Fraction(1, 24)
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=24, options=dict(options))
        stream.height, stream.width, stream.pix_fmt = height, width, pixel_format
        stream.codec_context.thread_count = 1
        stream.codec_context.gop_size = gop
        stream.codec_context.time_base = base
        for number in [*range(num_frames), None]:
            frame = None
            if number is not None:
                image = picture(number, height, width)
                frame = av.VideoFrame.from_ndarray(image, format="rgb24").reformat(format=pixel_format)
                frame.pts, frame.time_base = times[number] if times is not None else number, base
            for packet in stream.encode(frame):
                if hidden:
                    shift = round(hidden / 24 / packet.time_base)
                    packet.pts, packet.dts = packet.pts - shift, packet.dts - shift
                container.mux(packet)
    return path
