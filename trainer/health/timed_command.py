"""Timed commands: run other programs with a time-out that always holds.

A tool that talks to a driver can hang where no signal reaches it (NVIDIA/NVSentinel#1576, scitix/sichek#123):
`run_command` kills it, waits a second, and leaves it behind. So no call takes longer than its time-out plus a
second.
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

LEFT_BEHIND_SECONDS = 1.0
MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """Output of a program. `problem` is one line where the program failed, else "".

    `kind`: answered, missing (no such program), hung (time-out), failed (it exited with an error; `text` has
    its output nevertheless).
    """

    kind: Literal["answered", "missing", "hung", "failed"]
    text: str = ""
    problem: str = ""
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        return self.kind == "answered"


def last_line(text: str) -> str:
    """Return the last non-empty line of `text`, cut to a console's width."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:160] if lines else ""


def run_command(command: Sequence[str], seconds: float) -> CommandResult:
    """Run `command` for at most `seconds` and return its output. Raises nothing.

    The program runs in a new session, so that its children are killed with it, and with LC_ALL=C for English
    output.
    """
    began = time.monotonic()
    name = os.path.basename(command[0])
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            env={**os.environ, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        return CommandResult(kind="missing", problem=f"{name}: there is no such program here")
    except OSError as error:
        return CommandResult(kind="missing", problem=f"{name}: cannot be run ({error.strerror})")
    try:
        out, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        _leave(process)
        problem = f"{name}: no answer within {seconds:g} s; it was ended"
        return CommandResult(kind="hung", problem=problem, seconds=time.monotonic() - began)
    took = time.monotonic() - began
    out = out[:MOST_BYTES]
    if process.returncode:
        said = last_line(errors) or last_line(out) or "it said nothing"
        problem = f"{name}: ended with {process.returncode} ({said})"
        return CommandResult(kind="failed", text=out, problem=problem, seconds=took)
    return CommandResult(kind="answered", text=out, seconds=took)


def kill(process: "subprocess.Popen[Any]") -> None:
    """Kill a process and wait for it briefly: a process that waits for a dead disk cannot be killed."""
    process.kill()
    try:
        process.wait(LEFT_BEHIND_SECONDS)
    except subprocess.TimeoutExpired:
        wait_beside(process)


def wait_beside(process: "subprocess.Popen[Any]") -> None:
    """Start a thread that reaps a process which is ending, so that it does not stay a zombie."""
    threading.Thread(target=process.wait, name="waits for an end", daemon=True).start()


def _leave(process: "subprocess.Popen[str]") -> None:
    """Kill a program and its children; wait at most LEFT_BEHIND_SECONDS."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired, ValueError, OSError):
        process.communicate(timeout=LEFT_BEHIND_SECONDS)
    if process.poll() is None:
        wait_beside(process)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
