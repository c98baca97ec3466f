"""Standard streams of a command: open, and able to print any text.

A daemon, cron or `>&-` may start a command with stdin, stdout or stderr closed. The next file that the
process opens would get the free number, and what a child prints would land in that file.

With `python -u` or PYTHONUNBUFFERED, `print` writes a text and its line break by themselves, and processes
that share a stream (ranks, seeds side by side) break each other's lines. Here a line is one write.
"""

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


def open_standard_streams() -> None:
    """Open closed standard streams; print whole lines, and letters a locale lacks.

    Closed streams read and write /dev/null. A letter that the locale lacks is printed as an escape.
    Call once, when a command starts.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number: this one
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with suppress(OSError):  # a file that became a pipe since the stream was opened has no position
                stream.reconfigure(
                    errors="backslashreplace",
                    line_buffering=stream.line_buffering or stream.write_through,
                    write_through=False,
                )


class _Losable(io.RawIOBase):
    """Writes to a descriptor; what a closed terminal or pipe no longer takes is dropped."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        try:
            return os.write(self._descriptor, data)
        except OSError as error:
            if error.errno not in (errno.EIO, errno.EPIPE):
                raise
            return len(data)


@contextmanager
def console_may_close() -> Iterator[None]:
    """Let the process outlive the terminal or pipe that its stdout and stderr write to."""
    before = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    for name, stream in before.items():
        if isinstance(stream, io.TextIOWrapper) and stream is getattr(sys, f"__{name}__"):
            stream.flush()
            raw = io.BufferedWriter(_Losable(stream.fileno()))
            to = io.TextIOWrapper(raw, stream.encoding, "backslashreplace", line_buffering=True)
            setattr(sys, name, to)
    try:
        yield
    finally:
        for name, stream in before.items():
            getattr(sys, name).flush()
            setattr(sys, name, stream)
