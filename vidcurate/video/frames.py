"""Decoding: exactly the wanted frames of a clip, upright, in the wanted size.

One scaler is reused, decoding stops at the last wanted frame, and pixels are copied out before the container
closes (PyAV 1117, 2320).
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.video.reformatter import Interpolation, VideoReformatter
from numpy.typing import NDArray

from vidcurate.errors import MediaError
from vidcurate.video.opening import opened, reason_of
from vidcurate.video.packets import SEEKABLE

_REFORMATTER = VideoReformatter()


def _decoded(container: Any, stream: Any, deadline: float | None) -> Iterator[Any]:
    for packet in container.demux(stream):
        if deadline is not None and time.monotonic() > deadline:
            raise MediaError("decoding took longer than its limit.", kind="too_slow")
        yield from packet.decode()


def _start_near(container: Any, stream: Any, first: int) -> list[int] | None:
    """Seek to the key frame before display frame `first`; return all timestamps, or None if at the start.

    Frame numbers are ranks of presentation time: pts x rate is wrong for variable rates, edit lists and
    B-frames. Reading the packets costs no decoding and makes the seek exact.
    """
    if container.format.name.split(",")[0] not in SEEKABLE:
        return None
    stamps: list[int] = []
    keys: list[int] = []
    for packet in container.demux(stream):
        if packet.size and not packet.is_discard:
            if packet.pts is None:
                container.seek(0)
                return None
            stamps.append(packet.pts)
            if packet.is_keyframe:
                keys.append(packet.pts)
    stamps.sort()
    before = [key for key in keys if first < len(stamps) and key <= stamps[first]]
    if not before or before == [stamps[0]]:
        container.seek(stamps[0] if stamps else 0, stream=stream, backward=True)
        return None
    container.seek(max(before), stream=stream, backward=True)
    return stamps


def cover(frame: Any, height: int, width: int, sample_aspect_ratio: float) -> NDArray[np.uint8]:
    """Return the frame upright, scaled to cover (height, width) in one pass, and its centre."""
    turn = int(frame.rotation) % 360  # counter-clockwise, as FFmpeg has it
    if turn % 180 == 90:
        height, width = width, height
    shown_width = frame.width * sample_aspect_ratio
    scale = max(height / frame.height, width / shown_width)
    scaled_height = max(height, round(frame.height * scale))
    scaled_width = max(width, round(shown_width * scale))
    shrinks = scaled_height * scaled_width < frame.height * frame.width
    image: NDArray[Any] = _REFORMATTER.reformat(
        frame,
        width=scaled_width,
        height=scaled_height,
        format="rgb24",
        interpolation=Interpolation.AREA if shrinks else Interpolation.BICUBIC,
    ).to_ndarray()
    top, left = (scaled_height - height) // 2, (scaled_width - width) // 2
    image = image[top : top + height, left : left + width]
    return np.rot90(image, turn // 90) if turn else image


def read_frames(
    source: Path | bytes,
    frame_numbers: Sequence[int],
    *,
    height: int,
    width: int,
    time_limit_seconds: float | None = None,
    accept_corrupt: bool = False,
) -> NDArray[np.uint8]:
    """Return the frames with these display-order numbers (rising, from 0) as uint8 RGB (T, height, width, 3).

    Rotation and sample aspect ratio are applied; the picture is scaled to cover the size and its centre kept.
    Raises MediaError, kind unreadable, too_few_frames, corrupt_frame (the decoder concealed damage in a
    wanted frame; `accept_corrupt` takes it), too_slow, or those of `read_header_and_index`.
    """
    wanted = list(frame_numbers)
    if not wanted or wanted != sorted(set(wanted)) or wanted[0] < 0:
        raise ValueError(f"frame_numbers must rise from 0 or more, got {wanted[:8]}")
    deadline = None if time_limit_seconds is None else time.monotonic() + time_limit_seconds
    out = np.empty((len(wanted), height, width, 3), dtype=np.uint8)
    name = source.name if isinstance(source, Path) else "clip"
    filled = 0
    with opened(source) as (container, stream):
        aspect = float(stream.sample_aspect_ratio or 1)
        try:
            stamps = _start_near(container, stream, wanted[0]) if wanted[0] else None
            number_of = {stamp: number for number, stamp in enumerate(stamps)} if stamps else None
            for number, frame in enumerate(_decoded(container, stream, deadline)):
                if number_of is not None:
                    number = number_of.get(frame.pts, -1)
                if number != wanted[filled]:
                    continue
                if frame.is_corrupt and not accept_corrupt:
                    raise MediaError(f"{name}: frame {number} is damaged.", kind="corrupt_frame")
                out[filled] = cover(frame, height, width, aspect)
                filled += 1
                if filled == len(wanted):
                    return out
        except (av.FFmpegError, OSError, ValueError) as error:
            raise MediaError(
                f"{name}: decoding failed after {filled} of {len(wanted)} frames ({reason_of(error)}).",
                kind="unreadable",
            ) from error
    raise MediaError(
        f"{name}: frame {wanted[filled]} does not exist; {filled} of {len(wanted)} wanted frames decoded.",
        kind="too_few_frames",
    )


def count_decodable_frames(source: Path | bytes) -> int:
    """Return how many frames decode from start to end. Raises MediaError when decoding fails on the way."""
    with opened(source) as (container, stream):
        try:
            return sum(1 for _ in _decoded(container, stream, None))
        except (av.FFmpegError, OSError, ValueError) as error:
            raise MediaError(f"decoding failed ({reason_of(error)}).", kind="unreadable") from error
