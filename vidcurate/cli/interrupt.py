"""Ctrl-C as one line in every command of `vidcurate`, during its imports too.

Importing this file installs the handler when the process is the command (`vidcurate`,
`python -m vidcurate`), before the slow imports; a program that imports the package keeps its handler.
Once a command runs, Ctrl-C is a KeyboardInterrupt again, so that a stage ends its workers and removes its
temporary files. The exception is deferred while polars calls back into Python: polars panics on an exception
there, and prints the panic.
"""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

INTERRUPTED = "interrupted; the same command continues"
EXIT_CODE = 130  # as a shell says of a program that SIGINT ended
_RETRY_SECONDS = 0.01
_MOST_RETRIES = 100  # one second: polars itself ends a long query on Ctrl-C


def _end_at_once(number: int, frame: object) -> None:
    os.write(2, f"{INTERRUPTED}\n".encode())
    os._exit(EXIT_CODE)


def _end_quietly(number: int, frame: object) -> None:
    os._exit(EXIT_CODE)


class _Raise:
    """Handler that raises KeyboardInterrupt, later while polars is on the stack."""

    def __init__(self) -> None:
        self.num_retries = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        while frame is not None and not str(frame.f_globals.get("__name__")).startswith("polars."):
            frame = frame.f_back
        if frame is not None and self.num_retries < _MOST_RETRIES:
            self.num_retries += 1
            import threading

            threading.Timer(_RETRY_SECONDS, signal.raise_signal, [number]).start()
            return
        self.num_retries = 0
        raise KeyboardInterrupt


def raise_from_here() -> None:
    """Make Ctrl-C a KeyboardInterrupt: the imports are done, and the caller handles the exception."""
    if signal.getsignal(signal.SIGINT) is _end_at_once:
        signal.signal(signal.SIGINT, _Raise())


def raise_deferred() -> None:
    """Raise the KeyboardInterrupt that still waits for polars: the command has ended meanwhile."""
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, _Raise) and handler.num_retries:
        raise KeyboardInterrupt


def end() -> NoReturn:
    """Print the line and exit, after a KeyboardInterrupt; a second Ctrl-C ends the process at once."""
    if isinstance(signal.getsignal(signal.SIGINT), _Raise):
        signal.signal(signal.SIGINT, _end_quietly)
    sys.stdout.flush()
    print(INTERRUPTED, file=sys.stderr, flush=True)
    sys.exit(EXIT_CODE)


def _is_command() -> bool:
    folder, name = os.path.split(sys.argv[0] if sys.argv else "")
    return name in ("vidcurate", "vidcurate.exe") or (
        name == "__main__.py" and os.path.basename(folder) == "vidcurate"
    )


if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end_at_once)
