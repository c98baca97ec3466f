"""One decode worker: a process that reads clips from shards and decodes them into shared memory.

It is started as a fresh interpreter (never forked, never re-importing the caller's main module), so it holds
numpy and PyAV and nothing else: 45 MB instead of 220 MB with torch, and no GPU context. It has one container
open at a time. Cyclic garbage collection runs between clips only: at a random allocation it would close
decoders while holding the GIL, which froze the published runs. It dies with its parent.

The parent sends one line of JSON per task, with the file descriptor of the slab beside it, and gets one back.
"""

import ctypes
import faulthandler
import gc
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vidcurate.crc import crc32c
from vidcurate.errors import MediaError, ShardError, StorageError, VidcurateError

_CLIPS_PER_COLLECTION = 32
_READ_TRIES = 4
_MAX_GAP_BYTES = 1 << 16  # between a clip's JSON and its video: read through rather than twice
_ERRORS: dict[str, type[VidcurateError]] = {"shard": ShardError, "storage": StorageError}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeTask:
    """Which clip, where it lies, and which of its frames are wanted at which size."""

    clip_id: str
    shard: str  # path of the tar
    json_offset: int
    json_size: int
    video_offset: int
    video_size: int
    video_crc32c: int
    first_frame: int
    num_frames: int
    frame_stride: int
    height: int
    width: int
    caption: str = "caption"  # the key of the caption in the clip's JSON

    @property
    def size_bytes(self) -> int:
        return self.num_frames * self.height * self.width * 3


def _read(task: DecodeTask, offset: int, size: int) -> bytes:
    """Return the bytes; a disk or network that refuses is tried again, then StorageError: never a spare."""
    for attempt in range(_READ_TRIES):
        try:
            with open(task.shard, "rb", buffering=0) as file:
                file.seek(offset)
                parts: list[bytes] = []
                while size > 0 and (part := file.read(size)):
                    parts.append(part)
                    size -= len(part)
            if size:
                raise ShardError(
                    f"{task.shard}: ends {size} bytes before clip {task.clip_id!r} does. Copy it anew."
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
    if 0 <= gap <= _MAX_GAP_BYTES:
        data = _read(task, task.json_offset, task.json_size + gap + task.video_size)
        return data[: task.json_size], data[task.json_size + gap :]
    return (
        _read(task, task.json_offset, task.json_size),
        _read(task, task.video_offset, task.video_size),
    )


def caption_of(facts: Mapping[str, Any], name: str) -> str:
    """Return a clip's caption of this name; where the clip has none of it, its `caption`."""
    return facts.get(name) or facts.get("caption") or ""


def decode(task: DecodeTask) -> tuple[NDArray[np.uint8], str]:
    """Return the wanted frames, uint8 (T, H, W, 3), and the caption.

    Raises MediaError for a clip that will never decode (kind of `video.read_frames`, or crc_mismatch),
    ShardError when the shard is not what the index says, StorageError when it cannot be read.
    """
    from vidcurate import video  # PyAV is loaded where clips are decoded, never by importing this file

    facts, payload = _read_parts(task)
    if crc32c(payload) != task.video_crc32c:
        facts, payload = _read_parts(task)  # the first read may have gone wrong on the way
        if crc32c(payload) != task.video_crc32c:
            raise MediaError(
                f"{task.shard}: clip {task.clip_id!r} has CRC-32C {crc32c(payload):08x}, "
                f"the index says {task.video_crc32c:08x}.",
                kind="crc_mismatch",
            )
    try:
        known = json.loads(facts)
        found, caption = known["clip_id"], caption_of(known, task.caption)
    except (ValueError, TypeError, KeyError, AttributeError):
        found, caption = None, ""
    if found != task.clip_id:
        raise ShardError(
            f"{task.shard}: where the index has clip {task.clip_id!r} lies {found!r}. "
            "Shard and index do not belong together; run `vidcurate build-shards` again."
        )
    last = task.first_frame + (task.num_frames - 1) * task.frame_stride
    numbers = range(task.first_frame, last + 1, task.frame_stride)
    try:
        return video.read_frames(payload, numbers, height=task.height, width=task.width), caption
    except MediaError as error:
        raise MediaError(f"clip {task.clip_id!r} in {task.shard}: {error}", kind=error.kind) from error


def as_line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def task_line(task: DecodeTask, offset: int) -> bytes:
    """Return the message that asks for `task`, whose frames go to `offset` of the slab sent along."""
    return as_line({"task": asdict(task), "offset": offset})


def raise_error(message: dict[str, Any]) -> None:
    """Raise what a worker's answer reports; nothing if it is a success."""
    kind = message["error"]
    if kind == "media":
        raise MediaError(message["text"], kind=message["kind"])
    if kind:
        raise _ERRORS.get(kind, VidcurateError)(message["text"])


def _answer(line: bytes, slab: int) -> dict[str, Any]:
    message = json.loads(line)
    task = DecodeTask(**message["task"])
    try:
        frames, caption = decode(task)
        view = np.ascontiguousarray(frames).data.cast("B")
        done = 0
        while done < len(view):
            done += os.pwrite(slab, view[done:], message["offset"] + done)
    except MediaError as error:
        return {"error": "media", "kind": error.kind, "text": str(error)}
    except (ShardError, StorageError) as error:
        return {"error": "shard" if isinstance(error, ShardError) else "storage", "text": str(error)}
    except (MemoryError, OSError) as error:
        return {"error": "other", "text": f"clip {task.clip_id!r}: {type(error).__name__}: {error}"}
    except Exception as error:  # noqa: BLE001 - a decoder's surprise is this clip's affair, not the run's
        text = f"clip {task.clip_id!r}: {type(error).__name__}: {error}"
        return {"error": "media", "kind": "unexpected", "text": text}
    return {"error": "", "caption": caption}


def _die_with_parent(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it died before we asked
        os._exit(0)


def main(descriptor: int, parent: int) -> None:
    """Serve tasks from the socket until it closes."""
    _die_with_parent(parent)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash ends at once
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2)  # the parent asks for the stack before it kills
    from vidcurate import video  # noqa: F401 - before the collector is frozen

    gc.collect()
    gc.freeze()
    gc.disable()
    clips = 0
    # A loader may be closed while a worker starts or reads ahead: there is nobody left to tell.
    with suppress(BrokenPipeError, ConnectionResetError), socket.socket(fileno=descriptor) as channel:
        channel.sendall(as_line({"ready": os.getpid()}))
        while True:
            line, slabs, _, _ = socket.recv_fds(channel, 1 << 16, 1)
            while line and not line.endswith(b"\n"):
                part = channel.recv(1 << 16)
                line = line + part if part else b""
            if not line:
                return
            try:
                reply = _answer(line, slabs[0])
            finally:
                os.close(slabs[0])
            channel.sendall(as_line(reply))
            clips += 1
            if clips % _CLIPS_PER_COLLECTION == 0:
                gc.collect()
