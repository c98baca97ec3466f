"""A decode worker that goes wrong on purpose, in the middle of decoding the clips that a test names.

`faults(monkeypatch, folder, {clip_id: ("hang", 1)})` makes the workers of every loader opened from then on
such: the first time, or the first two, that the clip is decoded, its worker hangs, crashes or stops.
"""

import ctypes
import json
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from vidcurate.loader.decode import worker_pool, worker_process
from vidcurate.loader.decode.decode_clip import DecodeTask, decode

_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from tests.faulty_worker import main; main(*map(int, sys.argv[2:]))"
)
_FOLDER = "VIDCURATE_TEST_FAULTS"


def faults(monkeypatch: pytest.MonkeyPatch, folder: Path, wanted: dict[str, tuple[str, int]]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "faults.json").write_text(json.dumps(wanted))
    monkeypatch.setenv(_FOLDER, str(folder))
    monkeypatch.setattr(worker_pool, "_PROGRAM", _PROGRAM)


def hang_in_c(channel: int) -> NoReturn:
    """Sleep in C with the GIL held: no other Python thread runs, no Python signal handler is called."""
    libc = ctypes.PyDLL(None)
    while True:
        libc.sleep(3600)


def crash_in_c(channel: int) -> None:
    ctypes.string_at(0)


def stop_itself(channel: int) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def go_deaf(channel: int) -> None:
    """Answer this task, and be gone when the next is sent."""
    with socket.socket(fileno=os.dup(channel)) as theirs:
        theirs.shutdown(socket.SHUT_RD)


FAULTS: dict[str, Callable[[int], object]] = {
    "hang": hang_in_c,
    "crash": crash_in_c,
    "stop": stop_itself,
    "deaf": go_deaf,
}


def main(*descriptors: int) -> None:
    folder = Path(os.environ[_FOLDER])
    wanted = json.loads((folder / "faults.json").read_text())

    def faulty(task: DecodeTask, tell: Callable[[str], None], out: Any = None) -> Any:
        def reported(phase: str) -> None:
            tell(phase)
            name, times = wanted.get(task.clip_id, ("", 0))
            count = folder / task.clip_id.replace("/", "-")
            done = count.stat().st_size if count.exists() else 0
            if phase == "decode" and done < times:
                count.write_text("." * (done + 1))
                FAULTS[name](descriptors[0])

        return decode(task, reported, out)

    worker_process.decode = faulty  # type: ignore[attr-defined,assignment]
    worker_process.main(*descriptors)
