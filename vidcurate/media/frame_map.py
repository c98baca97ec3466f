"""Frame map: display times and key frames of a clip, for seeking without a scan.

A loader that wants frame 150 must know which frame that is. Rate x time is wrong for variable rates, edit
lists and B-frames; reading all packets of the file is right but slow. So `build-shards` makes the map once
(`packets.frame_map_of`) and stores it in the index: about 20 bytes at a constant rate.

A light module: reading a map needs no decoder.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from vidcurate.errors import ShardError

_VERSION = 1
_MOST_FRAMES = 1 << 26  # 12 days at 60 frames/s: a map that claims more is damaged


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameMap:
    """Frames in display order: a player shows frame n at `pts[n]` x `time_base`.

    `pts` int64 (frames,), rising, in units of `time_base` seconds, as in the container. `key_frames` int64:
    the frame numbers at which decoding can begin, rising.
    """

    time_base: Fraction
    pts: NDArray[np.int64]
    key_frames: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.pts)

    def key_before(self, number: int) -> int:
        """Return the last key frame up to frame `number`; 0 without one."""
        place = int(np.searchsorted(self.key_frames, number, side="right"))
        return int(self.key_frames[place - 1]) if place else 0

    def to_bytes(self) -> bytes:
        """Serialize the map compactly for `parse`. Equal maps give equal bytes."""
        head = [_VERSION, self.time_base.numerator, self.time_base.denominator, len(self.pts)]
        first = _zigzag(int(self.pts[0])) if len(self.pts) else 0
        steps = _runs(np.diff(self.pts).tolist())
        keys = _runs(np.diff(self.key_frames, prepend=-1).tolist())
        return _varints([*head, first, len(steps) // 2, *steps, len(keys) // 2, *keys])


def parse(data: bytes) -> FrameMap:
    """Parse a serialized map. Raises ShardError for anything else."""
    numbers = _numbers(data)
    try:
        if next(numbers) != _VERSION:
            raise ShardError("the frame map has another version. Run `vidcurate build-shards` again.")
        base = Fraction(next(numbers), next(numbers))
        count, first = next(numbers), next(numbers)
        steps = _spread([next(numbers) for _ in range(2 * next(numbers))])
        keys = _spread([next(numbers) for _ in range(2 * next(numbers))])
    except (StopIteration, RuntimeError, ZeroDivisionError) as error:
        raise ShardError("the frame map is damaged: it ends early.") from error
    pts = np.cumsum(np.concatenate([np.array([_unzigzag(first)], dtype=np.int64), steps]))[:count]
    key_frames = np.cumsum(keys) - 1
    is_whole = len(steps) == max(0, count - 1) and next(numbers, None) is None
    if not is_whole or (len(key_frames) and key_frames[-1] >= count):
        raise ShardError(f"the frame map is damaged: {len(steps) + 1} times for {count} frames.")
    return FrameMap(time_base=base, pts=pts, key_frames=key_frames)


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


def _unzigzag(value: int) -> int:
    return value >> 1 if value & 1 == 0 else -((value + 1) >> 1)


def _runs(values: Sequence[int]) -> list[int]:
    """Run-length encode: return value, count, value, count, …"""
    found: list[int] = []
    for value in values:
        if found and found[-2] == value:
            found[-1] += 1
        else:
            found += [value, 1]
    return found


def _spread(runs: Sequence[int]) -> NDArray[np.int64]:
    """Decode `_runs`; all values and counts must be 1 or more."""
    values, counts = np.array(runs[::2], dtype=np.int64), np.array(runs[1::2], dtype=np.int64)
    if len(runs) and (min(runs) < 1 or sum(runs[1::2]) > _MOST_FRAMES):
        raise ShardError("the frame map is damaged: its frames do not follow each other.")
    return np.repeat(values, counts)


def _varints(values: Iterable[int]) -> bytes:
    """Encode non-negative integers as varints: 7 bits per byte, lowest first (as Protocol Buffers)."""
    out = bytearray()
    for value in values:
        while value > 127:
            out.append(value & 127 | 128)
            value >>= 7
        out.append(value)
    return bytes(out)


def _numbers(data: bytes) -> Iterator[int]:
    value = shift = 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if not byte & 128:
            yield value
            value = shift = 0
        elif shift > 63:
            raise ShardError("the frame map is damaged: a number is too large.")
