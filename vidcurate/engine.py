"""Map a per-clip function over many clips in processes, in chunks that survive a kill.

The chunks do not depend on the number of workers, their results come back in the order of the items, and a
finished chunk lies in the parts folder whole or not at all: the same input gives the same output for any
number of workers, and a second run does only what is missing. An item whose worker dies (a segfault inside a
decoder: PyAV 2344) is tried once more; if it kills that worker too, `on_crash` makes its row. One that takes
longer than its limit is killed with its worker, and `on_timeout` makes its row (`workers`).
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from vidcurate.errors import StorageError
from vidcurate.workers import Workers

T = TypeVar("T")
Row = dict[str, Any]  # what a per-clip function returns: plain JSON values
Progress = Callable[[int, int, str], None]  # (done, total, unit)


def no_progress(done: int, total: int, unit: str) -> None:
    """Say nothing."""


def _run_chunk(function: Callable[[T], Row], items: Sequence[T]) -> list[Row]:
    return [function(item) for item in items]


def _read_part(path: Path, length: int) -> list[Row] | None:
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return rows if isinstance(rows, list) and len(rows) == length else None


def _write_part(path: Path, rows: list[Row]) -> None:
    partial = path.with_suffix(".partial")
    try:
        partial.write_text(json.dumps(rows), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror}).") from error


def _chunks(items: Sequence[T], chunk_size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), chunk_size):
        yield items[start : start + chunk_size]


def map_clips(
    function: Callable[[T], Row],
    items: Sequence[T],
    *,
    on_crash: Callable[[T], Row],
    on_timeout: Callable[[T], Row] | None = None,
    time_limit_seconds: float | None = None,
    num_workers: int = 1,
    chunk_size: int = 32,
    parts: Path | None = None,
    progress: Progress = no_progress,
    unit: str = "clips",
) -> list[Row]:
    """Return `function(item)` for each item, in order.

    `function` returns plain JSON values. It runs in other processes when `num_workers` > 1 or an item has a
    time limit; `on_crash` and `on_timeout` (default: `on_crash`) run here. With `parts`, finished chunks are
    kept in that folder, which the caller names after what the result depends on and removes with
    `forget_parts` once the result is safe. Raises what `function` raises, and StorageError when a part cannot
    be written.
    """
    chunks = list(_chunks(items, chunk_size))
    if parts is not None:
        try:
            parts.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{parts}: cannot be made ({error.strerror}).") from error
    found: dict[int, list[Row]] = {}
    done = 0
    for number, chunk in enumerate(chunks):
        rows = _read_part(parts / f"{number:06d}.json", len(chunk)) if parts is not None else None
        if rows is not None:
            found[number] = rows
            done += len(chunk)
    progress(done, len(items), unit)

    def finished(number: int, rows: list[Row]) -> None:
        nonlocal done
        if parts is not None:
            _write_part(parts / f"{number:06d}.json", rows)
        found[number] = rows
        done += len(rows)
        progress(done, len(items), unit)

    todo = [(number, chunk) for number, chunk in enumerate(chunks) if number not in found]
    if num_workers == 1 and time_limit_seconds is None:
        for number, chunk in todo:
            finished(number, _run_chunk(function, chunk))
    elif todo:
        with Workers(
            function,
            num_workers,
            on_crash=on_crash,
            on_timeout=on_timeout or on_crash,
            time_limit_seconds=time_limit_seconds,
        ) as workers:
            for number, rows in workers.run(todo):
                finished(number, rows)
    return [row for number in range(len(chunks)) for row in found[number]]


def forget_parts(parts: Path) -> None:
    """Remove a parts folder whose result is safe elsewhere."""
    shutil.rmtree(parts, ignore_errors=True)


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
