"""Map a per-clip function over many clips in processes, in chunks that survive a kill.

The chunks do not depend on the number of workers, their results come back in the order of the items, and a
finished chunk lies in the parts folder whole or not at all: the same input gives the same output for any
number of workers, and a second run does only what is missing. An item whose worker dies (a segfault inside a
decoder: PyAV 2344) is tried once more alone; if it kills that worker too, `on_crash` makes its row.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from joblib import Parallel, delayed
from joblib.externals.loky.process_executor import BrokenProcessPool

from vidcurate.errors import StorageError

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


def _one_by_one(function: Callable[[T], Row], items: Sequence[T], on_crash: Callable[[T], Row]) -> list[Row]:
    """Run the items of a chunk whose worker died, each in a worker of its own."""
    rows: list[Row] = []
    for item in items:
        try:
            rows.extend(Parallel(n_jobs=2)([delayed(_run_chunk)(function, [item])])[0])
        except BrokenProcessPool:
            rows.append(on_crash(item))
    return rows


def _chunks(items: Sequence[T], chunk_size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), chunk_size):
        yield items[start : start + chunk_size]


def map_clips(
    function: Callable[[T], Row],
    items: Sequence[T],
    *,
    on_crash: Callable[[T], Row],
    num_workers: int = 1,
    chunk_size: int = 32,
    parts: Path | None = None,
    progress: Progress = no_progress,
    unit: str = "clips",
) -> list[Row]:
    """Return `function(item)` for each item, in order.

    `function` must be importable (it runs in other processes when `num_workers` > 1) and return plain JSON
    values. With `parts`, finished chunks are kept in that folder, which the caller names after what the
    result depends on and removes with `forget_parts` once the result is safe. Raises what `function` raises,
    and StorageError when a part cannot be written.
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

    todo = [number for number in range(len(chunks)) if number not in found]
    if num_workers == 1:
        for number in todo:
            finished(number, _run_chunk(function, chunks[number]))
    else:
        todo = _in_processes(function, chunks, todo, num_workers, finished)
        for number in todo:
            finished(number, _one_by_one(function, chunks[number], on_crash))
    return [row for number in range(len(chunks)) for row in found[number]]


def _in_processes(
    function: Callable[[T], Row],
    chunks: list[Sequence[T]],
    todo: list[int],
    num_workers: int,
    finished: Callable[[int, list[Row]], None],
) -> list[int]:
    """Run the chunks in a pool; return those that were not finished because a worker died."""
    waiting = list(todo)
    pool = Parallel(n_jobs=num_workers, return_as="generator")
    try:
        for rows in pool(delayed(_run_chunk)(function, chunks[number]) for number in todo):
            finished(waiting[0], rows)
            waiting.pop(0)
    except BrokenProcessPool:
        # The pool does not say whose clip it was: the chunks left are run clip by clip.
        return waiting
    return waiting


def forget_parts(parts: Path) -> None:
    """Remove a parts folder whose result is safe elsewhere."""
    shutil.rmtree(parts, ignore_errors=True)


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
