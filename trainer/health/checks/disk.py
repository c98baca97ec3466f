"""Disk check: can a node write the run folder; free space, inodes, write rate.

The test file is anonymous (O_TMPFILE), so that a kill leaves nothing behind.
"""

import errno
import os
import tempfile
import time
from pathlib import Path

from trainer.health.checks.check import Check, measured
from vidcurate.errors import StorageError

MEGA, GIGA = 1e6, 1e9
PIECE = 1 << 20
FEW_FILES = 1000
# Bytes of a parameter in a checkpoint: trained, weight, average and two moments; frozen, weight and average.
TRAINED_BYTES, FROZEN_BYTES = 16, 8


def checkpoint_bytes(trained: int, frozen: int) -> int:
    """Return what one checkpoint takes; `trained` and `frozen` are numbers of parameters."""
    return TRAINED_BYTES * trained + FROZEN_BYTES * frozen


def room(folder: Path, one: int, kept: int, there: int) -> list[Check]:
    """Check the room in `folder` for checkpoints of `one` byte count: `kept` at most, `there` are written."""
    facts = os.statvfs(folder)
    free = facts.f_bavail * facts.f_frsize
    more = max(1, kept + 1 - there)  # a new one is whole before the oldest goes
    verdict = "bad" if free < one else "warn" if free < more * one else "ok"
    found = [
        Check(
            name="disk room",
            verdict=verdict,  # type: ignore[arg-type]
            value=f"{free / GIGA:.3g} GB free in {folder}",
            limit=f"{more * one / GIGA:.3g} GB: {more} checkpoints of {one / GIGA:.3g} GB",
            advice="" if verdict == "ok" else "free some room, or lower keep_last",
            figure=free / GIGA,
            unit="GB",
        )
    ]
    # Some file systems (btrfs, many network ones) give files as they go and report 0 of 0.
    if facts.f_files and facts.f_favail < FEW_FILES:
        value = f"{facts.f_favail} of {facts.f_files} files are left in {folder}"
        limit = f"at least {FEW_FILES}"
        found.append(Check(name="disk files", verdict="bad", value=value, limit=limit))
    return found


def check_write(folder: Path, size_bytes: int, seconds: float) -> list[Check]:
    """Check that `folder` can be written, and how fast: `size_bytes`, or `seconds` of them, and an fsync."""
    began, written, piece = time.perf_counter(), 0, os.urandom(min(PIECE, size_bytes))
    try:
        with tempfile.TemporaryFile(dir=folder, prefix=".preflight-", buffering=0) as file:
            while written < size_bytes and time.perf_counter() - began < seconds:
                written += file.write(piece)
            os.fsync(file.fileno())
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "free some room" if full else "see whether it is mounted for writing, and whose it is"
        value = f"{folder} cannot be written ({error.strerror})"
        return [Check(name="disk write", verdict="bad", value=value, advice=advice)]
    rate = written / max(time.perf_counter() - began, 1e-9) / MEGA
    return [measured("disk write", rate, "MB/s")]


def make_folder(folder: Path) -> None:
    """Make the run's folder. Raises StorageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{folder} cannot be made ({error.strerror})") from error
