"""One clip: its bytes from the shard, checked, and the wanted frames of it at the wanted size.

`decode_process` is the process that does this for the loader, one clip at a time.
"""

import base64
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vidcurate.errors import MediaError, ShardError, StorageError
from vidcurate.loader.caption_sides import mentions_left_or_right
from vidcurate.media.conversion import Conversion
from vidcurate.media.frame_map import parse
from vidcurate.media.resample import frame_numbers
from vidcurate.storage.checksum import crc32c

_READ_TRIES = 4
MAX_GAP_BYTES = 1 << 16  # between a clip's JSON and its video: read through rather than twice


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeTask:
    """Which clip, where it lies, and which of its frames are wanted at which size."""

    clip_id: str
    shard: str  # path of the tar
    json_offset: int
    json_size: int
    json_crc32c: int
    video_offset: int
    video_size: int
    video_crc32c: int
    first_frame: int
    num_frames: int
    frame_stride: int
    height: int
    width: int
    caption: str = "caption"  # the key of the caption in the clip's JSON
    frame_map: str = ""  # packed, as base64; "": the worker reads the packets' times itself
    clip_fps: float | None = None  # the clip's rate, and the one asked for, where it is not the clip's own
    fps: float | None = None
    place: int | None = None  # 32 bits: where the picture is cut; None: in the middle
    mirror: tuple[str, ...] = ()  # captions' keys: mirrored unless one of these names a side; (): never
    conversion: Conversion = "ffmpeg"

    @property
    def size_bytes(self) -> int:
        return self.num_frames * self.height * self.width * 3


def _read(task: DecodeTask, offset: int, size: int) -> bytes:
    """Return the bytes; a disk or network that refuses is tried again, then StorageError: never a spare."""
    for attempt in range(_READ_TRIES):
        left = size
        try:
            with open(task.shard, "rb", buffering=0) as file:
                file.seek(offset)
                parts: list[bytes] = []
                while left > 0 and (part := file.read(left)):
                    parts.append(part)
                    left -= len(part)
            if left:
                raise ShardError(
                    f"{task.shard}: ends {left} bytes before clip {task.clip_id!r} does. Copy it anew."
                )
            return b"".join(parts)
        except OSError as error:
            if attempt + 1 == _READ_TRIES or isinstance(error, FileNotFoundError):
                raise StorageError(
                    f"{task.shard}: clip {task.clip_id!r} cannot be read ({error.strerror})."
                ) from error
            time.sleep(0.1 * 4**attempt)
    raise AssertionError("unreachable")


def _read_parts(task: DecodeTask) -> tuple[bytes, bytes]:
    """Return the clip's JSON and video, in one read where they lie together."""
    gap = task.video_offset - task.json_offset - task.json_size
    if 0 <= gap <= MAX_GAP_BYTES:
        data = _read(task, task.json_offset, task.json_size + gap + task.video_size)
        return data[: task.json_size], data[task.json_size + gap :]
    return (
        _read(task, task.json_offset, task.json_size),
        _read(task, task.video_offset, task.video_size),
    )


def caption_of(facts: Mapping[str, Any], name: str) -> str:
    """Return a clip's caption of this name; where the clip has none of it, its `caption`."""
    return facts.get(name) or facts.get("caption") or ""


def _altered(task: DecodeTask, facts: bytes, payload: bytes) -> str:
    """Return what of the clip has another checksum than the index says, "" for nothing."""
    parts = (("JSON", facts, task.json_crc32c), ("video", payload, task.video_crc32c))
    return ", ".join(
        f"its {name} has CRC-32C {crc32c(data):08x}, the index says {wanted:08x}"
        for name, data, wanted in parts
        if crc32c(data) != wanted
    )


def _said(facts: bytes, task: DecodeTask) -> tuple[str | None, str, bool]:
    """Return clip id, caption and whether to mirror, from a clip's JSON; (None, "", False) of no JSON."""
    try:
        known = json.loads(facts)
        mirror = bool(task.mirror) and not any(
            mentions_left_or_right(caption_of(known, key)) for key in task.mirror
        )
        return known["clip_id"], caption_of(known, task.caption), mirror
    except (ValueError, TypeError, KeyError, AttributeError):
        return None, "", False


def _say_nothing(phase: str) -> None:
    """Stand in for a process that shows what it does."""


def decode(task: DecodeTask, tell: Callable[[str], None] = _say_nothing, out: Any = None) -> tuple[Any, str]:
    """Return the wanted frames, uint8 (T, H, W, 3), and the caption. `tell` hears what begins: read, decode.

    The frames go one by one into `out` where it is given (see `video.read_frames`), which then is returned.
    Raises MediaError for a clip that will never decode (kind of `video.read_frames`, or crc_mismatch),
    ShardError when the shard is not what the index says, StorageError when it cannot be read.
    """
    from vidcurate.media import (
        decode as media_decode,  # PyAV is loaded where clips are decoded, never by importing this file
    )
    from vidcurate.media import (
        packets,  # PyAV is loaded where clips are decoded, never by importing this file
    )

    tell("read")
    facts, payload = _read_parts(task)
    if _altered(task, facts, payload):
        facts, payload = _read_parts(task)  # the first read may have gone wrong on the way
    found, caption, mirror = _said(facts, task)
    altered = _altered(task, facts, payload)
    if found != task.clip_id and (found is not None or not altered):
        raise ShardError(
            f"{task.shard}: where the index has clip {task.clip_id!r} lies {found!r}. "
            "Shard and index do not belong together; run `vidcurate build-shards` again."
        )
    if altered:
        raise MediaError(f"{task.shard}: clip {task.clip_id!r}: {altered}.", kind="crc_mismatch")
    frame_map = parse(base64.b64decode(task.frame_map)) if task.frame_map else None
    tell("decode")
    try:
        if frame_map is None and task.fps is not None:
            frame_map = packets.frame_map_of(payload)  # at a variable rate only the times will do
        numbers = frame_numbers(
            task.first_frame,
            task.num_frames,
            task.frame_stride,
            clip_fps=task.clip_fps,
            fps=task.fps,
            frame_map=frame_map,
        )
        frames = media_decode.read_frames(
            payload,
            numbers,
            height=task.height,
            width=task.width,
            frame_map=frame_map,
            place=task.place,
            mirror=mirror,
            conversion=task.conversion,
            out=out,
        )
        return frames, caption
    except MediaError as error:
        raise MediaError(f"clip {task.clip_id!r} in {task.shard}: {error}", kind=error.kind) from error
