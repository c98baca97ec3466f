"""Download stage: fetch the byte ranges of a plan, check each file, resume.

Adjacent files of a part share one request. A file gets its final name once its CRC-32 is verified, so an
existing file of the right size is done, and the same command fetches the rest.
"""

import http.client
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import polars as pl

from vidcurate.curation.clip_table.schema import require
from vidcurate.curation.fetch import zips
from vidcurate.curation.fetch.plan import COLUMNS
from vidcurate.curation.fetch.zips import Member
from vidcurate.errors import InputError, MediaError
from vidcurate.executor.map_clips import Progress, no_progress
from vidcurate.storage import atomic_file, ranges
from vidcurate.storage.ranges import Piece

MAX_GAP_BYTES = 1 << 18  # a gap up to this size is read and discarded instead of sending another request
MAX_RUN_BYTES = 1 << 26  # largest request
LISTED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """File to fetch: `spans` are the (piece, first byte, number of bytes) of its member."""

    path: str
    member: Member
    spans: tuple[tuple[Piece, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSummary:
    """Counts of a fetch; `files` = `files_there` + `files_fetched` + `files_failed`."""

    files: int
    files_there: int
    files_fetched: int
    files_failed: int
    bytes_read: int
    failed: tuple[str, ...]
    folder: str


def read_fetch_plan(path: Path) -> list[File]:
    """Return the files of a plan, in order. Raises InputError, ColumnError, StorageError.

    Checks the size of every zip piece: InputError when one differs from the plan.
    """
    try:
        rows = pl.read_csv(path, schema_overrides={"video_path": pl.String, "name": pl.String})
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(
            f"{path}: cannot be read as a plan ({' '.join(str(error).split())[:200]})."
        ) from error
    require(rows.columns, COLUMNS, str(path), "Make it with `vidcurate fetch-plan`.")
    pieces: dict[str, Piece] = {}
    for place, size in rows.select("place", "place_bytes").unique(maintain_order=True).iter_rows():
        pieces[place] = ranges.piece(place)
        if pieces[place].size_bytes != size:
            raise InputError(
                f"{place}: has {pieces[place].size_bytes:,} bytes, but {size:,} in {path}. Run "
                "`vidcurate fetch-plan` again."
            )
    files: dict[str, File] = {}
    for row in rows.iter_rows(named=True):
        span = (pieces[row["place"]], row["first_byte"], row["last_byte"] - row["first_byte"] + 1)
        known = files.get(row["video_path"])
        if known is not None:
            files[row["video_path"]] = File(path=known.path, member=known.member, spans=(*known.spans, span))
            continue
        if zips.is_unsafe(row["video_path"]):
            raise InputError(f"{path}: {row['video_path']!r} leaves the target folder.")
        facts = {name: row[name] for name in Member.__dataclass_fields__ if name != "problem"}
        files[row["video_path"]] = File(
            path=row["video_path"], member=Member(**facts, problem=None), spans=(span,)
        )
    return list(files.values())


def runs_of(files: Sequence[File]) -> list[list[File]]:
    """Group the files into one request each: neighbours in one piece. A file in two pieces is alone."""
    runs: list[list[File]] = []
    for file in sorted(files, key=lambda file: (file.spans[0][0].place, file.spans[0][1])):
        place, first, size = file.spans[0]
        if runs and len(file.spans) == 1 and len(runs[-1][-1].spans) == 1:
            start, last = runs[-1][0].spans[0], runs[-1][-1].spans[0]
            gap = first - (last[1] + last[2])
            if start[0] == place and 0 <= gap <= MAX_GAP_BYTES and first + size - start[1] <= MAX_RUN_BYTES:
                runs[-1].append(file)
                continue
        runs.append([file])
    return runs


def _write(file: File, stream: zips.Stream, folder: Path) -> None:
    """Write one file, whole or not at all. Raises MediaError, OSError (of the source), StorageError."""
    target = folder / file.path
    with ExitStack() as stack:
        with atomic_file.storage_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            out = stack.enter_context(atomic_file.atomic_writer(target))
        for data in zips.extract(stream, file.member):
            with atomic_file.storage_errors(target):
                out.write(data)


class _Fetch:
    """Shared state of the download threads: finished files, failures, progress."""

    def __init__(self, folder: Path, files: int, progress: Progress) -> None:
        self._folder, self._files, self._progress = folder, files, progress
        self._lock = Lock()
        self.fetched, self.bytes_read = 0, 0
        self.failed: list[str] = []

    def run(self, files: list[File]) -> None:
        """Fetch a run of neighbours; after a broken connection, request the remaining files again."""
        left, attempt = list(files), 0
        while left:
            before = len(left)
            try:
                self._stream(left)
            except (OSError, http.client.HTTPException) as error:
                attempt = (
                    attempt + 1 if len(left) == before else 0
                )  # any progress resets the number of attempts
                ranges.pause(attempt, left[0].spans[0][0].place, error)

    def _stream(self, left: list[File]) -> None:
        """Write files and remove them from the front of `left`. Raises OSError when the source breaks off."""
        first = left[0].spans[0][1]
        end = left[-1].spans[0][1] + left[-1].spans[0][2]
        spans = left[0].spans if len(left) == 1 else ((left[0].spans[0][0], first, end - first),)
        stream = zips.Stream(ranges.chunks_of(spans), first)
        start = stream.place
        while left:
            file = left[0]
            for _ in stream.take(file.spans[0][1] - stream.place):
                pass
            try:
                _write(file, stream, self._folder)
            except MediaError as error:
                self._tell(problem=str(error), bytes_read=stream.place - start)
            else:
                self._tell(problem=None, bytes_read=stream.place - start)
            start = stream.place
            left.pop(0)

    def _tell(self, *, problem: str | None, bytes_read: int) -> None:
        with self._lock:
            self.bytes_read += bytes_read
            if problem is None:
                self.fetched += 1
            else:
                self.failed.append(problem)
            self._progress(self.fetched + len(self.failed), self._files, "files")


def run_fetch(
    plan: Path, folder: Path, *, num_workers: int = 4, progress: Progress = no_progress
) -> FetchSummary:
    """Fetch every file of `plan` into `folder` / video_path, except files that exist with the right size.

    A member that does not match its directory entry is listed in `failed` and not written. Raises InputError,
    ColumnError, StorageError for an unreachable piece or a failed write; finished files stay.
    """
    files = read_fetch_plan(plan)
    todo = [file for file in files if atomic_file.size_of(folder / file.path) != file.member.size_bytes]
    work = _Fetch(folder, len(todo), progress)
    runs = runs_of(todo)
    progress(0, len(todo), "files")
    with ThreadPoolExecutor(num_workers) as pool:
        waiting = [pool.submit(work.run, files_of_run) for files_of_run in runs]
        try:
            for one in waiting:
                one.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return FetchSummary(
        files=len(files),
        files_there=len(files) - len(todo),
        files_fetched=work.fetched,
        files_failed=len(work.failed),
        bytes_read=work.bytes_read,
        failed=tuple(sorted(work.failed)[:LISTED]),
        folder=str(folder),
    )
