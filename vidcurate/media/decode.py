"""Decode exactly the wanted frames of a clip, upright, at the wanted size.

With a frame map (from the index, or made by reading the packets), `read_frames` identifies frames by their
times, begins at the last key frame before the first wanted one and stops at the last wanted one. In between,
the decoder skips unwanted frames that no other frame references. When this fast path fails, `read_frames`
retries on the full path: complete probing, every frame from the start. The pixels are copied before the
container closes (PyAV 1117).
"""

import gc
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from vidcurate.errors import MediaError
from vidcurate.media.container import opened, packets_of, reason_of
from vidcurate.media.frame_map import FrameMap
from vidcurate.media.packets import frame_map_of
from vidcurate.media.scale import ClipOrientation, cover, frame_with_message, pixel_shape

# Kinds of errors that the full path cannot repair.
_FINAL = {"missing", "empty", "too_slow"}


def _decoded(container: Any, stream: Any, deadline: float | None) -> Iterator[Any]:
    for packet in packets_of(container, stream):
        _check_time(deadline)
        yield from packet.decode()


def _check_time(deadline: float | None) -> None:
    if deadline is not None and time.monotonic() > deadline:
        raise MediaError("decoding took longer than its limit.", kind="too_slow")


def _decoded_from(
    container: Any, stream: Any, key_pts: int | None, wanted: set[int], deadline: float | None
) -> Iterator[Any]:
    """Yield frames from a key frame on, with those at the wanted times; decode no more than needed."""
    if key_pts is not None:
        container.seek(key_pts, stream=stream, backward=True)
    codec = stream.codec_context
    left = set(wanted)
    for packet in packets_of(container, stream):
        _check_time(deadline)
        codec.skip_frame = "DEFAULT" if packet.pts is None or packet.pts in wanted else "NONREF"
        yield from packet.decode()
        left.discard(packet.pts)
        if not left and packet.size:
            break
    else:
        return  # the last, empty packet has flushed the decoder
    yield from codec.decode(None)


@dataclass(slots=True, kw_only=True)
class _Wanted:
    """Wanted frames of one clip and their output, see `read_frames`; `filled` counts the written slots."""

    name: str
    numbers: list[int]
    out: Any
    deadline: float | None
    accept_corrupt: bool
    place: int | None
    mirror: bool
    filled: int = 0
    pixel_shape: float | None = None  # known once a frame is decoded
    turn: ClipOrientation = field(default_factory=ClipOrientation)

    def put(self, frame: Any, number: int, slots: Sequence[int], stream: Any) -> None:
        if frame.is_corrupt and not self.accept_corrupt:
            raise MediaError(f"{self.name}: frame {number} is damaged.", kind="corrupt_frame")
        height, width = self.out.shape[1:3]
        self.pixel_shape = self.pixel_shape or pixel_shape(stream)
        turn = self.turn.of(frame)
        image = cover(frame, height, width, self.pixel_shape, turn, place=self.place, mirror=self.mirror)
        for slot in slots:
            self.out[slot] = image
        self.filled += len(slots)

    def read_by_time(self, container: Any, stream: Any, frame_map: FrameMap, *, is_short: bool) -> None:
        """Fill `out`; the fast path (`is_short`) decodes only what is needed."""
        slots = _slots(self.numbers)
        if self.numbers[-1] >= len(frame_map):
            return
        number_at = {int(frame_map.pts[number]): number for number in slots}
        first = int(frame_map.pts[self.numbers[0]])
        frames = _decoded(container, stream, self.deadline)
        if is_short:
            key = frame_map.key_before(self.numbers[0])
            start = int(frame_map.pts[key]) if key else None
            if key:
                self.turn.take(frame_with_message(container, stream))
            frames = _decoded_from(container, stream, start, set(number_at), self.deadline)
        for frame in frames:
            self.turn.of(frame)
            number = number_at.pop(frame.pts, None)
            if number is not None:
                self.put(frame, number, slots[number], stream)
            elif is_short and frame.pts is not None and frame.pts > first and len(number_at) == len(slots):
                return  # the seek landed behind the first wanted frame
            if not number_at:
                return

    def read_by_count(self, container: Any, stream: Any) -> None:
        """Fill `out` from the start of a file whose packets have no times."""
        slots = _slots(self.numbers)
        for number, frame in enumerate(_decoded(container, stream, self.deadline)):
            self.turn.of(frame)
            if number in slots:
                self.put(frame, number, slots[number], stream)
                if self.filled == len(self.numbers):
                    return

    def read(self, source: Path | bytes, frame_map: FrameMap | None, *, is_short: bool) -> None:
        """Fill `out` on the fast or the full path. Raises MediaError."""
        self.filled, self.pixel_shape, self.turn = 0, None, ClipOrientation()
        with opened(source, is_brief=is_short) as (container, stream):
            try:
                if frame_map is None:
                    self.read_by_count(container, stream)
                else:
                    self.read_by_time(container, stream, frame_map, is_short=is_short)
            except (av.FFmpegError, OSError, ValueError) as error:
                raise MediaError(
                    f"{self.name}: decoding failed after {self.filled} of {len(self.numbers)} frames "
                    f"({reason_of(error)}).",
                    kind="unreadable",
                ) from error
        gc.collect(0)  # frees the frame that `orientation_of` read, and with it the decoder's memory
        if self.filled < len(self.numbers):
            raise MediaError(
                f"{self.name}: frame {self.numbers[self.filled]} does not exist; {self.filled} of "
                f"{len(self.numbers)} wanted frames decoded.",
                kind="too_few_frames",
            )


