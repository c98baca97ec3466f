"""Ctrl-C as one line in every command of `vidcurate`, during its imports too.

Importing this file installs the handler when the process is the command (`vidcurate`,
`python -m vidcurate`), before the slow imports; a program that imports the package keeps its handler.
Once a command runs, Ctrl-C is a KeyboardInterrupt again, so that a stage ends its workers and removes its
temporary files. The exception is deferred while a module is imported, where Python can make another error of
it, and while polars calls back into Python: polars panics on an exception there, and prints the panic.
"""

import os
import signal
import sys
import threading
from types import FrameType
from typing import NoReturn

INTERRUPTED = "interrupted; the same command continues"
EXIT_CODE = 130  # as a shell says of a program that SIGINT ended
_RETRY_SECONDS = 0.01
# The modules during whose calls Ctrl-C is deferred, and for how many retries.
_DEFERRED = {
    "polars.": 100,  # one second: polars itself ends a long query on Ctrl-C
    "importlib._bootstrap": 3000,
    "_frozen_importlib": 3000,  # the same one, until a program imports importlib
}


def _most_retries(frame: FrameType | None) -> int:
    """Return how often Ctrl-C is deferred for what runs in `frame`: 0 for all but imports and polars."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        for module, retries in _DEFERRED.items():
            if name.startswith(module):
                return retries
        frame = frame.f_back
    return 0


def _end_at_once(number: int, frame: object) -> None:
    os.write(2, f"{INTERRUPTED}\n".encode())
    os._exit(EXIT_CODE)


def _end_quietly(number: int, frame: object) -> None:
    os._exit(EXIT_CODE)


class _Raise:
    """Handler that raises KeyboardInterrupt, later while an import or polars is on the stack."""

    def __init__(self) -> None:
        self.num_retries = 0
        self.retry: threading.Timer | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.num_retries < _most_retries(frame):
            self.num_retries += 1
            self.retry = threading.Timer(_RETRY_SECONDS, signal.raise_signal, [number])
            self.retry.start()
            return
        self.num_retries, self.retry = 0, None
        raise KeyboardInterrupt


def raise_from_here() -> None:
    """Make Ctrl-C a KeyboardInterrupt: the imports are done, and the caller handles the exception."""
    if signal.getsignal(signal.SIGINT) is _end_at_once:
        signal.signal(signal.SIGINT, _Raise())


def raise_deferred() -> None:
    """Raise the KeyboardInterrupt that is still deferred: the command has ended meanwhile."""
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, _Raise) and handler.retry is not None:
        handler.retry.cancel()
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
