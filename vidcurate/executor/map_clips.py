"""Map a per-clip function over many clips, here or on a cluster, in chunks that survive a kill.

The chunks do not depend on who works, their rows come back in the order of the items, and a finished chunk
lies in the parts folder whole or not at all: the same input gives the same output on any engine, with any
number of workers and in any number of parts, and a second run does only what is missing. An item whose
worker dies (a segfault inside a decoder: PyAV 2344) is tried once more; if it kills that worker too,
`on_crash` makes its row. One that takes longer than its limit is killed with its worker, and `on_timeout`
makes its row (`workers`).
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from vidcurate.errors import InputError, StageError, StorageError
from vidcurate.executor.worker_processes import Workers

T = TypeVar("T")
Row = dict[str, Any]  # what a per-clip function returns: plain JSON values
Progress = Callable[[int, int, str], None]  # (done, total, unit)
EngineName = Literal["local", "ray"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Share `number` (from 1) of `of` shares of the clips."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSpec:
    """Who does a stage's work. No byte of a table depends on it.

    `local` are processes of this machine, `ray` those of a Ray cluster. With `part` only that share of the
    clips is done and no table is written; with `merge` nothing is done, and the table is put together from
    what the parts left.
    """

    engine: EngineName = "local"
    num_workers: int = 1
    part: Part | None = None
    merge: bool = False

    def __post_init__(self) -> None:
        if self.part is not None and self.merge:
            raise InputError(
                "--part and --merge: a part leaves its clips, a merge collects those of all parts."
            )


ALONE = ExecutorSpec()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSummary:
    """What a part did: its clips, how many of them were done already, and the parts of its stage by now."""

    part: str
    clips: int
    clips_done_before: int
    parts_done: tuple[str, ...]
    parts_missing: tuple[str, ...]


class WorkerPool(Protocol):
    def run(self, chunks: Iterable[tuple[int, Sequence[Any]]]) -> Iterator[tuple[int, list[Row]]]: ...


def no_progress(done: int, total: int, unit: str) -> None:
    """Say nothing."""


def part_of(text: str) -> Part:
    """Return the part that `3/8` names. Raises InputError."""
    number, slash, of = text.partition("/")
    if not slash or not number.isdecimal() or not of.isdecimal() or not 1 <= int(number) <= int(of):
        raise InputError(f"--part {text}: write it as i/n with i from 1 to n, for example --part 3/8.")
    return Part(number=int(number), of=int(of))


def part_rows(count: int, part: Part | None) -> list[int]:
    """Return which of `count` chunks a part does: every n-th, so that neighbours are spread."""
    return list(range(count)) if part is None else list(range(part.number - 1, count, part.of))


# ── the parts folder ────────────────────────────────────────────────────────────────────────────────────


def make_parts(parts: Path) -> None:
    """Make a parts folder. Raises StorageError."""
    try:
        parts.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{parts}: cannot be made ({error.strerror}).") from error


def forget_parts(parts: Path) -> None:
    """Remove a parts folder whose result is safe elsewhere."""
    shutil.rmtree(parts, ignore_errors=True)


def _read_part(path: Path, length: int) -> list[Row] | None:
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return rows if isinstance(rows, list) and len(rows) == length else None


def write_part(path: Path, rows: Any) -> None:
    """Write a chunk's rows, whole or not at all. Raises StorageError."""
    partial = path.with_suffix(f".{os.getpid()}.partial")  # two runs may do one chunk: both write the same
    try:
        partial.write_text(json.dumps(rows), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror}).") from error


def _finished_parts(parts: Path) -> list[Part]:
    """Return the parts that have said that they are done."""
    names = (path.name.removesuffix(".done").split("-of-") for path in parts.glob("*-of-*.done"))
    return sorted(
        (Part(number=int(number), of=int(of)) for number, of in names), key=lambda one: (one.of, one.number)
    )


def part_done(parts: Path, part: Part, clips: int, clips_done_before: int) -> PartSummary:
    """Say in the parts folder that a part is done, and return its summary. Raises StorageError."""
    write_part(parts / f"{part.number}-of-{part.of}.done", {"clips": clips})
    done = [one for one in _finished_parts(parts) if one.of == part.of]
    missing = sorted({*range(1, part.of + 1)} - {one.number for one in done})
    return PartSummary(
        part=str(part),
        clips=clips,
        clips_done_before=clips_done_before,
        parts_done=tuple(map(str, done)),
        parts_missing=tuple(f"{number}/{part.of}" for number in missing),
    )


def check_parts(parts: Path, clips_missing: int, clips: int) -> None:
    """Raise StageError that names the parts that are missing, or were made for something else."""
    if not clips_missing:
        return
    done = _finished_parts(parts)
    if done:
        of = done[-1].of
        missing = sorted({*range(1, of + 1)} - {one.number for one in done if one.of == of})
        names = ", ".join(f"{number}/{of}" for number in missing) or "of another number of parts"
        raise StageError(
            f"{parts}: part {names} is missing ({clips_missing:,} of {clips:,} clips). Run the same command "
            f"with --part {missing[0] if missing else 1}/{of} instead of --merge."
        )
    stale = [path for path in sorted(parts.parent.glob(f"{parts.name.split('-')[0]}-*")) if path != parts]
    if stale:
        made = ", ".join(map(str, _finished_parts(stale[0]))) or "unfinished"
        raise StageError(
            f"{stale[0]}: these parts ({made}) were made from another table, other settings or other files, "
            f"and {parts.name} is not there. Run every part again."
        )
    raise StageError(
        f"{parts}: no part is done ({clips_missing:,} of {clips:,} clips are missing). "
        "Run the parts first: the same command with --part 1/n … n/n."
    )


