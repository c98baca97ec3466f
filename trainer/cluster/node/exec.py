"""Node exec: one command, without a shell, with a timeout, and its output."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

MOST_BYTES = 1 << 20  # of output; the rest is dropped, and the answer says so
PIPE_SECONDS = 1.0  # for what a killed command, or one that left children, still has in its pipe


def answers(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the exit code (None: killed), stdout and stderr in order, and a problem."""
    try:
        process = subprocess.Popen(
            request["command"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        yield {"code": 127, "output": "", "problem": f"{request['command'][0]}: {error.strerror}"}
        return
    printed, problem = bytearray(), ""
    reader = threading.Thread(target=_read, args=(process, printed), daemon=True)
    reader.start()
    try:
        process.wait(request["seconds"])
    except subprocess.TimeoutExpired:
        problem = f"did not end within {request['seconds']:g} s; it was killed"
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    reader.join(PIPE_SECONDS)
    if len(printed) > MOST_BYTES:
        problem = problem or f"printed more than {MOST_BYTES >> 20} MiB; the rest is not shown"
    text = bytes(printed[:MOST_BYTES]).decode(errors="replace")
    yield {
        "code": process.poll() if not problem.endswith("killed") else None,
        "output": text,
        "problem": problem,
    }


def _read(process: "subprocess.Popen[bytes]", into: bytearray) -> None:
    assert process.stdout is not None
    while data := os.read(process.stdout.fileno(), 1 << 16):
        if len(into) <= MOST_BYTES:
            into += data
