"""Regular file: open for reading, and refuse pipes, devices and folders."""

import errno
import io
import os
import stat
from pathlib import Path


def opened(path: Path | str) -> io.BufferedReader:
    """Open a regular file for reading bytes. Raises OSError, for a pipe, a device or a folder too."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a regular file. Raises OSError."""
    with opened(path) as handle:
        return handle.read()


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """Return the text of a regular file, its line ends as \\n. Raises OSError, UnicodeDecodeError."""
    with io.TextIOWrapper(opened(path), encoding=encoding) as text:
        return text.read()