# ── the work ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Counts:
    """What the progress says: items done, failures among them, hours of video and how fast they go."""

    progress: Progress
    total: int
    unit: str
    done: int = 0
    failed: int | None = None
    hours: float | None = None
    began: tuple[float, float] | None = None  # time, and the hours that were done by then

    def tell(self) -> None:
        said = []
        if self.hours is not None:
            self.began = self.began or (time.monotonic(), self.hours)
            rate = (self.hours - self.began[1]) / max(time.monotonic() - self.began[0], 1e-6)
            said.append(f"{self.hours:,.2f} h of video, {rate:.4f} h/s")
        said += [] if self.failed is None else [f"{self.failed:,} failed"]
        self.progress(self.done, self.total, f"{self.unit} ({', '.join(said)})" if said else self.unit)


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
    """Return `function(item)` for each item, in order, by processes of this machine; see `share_clips`."""
    rows = map_clips_in_parts(
        function,
        items,
        on_crash=on_crash,
        on_timeout=on_timeout,
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
    on_crash: Callable[[T], Row],
    on_timeout: Callable[[T], Row] | None = None,
    time_limit_seconds: float | None = None,
    executor: ExecutorSpec,
    chunk_size: int = 32,
    parts: Path | None = None,
    progress: Progress = no_progress,
    unit: str = "clips",
    failed: Callable[[Row], bool] | None = None,
    video_seconds: Sequence[float] | None = None,
) -> Iterator[Row] | PartSummary:
    """Do `function` of each item and return the rows, in the order of the items; of a part, its summary.

    `function` returns plain JSON values. It runs in other processes when the crew has several workers or a
    cluster, or an item has a time limit; `on_crash` and `on_timeout` (default: `on_crash`) run where the
    process was started. With `parts`, finished chunks are kept in that folder, which the caller names after
    what the result depends on and removes with `forget_parts` once the result is safe; the rows are then read
    from it one chunk at a time. A part and a merge need it. `failed` and `video_seconds` (of each item) are
    for the progress. Raises what `function` raises, StageError when parts are to be merged and one is
    missing, StorageError.
    """
    chunks = [items[start : start + chunk_size] for start in range(0, len(items), chunk_size)]
    mine = part_rows(len(chunks), executor.part)
    if parts is not None and not executor.merge:
        make_parts(parts)
    counts = _Counts(progress, sum(len(chunks[number]) for number in mine), unit)
    counts.failed = None if failed is None else 0
    counts.hours = None if video_seconds is None else 0.0
    found: dict[int, list[Row]] = {}  # without a folder, rows are kept here

    def count(number: int, rows: list[Row]) -> None:
        counts.done += len(rows)
        if failed is not None and counts.failed is not None:
            counts.failed += sum(map(failed, rows))
        if video_seconds is not None and counts.hours is not None:
            start = number * chunk_size
            counts.hours += sum(video_seconds[start : start + len(rows)]) / 3600

    todo = []
    for number in mine:
        rows = None if parts is None else _read_part(_chunk_file(parts, number), len(chunks[number]))
        if rows is None:
            todo.append((number, chunks[number]))
        else:
            count(number, rows)
    done_before = counts.done
    counts.tell()
    if executor.merge and parts is not None:
        check_parts(parts, counts.total - counts.done, counts.total)
    for number, rows in _worked(
        function, todo, executor, on_crash, on_timeout or on_crash, time_limit_seconds
    ):
        if parts is None:
            found[number] = rows
        else:
            write_part(_chunk_file(parts, number), rows)
        count(number, rows)
        counts.tell()
    if executor.part is not None and parts is not None:
        return part_done(parts, executor.part, counts.total, done_before)
    return _rows(chunks, parts, found)


def _chunk_file(parts: Path, number: int) -> Path:
    return parts / f"{number:06d}.json"


def _rows(chunks: list[Sequence[T]], parts: Path | None, found: dict[int, list[Row]]) -> Iterator[Row]:
    for number, chunk in enumerate(chunks):
        rows = found.pop(number) if parts is None else _read_part(_chunk_file(parts, number), len(chunk))
        if rows is None:
            raise StorageError(
                f"{parts}: chunk {number} is gone while it is read. Run the same command again."
            )
        yield from rows


def _worked(
    function: Callable[[T], Row],
    todo: list[tuple[int, Sequence[T]]],
    executor: ExecutorSpec,
    on_crash: Callable[[T], Row],
    on_timeout: Callable[[T], Row],
    time_limit_seconds: float | None,
) -> Iterator[tuple[int, list[Row]]]:
    """Yield (number, rows) of each chunk as it is finished."""
    if not todo:
        return
    if executor.engine == "local" and executor.num_workers == 1 and time_limit_seconds is None:
        yield from ((number, [function(item) for item in chunk]) for number, chunk in todo)
        return
    pool: AbstractContextManager[WorkerPool]
    if executor.engine == "ray":
        from vidcurate.executor.ray_actors import Cluster

        pool = Cluster(
            function,
            min(executor.num_workers, len(todo)),
            on_crash=on_crash,
            on_timeout=on_timeout,
            time_limit_seconds=time_limit_seconds,
        )
    else:
        pool = Workers(
            function,
            executor.num_workers,
            on_crash=on_crash,
            on_timeout=on_timeout,
            time_limit_seconds=time_limit_seconds,
        )
    with pool as workers:
        yield from workers.run(todo)


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
