"""Decode worker process: serves decode tasks from a socket until it closes.

`worker_pool` starts it as a fresh interpreter (never forked, never re-importing the caller's main module), so
the worker loads numpy and PyAV and nothing else: 45 MB instead of 220 MB with torch, and no GPU context.
Garbage collection runs between clips only: at a random allocation the collector would close decoders while
holding the GIL, which froze the published runs. The worker dies with its parent.

The parent sends one line of JSON per task, with the file descriptor of the shared memory; the worker sends
one line of JSON back.
"""

import ctypes
import gc
import json
import os
import resource
import socket
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vidcurate.errors import MediaError, ShardError, StorageError, VidcurateError
from vidcurate.executor.die_with_parent import die_with_parent
from vidcurate.executor.shared_memory import SharedArraySlice
from vidcurate.loader.decode import worker_heartbeat
from vidcurate.loader.decode.decode_clip import DecodeTask, decode

_CLIPS_PER_COLLECTION = 256
_ERRORS: dict[str, type[VidcurateError]] = {"shard": ShardError, "storage": StorageError}


def as_line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def task_line(task: DecodeTask, offset: int) -> bytes:
    """Return the request line of `task`; its frames go to `offset` of the buffer sent with the line."""
    return as_line({"task": asdict(task), "offset": offset})


def raise_error(message: dict[str, Any]) -> None:
    """Raise the error of a worker's reply, if any."""
    kind = message["error"]
    if kind == "media":
        raise MediaError(message["text"], kind=message["kind"])
    if kind:
        raise _ERRORS.get(kind, VidcurateError)(message["text"])


def _answer(line: bytes, buffer: int, page: int) -> dict[str, Any]:
    message = json.loads(line)
    task = DecodeTask(**message["task"])
    try:
        shape = (task.num_frames, task.height, task.width, 3)
        out = SharedArraySlice(buffer, message["offset"], shape)
        _, caption = decode(task, lambda phase: worker_heartbeat.beat(page, phase, task.clip_id), out)
    except MediaError as error:
        return {"error": "media", "kind": error.kind, "text": str(error)}
    except (ShardError, StorageError) as error:
        return {"error": "shard" if isinstance(error, ShardError) else "storage", "text": str(error)}
    except (MemoryError, OSError) as error:
        return {"error": "other", "text": f"clip {task.clip_id!r}: {type(error).__name__}: {error}"}
    except Exception as error:  # noqa: BLE001 - an unexpected decoder error fails this clip, not the run
        text = f"clip {task.clip_id!r}: {type(error).__name__}: {error}"
        return {"error": "media", "kind": "unexpected", "text": text}
    return {"error": "", "caption": caption}


def _private_bytes() -> int:
    """Return the resident memory of this process without shared pages; 0 when /proc is missing."""
    try:
        resident, shared = Path("/proc/self/statm").read_bytes().split()[1:3]
    except OSError:
        return 0
    return (int(resident) - int(shared)) * resource.getpagesize()


def _trim_memory() -> None:
    """Return freed memory to the system: glibc otherwise keeps 2.5 MB per 1,000 clips of many sizes."""
    with suppress(AttributeError, OSError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


def main(descriptor: int, page: int, parent: int) -> None:
    """Serve tasks from the socket `descriptor` until it closes; `page` is the heartbeat file."""
    die_with_parent(parent, poll=False)  # no thread: a closed socket ends this process too
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # write no core dump: a crash ends at once
    worker_heartbeat.start_work(page)
    from vidcurate.media import slow_gather  # PyAV, before gc.freeze

    slow_gather.choose_scaler()
    gc.collect()
    gc.freeze()
    gc.disable()
    clips = 0
    # The parent may close the loader, and this socket, while a worker starts or decodes.
    with suppress(BrokenPipeError, ConnectionResetError), socket.socket(fileno=descriptor) as channel:
        channel.sendall(as_line({"ready": os.getpid()}))
        while True:
            worker_heartbeat.beat(page, "idle")
            line, buffers, _, _ = socket.recv_fds(channel, 1 << 16, 1)
            while line and not line.endswith(b"\n"):
                part = channel.recv(1 << 16)
                line = line + part if part else b""
            if not line:
                return
            try:
                reply = _answer(line, buffers[0], page)
            finally:
                os.close(buffers[0])
            clips += 1
            if clips % _CLIPS_PER_COLLECTION == 0:
                gc.collect()
                _trim_memory()
            channel.sendall(as_line({**reply, "private_bytes": _private_bytes()}))
