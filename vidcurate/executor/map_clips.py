"""Map a function over clips, locally or on Ray; a restart skips finished chunks.

The chunks depend on neither the engine nor the number of workers. `map_clips` returns the rows in the order
of the items and writes a finished chunk to the parts folder atomically. So the same input gives the same
output on any engine, with any number of workers and parts, and a second run computes only the missing
chunks. An item whose worker dies (a segfault inside a decoder: PyAV 2344) gets one retry; `on_lost` makes
the row if the retry kills its worker too, or if the item takes longer than the time limit.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from vidcurate.errors import StorageError
from vidcurate.executor.common_failure import CommonFailure, ReasonOf
from vidcurate.executor.parts_folder import (
    ExecutorSpec,
    PartSummary,
    check_parts,
    chunk_file,
    chunks_of_part,
    finish_part,
    make_parts,
    read_chunk,
    remove_chunks,
    write_part,
)
from vidcurate.executor.worker_processes import Loss, Work, WorkerProcesses
from vidcurate.executor.worker_processes import Row as Row

T = TypeVar("T")
Progress = Callable[[int, int, str], None]  # (done, total, unit)


class WorkerPool(Protocol):
    def run(self, chunks: Iterable[tuple[int, Sequence[Any]]]) -> Iterator[tuple[int, list[Row]]]: ...


def no_progress(done: int, total: int, unit: str) -> None:
    """Show no progress."""


@dataclass(slots=True)
class _Counts:
    """Counts for the progress line: items done, failures, hours of video and hours per second."""

    progress: Progress
    total: int
    unit: str
    done: int = 0
    failed: int | None = None
    hours: float | None = None
    began: tuple[float, float] | None = None  # monotonic time of the first report, and hours done by then

    def report(self) -> None:
        notes = []
        if self.hours is not None:
            self.began = self.began or (time.monotonic(), self.hours)
            rate = (self.hours - self.began[1]) / max(time.monotonic() - self.began[0], 1e-6)
            notes.append(f"{self.hours:,.2f} h of video, {rate:.4f} h/s")
        notes += [] if self.failed is None else [f"{self.failed:,} failed"]
        self.progress(self.done, self.total, f"{self.unit} ({', '.join(notes)})" if notes else self.unit)


def map_clips(
    function: Callable[[T], Row],
    items: Sequence[T],
    *,
    on_lost: Callable[[T, Loss], Row],
    time_limit_seconds: float | None = None,
    num_workers: int = 1,
    chunk_size: int = 32,
    parts: Path | None = None,
    progress: Progress = no_progress,
    unit: str = "clips",
) -> list[Row]:
    """Return `function(item)` of each item, in order, from local processes; see `map_clips_in_parts`."""
    rows = map_clips_in_parts(
        function,
        items,
        on_lost=on_lost,
        time_limit_seconds=time_limit_seconds,
        executor=ExecutorSpec(num_workers=num_workers),
        chunk_size=chunk_size,
        parts=parts,
        progress=progress,
        unit=unit,
    )
    assert not isinstance(rows, PartSummary), "no part was asked for"
    return list(rows)


def map_clips_in_parts(
    function: Callable[[T], Row],
    items: Sequence[T],
    *,
    on_lost: Callable[[T, Loss], Row],
    time_limit_seconds: float | None = None,
    executor: ExecutorSpec,
    chunk_size: int = 32,
    parts: Path | None = None,
    progress: Progress = no_progress,
    unit: str = "clips",
    reason_of: ReasonOf | None = None,
    video_seconds: Sequence[float] | None = None,
) -> Iterator[Row] | PartSummary:
    """Map `function` over the items; return the rows in their order, or the summary of a part.

    `function` returns plain JSON values. It runs in other processes when the executor has several workers or
    a cluster, or when items have a time limit; `on_lost` runs in this process (`Work`). `parts` is the folder
    of finished chunks. The caller names the folder after the inputs of the result, and removes it with
    `remove_parts` once the result is written; the returned iterator reads the rows from the folder, one chunk
    at a time. A part and a merge need `parts`. `reason_of` says why a row failed (`common_failure`); its
    count and `video_seconds` (one per item) are for the progress line. Raises what `function` raises,
    VidcurateError when every item fails for one reason (the chunks are then removed), StageError when a merge
    lacks a part, StorageError.
    """
    chunks = [items[start : start + chunk_size] for start in range(0, len(items), chunk_size)]
    mine = chunks_of_part(len(chunks), executor.part)
    if parts is not None and not executor.merge:
        make_parts(parts)
    counts = _Counts(progress, sum(len(chunks[number]) for number in mine), unit)
    reasons = CommonFailure(reason_of or (lambda row: None))
    counts.failed = None if reason_of is None else 0
    counts.hours = None if video_seconds is None else 0.0
    found: dict[int, list[Row]] = {}  # the rows, when there is no parts folder

    def count(number: int, rows: list[Row]) -> None:
        counts.done += len(rows)
        reasons.add(rows)
        if reason_of is not None:
            counts.failed = reasons.failed
        if video_seconds is not None and counts.hours is not None:
            start = number * chunk_size
            counts.hours += sum(video_seconds[start : start + len(rows)]) / 3600

    todo = []
    for number in mine:
        rows = None if parts is None else read_chunk(chunk_file(parts, number), len(chunks[number]))
        if rows is None:
            todo.append((number, chunks[number]))
        else:
            count(number, rows)
    done_before = counts.done
    counts.report()
    if executor.merge and parts is not None:
        check_parts(parts, counts.total - counts.done, counts.total)
    work = Work(function=function, on_lost=on_lost, time_limit_seconds=time_limit_seconds)
    for number, rows in _finished_chunks(work, todo, executor):
        if parts is None:
            found[number] = rows
        else:
            write_part(chunk_file(parts, number), rows)
        count(number, rows)
        counts.report()
        error = reasons.error(counts.done, counts.total, unit)
        if error is not None:
            if parts is not None:
                remove_chunks(parts, mine)  # a later run, with the cause mended, computes them again
            raise error
    if executor.part is not None and parts is not None:
        return finish_part(parts, executor.part, counts.total, done_before)
    return _rows(chunks, parts, found)


def _rows(chunks: list[Sequence[T]], parts: Path | None, found: dict[int, list[Row]]) -> Iterator[Row]:
    for number, chunk in enumerate(chunks):
        rows = found.pop(number) if parts is None else read_chunk(chunk_file(parts, number), len(chunk))
        if rows is None:
            raise StorageError(
                f"{parts}: chunk {number} was removed or damaged during the run. Run the same command again."
            )
        yield from rows


def _finished_chunks(
    work: Work[T], todo: list[tuple[int, Sequence[T]]], executor: ExecutorSpec
) -> Iterator[tuple[int, list[Row]]]:
    """Run the chunks on the executor's engine; yield (number, rows) of each as it finishes."""
    if not todo:
        return
    if executor.engine == "local" and executor.num_workers == 1 and work.time_limit_seconds is None:
        yield from ((number, [work.function(item) for item in chunk]) for number, chunk in todo)
        return
    pool: AbstractContextManager[WorkerPool]
    if executor.engine == "ray":
        from vidcurate.executor.ray_actors import RayWorkers

        pool = RayWorkers(work, min(executor.num_workers, len(todo)))
    else:
        pool = WorkerProcesses(work, executor.num_workers)
    with pool as workers:
        yield from workers.run(todo)


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
