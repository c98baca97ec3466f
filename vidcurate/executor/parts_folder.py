"""Parts folder of a stage: finished chunks of clips, finished parts, merging.

Each chunk of clips is one JSON file that appears whole or not at all. `--part i/n` lets n machines share a
stage: each computes every n-th chunk, and `--merge` reads all chunks once every part is done.
"""

import json
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vidcurate.errors import InputError, StageError, StorageError
from vidcurate.executor.worker_processes import Row
from vidcurate.storage import atomic_file, regular_file

EngineName = Literal["local", "ray"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Part `number` (from 1) of the `of` parts of a stage's clips."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSpec:
    """Engine, number of workers and part of a stage's run. No byte of a table depends on them.

    `local` runs processes of this machine, `ray` those of a Ray cluster. With `part` the stage computes only
    that part of the clips and writes no table; with `merge` the stage computes nothing and writes the table
    from the chunks of all parts.
    """

    engine: EngineName = "local"
    num_workers: int = 1
    part: Part | None = None
    merge: bool = False

    def __post_init__(self) -> None:
        if self.part is not None and self.merge:
            raise InputError(
                "--part and --merge: give one of them. --part computes a part, --merge combines all parts."
            )


DEFAULT_EXECUTOR = ExecutorSpec()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSummary:
    """Result of a part: its clips, those done before this run, and which parts of the stage are done."""

    part: str
    clips: int
    clips_done_before: int
    parts_done: tuple[str, ...]
    parts_missing: tuple[str, ...]


def parse_part(text: str) -> Part:
    """Parse `3/8` as part 3 of 8. Raises InputError."""
    number, slash, of = text.partition("/")
    if not slash or not number.isdecimal() or not of.isdecimal() or not 1 <= int(number) <= int(of):
        raise InputError(f"--part {text}: write it as i/n with i from 1 to n, for example --part 3/8.")
    return Part(number=int(number), of=int(of))


def chunks_of_part(count: int, part: Part | None) -> list[int]:
    """Return the numbers of a part's chunks: every n-th of `count`, so that slow neighbours are spread."""
    return list(range(count)) if part is None else list(range(part.number - 1, count, part.of))


def make_parts(parts: Path) -> None:
    """Make a parts folder. Raises StorageError."""
    try:
        parts.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{parts}: cannot make this folder ({error.strerror}).") from error


def remove_parts(parts: Path) -> None:
    """Remove a parts folder once the stage has written its result."""
    shutil.rmtree(parts, ignore_errors=True)


def remove_chunks(parts: Path, numbers: Iterable[int]) -> None:
    """Remove these chunks, and the folder when it is then empty."""
    for number in numbers:
        chunk_file(parts, number).unlink(missing_ok=True)
        chunk_file(parts, number).with_suffix(".npy").unlink(missing_ok=True)
    with suppress(OSError):
        parts.rmdir()


def chunk_file(parts: Path, number: int) -> Path:
    """Return the file of chunk `number`."""
    return parts / f"{number:06d}.json"


def read_chunk(path: Path, length: int) -> list[Row] | None:
    """Return a chunk's rows; None when the file is absent, damaged or not of `length` rows."""
    try:
        rows = json.loads(regular_file.read_bytes(path))
    except (OSError, ValueError, RecursionError):
        return None
    return rows if isinstance(rows, list) and len(rows) == length else None


def write_part(path: Path, rows: Any) -> None:
    """Write `rows` as JSON, atomically. Raises StorageError."""
    with atomic_file.storage_errors(path):
        atomic_file.put(path, json.dumps(rows), is_flushed=False)  # two runs of one chunk: the same bytes


def _finished_parts(parts: Path) -> list[Part]:
    """Return the parts that have written their `.done` file."""
    names = (path.name.removesuffix(".done").split("-of-") for path in parts.glob("*-of-*.done"))
    return sorted(
        (Part(number=int(number), of=int(of)) for number, of in names), key=lambda one: (one.of, one.number)
    )


def finish_part(parts: Path, part: Part, clips: int, clips_done_before: int) -> PartSummary:
    """Write the part's `.done` file and return the summary. Raises StorageError."""
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
    """Raise StageError when clips are missing: names the missing parts, or the stale ones."""
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
            f"and {parts.name} does not exist. Run every part again."
        )
    raise StageError(
        f"{parts}: no part is done ({clips_missing:,} of {clips:,} clips are missing). "
        "Run the parts first: the same command with --part 1/n … n/n."
    )