def _slots(numbers: Sequence[int]) -> dict[int, list[int]]:
    """Return frame number → its indices in `numbers`."""
    found: dict[int, list[int]] = {}
    for slot, number in enumerate(numbers):
        found.setdefault(number, []).append(slot)
    return found


def read_frames(
    source: Path | bytes,
    frame_numbers: Sequence[int],
    *,
    height: int,
    width: int,
    frame_map: FrameMap | None = None,
    time_limit_seconds: float | None = None,
    accept_corrupt: bool = False,
    out: Any = None,
    place: int | None = None,
    mirror: bool = False,
) -> NDArray[np.uint8]:
    """Return the frames with these display-order numbers (rising, from 0) as uint8 RGB (T, height, width, 3).

    Each frame is stored plane by plane. A number may occur several times. `read_frames` applies rotation,
    reflection and sample aspect ratio, and scales the centre crop, or the crop at `place` (32 bits, see
    `crop_of`), to the size; `mirror` flips left to right. With `frame_map`, no search for the frames is
    needed. `out` receives the frames when given: an array, or an object with `shape` and `out[t] = frame`.
    Raises MediaError, kind unreadable, too_few_frames, corrupt_frame (the decoder concealed damage in a
    wanted frame; `accept_corrupt` allows that), too_slow, or those of `read_header_and_index`.
    """
    numbers = list(frame_numbers)
    if not numbers or numbers != sorted(numbers) or numbers[0] < 0:
        raise ValueError(f"frame_numbers must rise from 0 or more, got {numbers[:8]}")
    frames: NDArray[np.uint8] = out
    if out is None:
        frames = np.moveaxis(np.empty((len(numbers), 3, height, width), np.uint8), 1, -1)
    wanted = _Wanted(
        name=source.name if isinstance(source, Path) else "clip",
        numbers=numbers,
        out=frames,
        deadline=None if time_limit_seconds is None else time.monotonic() + time_limit_seconds,
        accept_corrupt=accept_corrupt,
        place=place,
        mirror=mirror,
    )
    if frame_map is None and numbers[0]:
        frame_map = frame_map_of(source)
    if frame_map is not None:
        try:
            wanted.read(source, frame_map, is_short=True)
            return frames
        except MediaError as error:
            if error.kind in _FINAL:
                raise
    wanted.read(source, frame_map, is_short=False)
    return frames


def count_decodable_frames(source: Path | bytes) -> int:
    """Return the number of frames that decode from start to end. Raises MediaError when decoding fails."""
    with opened(source) as (container, stream):
        try:
            return sum(1 for _ in _decoded(container, stream, None))
        except (av.FFmpegError, OSError, ValueError) as error:
            raise MediaError(f"decoding failed ({reason_of(error)}).", kind="unreadable") from error
