"""Ctrl-C as one line in every command of `vidcurate`, during its imports too.

Importing this file installs the handler when the process is the command (`vidcurate`,
`python -m vidcurate`), before the slow imports; a program that imports the package keeps its handler.
Once a command runs, Ctrl-C is a KeyboardInterrupt again, so that a stage ends its workers and removes its
temporary files.
"""

import os
import signal
import sys

INTERRUPTED = "interrupted; the same command continues"
EXIT_CODE = 130  # as a shell says of a program that SIGINT ended


def _end_at_once(number: int, frame: object) -> None:
    os.write(2, f"{INTERRUPTED}\n".encode())
    os._exit(EXIT_CODE)


def _is_command() -> bool:
    folder, name = os.path.split(sys.argv[0] if sys.argv else "")
    return name in ("vidcurate", "vidcurate.exe") or (
        name == "__main__.py" and os.path.basename(folder) == "vidcurate"
    )


def end_with_imports() -> None:
    """Make Ctrl-C a KeyboardInterrupt again: the imports are done."""
    if signal.getsignal(signal.SIGINT) is _end_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end_at_once)
