"""Decode one clip: read and check its bytes, return the wanted frames.

`worker_process` runs this for the loader, one clip at a time.
"""

import base64
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import FileIO
from typing import Any

from vidcurate.errors import MediaError, ShardError, StorageError
from vidcurate.media.frame_map import parse
from vidcurate.media.resample import frame_numbers
from vidcurate.storage.checksum import crc32c

_READ_TRIES = 4
_SIDE = re.compile(  # English words
    r"\b(?:left|right)(?:s|most|wards?|-?hand(?:ed)?)?\b|\b(?:anti-?|counter-?)?clockwise\b", re.IGNORECASE
)


def mentions_left_or_right(caption: str) -> bool:
    """Return whether a caption contains left, right, clockwise or a related word: false when mirrored."""
    return _SIDE.search(caption) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeTask:
    """One clip to decode: its bytes in the shard, the wanted frames and their size."""

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
    caption: str = "caption"  # the caption's name, or its key in the clip's JSON
    frame_map: str = ""  # packed, as base64; "": the worker reads the times of the packets
    clip_fps: float | None = None  # frame rate of the clip, when `fps` is set
    fps: float | None = None  # frame rate to resample to; None: the clip's own
    place: int | None = None  # 32 bits: position of the crop; None: centre
    mirror: tuple[str, ...] = ()  # keys of captions: mirror unless one names a side; (): never mirror

    @property
    def size_bytes(self) -> int:
        return self.num_frames * self.height * self.width * 3


def _read_parts(task: DecodeTask) -> tuple[bytes, bytes]:
    """Return the clip's JSON and video.

    Retry a read error, then raise StorageError: no fallback clip hides bad storage.
    """
    for attempt in range(_READ_TRIES):
        try:
            with open(task.shard, "rb", buffering=0) as file:
                return (
                    _read(file, task, task.json_offset, task.json_size),
                    _read(file, task, task.video_offset, task.video_size),
                )
        except OSError as error:
            if attempt + 1 == _READ_TRIES or isinstance(error, FileNotFoundError):
                raise StorageError(
                    f"{task.shard}: cannot read clip {task.clip_id!r} ({error.strerror}). Check the storage."
                ) from error
            time.sleep(0.1 * 4**attempt)
    raise AssertionError("unreachable")


def _read(file: FileIO, task: DecodeTask, offset: int, size: int) -> bytes:
    file.seek(offset)
    parts: list[bytes] = []
    left = size
    while left > 0 and (part := file.read(left)):
        parts.append(part)
        left -= len(part)
    if left:
        raise ShardError(
            f"{task.shard}: ends {left} bytes before clip {task.clip_id!r} does. Copy this shard again."
        )
    return b"".join(parts)


def caption_of(facts: Mapping[str, Any], name: str) -> str:
    """Return a clip's caption `name`: among its `captions`, else the text under that key, else `caption`."""
    for caption in facts.get("captions") or ():
        if caption["name"] == name:
            return str(caption["text"])
    return facts.get(name) or facts.get("caption") or ""


def _altered(task: DecodeTask, facts: bytes, payload: bytes) -> str:
    """Return text about checksums that differ from the index; "" when all match."""
    parts = (("JSON", facts, task.json_crc32c), ("video", payload, task.video_crc32c))
    return ", ".join(
        f"its {name} has CRC-32C {crc32c(data):08x}, the index says {wanted:08x}"
        for name, data, wanted in parts
        if crc32c(data) != wanted
    )


def _parse_json(facts: bytes, task: DecodeTask) -> tuple[str | None, str, bool]:
    """Return (clip id, caption, whether to mirror) from a clip's JSON; (None, "", False) if invalid."""
    try:
        known = json.loads(facts)
        mirror = bool(task.mirror) and not any(
            mentions_left_or_right(caption_of(known, key)) for key in task.mirror
        )
        return known["clip_id"], caption_of(known, task.caption), mirror
    except (ValueError, TypeError, KeyError, AttributeError):
        return None, "", False


def _ignore_phase(phase: str) -> None:
    """Default of `on_phase` outside a decode worker."""


def decode(
    task: DecodeTask, on_phase: Callable[[str], None] = _ignore_phase, out: Any = None
) -> tuple[Any, str]:
    """Return the wanted frames, uint8 (T, H, W, 3), and the caption.

    `on_phase` is called with "read" and "decode" when that phase begins. With `out`, `media.read_frames`
    writes the frames there one by one, and `decode` returns `out`. Raises MediaError for a clip that never
    decodes (kind of `media.read_frames`, or crc_mismatch), ShardError when the shard differs from the index,
    StorageError when the shard cannot be read.
    """
    # Imported here, so that only processes that decode load PyAV.
    from vidcurate.media import decode as media_decode
    from vidcurate.media import packets

    on_phase("read")
    facts, payload = _read_parts(task)
    if _altered(task, facts, payload):
        facts, payload = _read_parts(task)  # retry: the storage may have returned wrong bytes
    found, caption, mirror = _parse_json(facts, task)
    altered = _altered(task, facts, payload)
    if found != task.clip_id and (found is not None or not altered):
        raise ShardError(
            f"{task.shard}: holds clip {found!r} at the position that the index gives for {task.clip_id!r}. "
            "Shard and index do not belong together. Run `vidcurate build-shards` again."
        )
    if altered:
        raise MediaError(f"{task.shard}: clip {task.clip_id!r}: {altered}.", kind="crc_mismatch")
    frame_map = parse(base64.b64decode(task.frame_map)) if task.frame_map else None
    on_phase("decode")
    try:
        if frame_map is None and task.fps is not None:
            frame_map = packets.frame_map_of(payload)  # resampling a variable rate needs the times
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
            out=out,
        )
        return frames, caption
    except MediaError as error:
        raise MediaError(f"clip {task.clip_id!r} in {task.shard}: {error}", kind=error.kind) from error
