"""Temporary folders of the tests in shared memory, where a file is safe at once and fsync costs nothing.

The packages fsync every file that they rename into place; on a disk these waits were half of the tests' time.
No test cuts the power, so none can tell a file in memory from one on a disk. The folders are on the disk when
/dev/shm is small, forbids programs, or belongs to a machine with little memory, and wherever the environment
variable PYTEST_DEBUG_TEMPROOT or the option --basetemp says.
"""

import fcntl
import os
import re
import shutil
import tempfile
from pathlib import Path

_SHARED_MEMORY = Path("/dev/shm")
_ROOT_VARIABLE = "PYTEST_DEBUG_TEMPROOT"  # pytest makes its folders below this one


def _is_suitable(place: Path, least_free_gib: float, least_memory_gib: float) -> bool:
    try:
        disk, memory = os.statvfs(place), Path("/proc/meminfo").read_text()
    except OSError:
        return False
    available = re.search(r"MemAvailable: *(\d+) kB", memory)
    return (
        os.access(place, os.W_OK | os.X_OK)
        and not disk.f_flag & os.ST_NOEXEC
        and disk.f_bavail * disk.f_frsize >= least_free_gib * 2**30
        and available is not None
        and int(available[1]) << 10 >= least_memory_gib * 2**30
    )


class TemporaryFolder:
    """The folder of one test run in shared memory; `path` is None where pytest's own place is used.

    A lock names the run that uses the folder. What a failed or killed run left is there to be looked at until
    the next run begins.
    """

    def __init__(
        self, place: Path = _SHARED_MEMORY, *, least_free_gib: float = 4, least_memory_gib: float = 8
    ) -> None:
        self.path: Path | None = None
        self._lock = -1
        if _ROOT_VARIABLE in os.environ or not _is_suitable(place, least_free_gib, least_memory_gib):
            return
        prefix = f"pytest-{os.getuid()}-"
        for left in place.glob(f"{prefix}*"):
            if not _is_used(left):
                shutil.rmtree(left, ignore_errors=True)
        made = Path(tempfile.mkdtemp(prefix=f".{prefix}", dir=place))
        self._lock = os.open(made, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = made.rename(made.with_name(made.name[1:]))  # locked when other runs see the folder
        os.environ[_ROOT_VARIABLE] = str(self.path)

    def close(self, *, keep: bool) -> None:
        """Release the folder, and remove it unless its files are to be looked at."""
        if self.path is None:
            return
        del os.environ[_ROOT_VARIABLE]
        os.close(self._lock)
        if not keep:
            shutil.rmtree(self.path, ignore_errors=True)


def _is_used(folder: Path) -> bool:
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return True  # another user's, or gone
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
