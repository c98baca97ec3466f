"""Stage tables of a run: one Parquet file per stage, with its provenance.

`RUN/ingest.parquet` has every row; each later file has the same rows in the same order, the clip id and only
the columns that its stage wrote, so that a filter does not copy a million captions. `scan` joins them. Files
are written whole or not at all. The Parquet metadata (key `vidcurate`) of `RUN/<stage>.parquet` has the
stage, the package version, the stage's settings and the digests of its inputs. When all of these are
unchanged, the stage is up to date; when its input table has changed since, later stages refuse to read it.
A table whose bytes are not those that were written (`table_checksum`) is damaged: no stage reads it, and its
own command writes it again.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq

from vidcurate import __version__
from vidcurate.curation.clip_table import table_checksum
from vidcurate.curation.clip_table.schema import COLUMNS, OF_CAPTION, STAGES, written_by
from vidcurate.errors import InputError, StageError, StorageError, TableError
from vidcurate.storage import atomic_file
from vidcurate.storage.checksum import sha256_file

# What polars raises for a damaged Parquet file: its panics are no Exception.
UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
_METADATA_KEY = "vidcurate"
_JOURNALS = ("captions.jsonl", "costs.jsonl", "reviews.jsonl")  # what no command can write again
_ROWS_PER_SLICE = 8192
# By itself polars streams some 100,000 rows at once in each thread: fewer take less memory, and no more time.
_STREAMED_ROWS = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Provenance of a table. `settings` is the stage's specification as plain JSON values.

    `inputs` maps a name (an earlier stage, a file) to the digest of the data read.
    """

    stage: str
    settings: Mapping[str, Any]
    inputs: Mapping[str, str]
    version: str = __version__

    def to_json(self) -> str:
        return json.dumps(
            {"stage": self.stage, "settings": self.settings, "inputs": self.inputs, "version": self.version},
            sort_keys=True,
        )


def digest(path: Path) -> str:
    """Return the SHA-256 of the file, as hex. Raises StorageError.

    Digests of unchanged files are cached in this process.
    """
    try:
        facts = path.stat()
        return _digest(path, facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror}).") from error


@lru_cache(maxsize=256)
def _digest(path: Path, *_: int) -> str:
    return sha256_file(path)


def stage_path(run: Path, stage: str) -> Path:
    return run / f"{stage}.parquet"


def _check(path: Path) -> None:
    """Raise TableError for a table that is missing, and for bytes that are not those that were written."""
    try:
        is_whole = table_checksum.has_own_bytes(path)
    except FileNotFoundError as error:
        raise TableError(f"{path}: no such table.") from error
    except OSError as error:
        raise TableError(f"{path}: cannot be read ({error.strerror}).") from error
    if is_whole is None:
        raise TableError(
            f"{path}: not a table written by vidcurate, or damaged (no checksum). {_again(path)}"
        )
    if not is_whole:
        raise TableError(f"{path}: damaged (its checksum is of other bytes). {_again(path)}")


def _again(path: Path) -> str:
    return f"Run `vidcurate {command_of(path.stem)}` again."


def provenance(path: Path) -> Provenance:
    """Read the provenance of the table at `path`.

    Raises TableError for a damaged file, and for one not written by vidcurate.
    """
    _check(path)
    try:
        metadata = pq.read_metadata(path).metadata or {}
        fields = json.loads(metadata[_METADATA_KEY.encode()])
    except Exception as error:  # pyarrow raises many kinds for a damaged file
        raise TableError(
            f"{path}: not a table written by vidcurate ({type(error).__name__}), or damaged. {_again(path)}"
        ) from error
    return Provenance(
        stage=fields["stage"], settings=fields["settings"], inputs=fields["inputs"], version=fields["version"]
    )


def column_words(path: Path) -> dict[str, dict[str, str]]:
    """Return column → unit, meaning and what else `write` was given of it, from the table at `path`.

    Raises TableError for a file not written by vidcurate.
    """
    provenance(path)
    found: dict[str, dict[str, str]] = json.loads((pq.read_metadata(path).metadata or {})[b"columns"])
    return found


def previous_stage(run: Path, stage: str) -> str:
    """Return the nearest stage before `stage` whose table is in `run`.

    Raises StageError when there is none, or when that table was made from one that has changed since.
    """
    if not run.is_dir():
        raise StageError(f"{run}: no such run folder. Run `vidcurate ingest` first.")
    for name in reversed(STAGES[: STAGES.index(stage)]):
        if stage_path(run, name).exists():
            _check_fresh(run, name)
            return name
    raise StageError(f"{run}: no table that {stage} could read. Run `vidcurate ingest` first.")


def newest_stage(run: Path) -> str:
    """Return the last stage whose table is in `run`. Raises StageError as `previous_stage` does."""
    for name in reversed(STAGES):
        if stage_path(run, name).exists():
            _check_fresh(run, name)
            return name
    raise StageError(f"{run}: no table of any stage. Run `vidcurate ingest` first.")


def _check_fresh(run: Path, stage: str) -> None:
    for name, value in provenance(stage_path(run, stage)).inputs.items():
        if name in STAGES:
            path = stage_path(run, name)
            if not path.exists():
                raise StageError(f"{path}: missing; {stage}.parquet was made from it. Run {name} again.")
            if digest(path) != value:
                raise StageError(
                    f"{stage_path(run, stage)}: made from an older {name}.parquet. "
                    f"Run `vidcurate {command_of(stage)}` again."
                )
            _check_fresh(run, name)


def command_of(stage: str) -> str:
    """Return the name of the command that runs a stage."""
    return {
        "split": "split-by-difficulty",
        "frames": "score-frames",
        "models": "score-models",
        "own_scores": "score-own",
        "ledger": "filter",
    }.get(stage, stage)


def damaged(run: Path) -> list[Path]:
    """Return the Parquet files of a run that cannot be read to their end, or have another checksum."""
    return [path for path in sorted(run.glob("*.parquet")) if _is_unreadable(path)]


def _is_unreadable(path: Path) -> bool:
    try:
        if table_checksum.has_own_bytes(path) is False:
            return True
        pl.scan_parquet(path).sink_batches(lambda _: None)
    except UNREADABLE:
        return True
    return False


def is_up_to_date(path: Path, wanted: Provenance) -> bool:
    """Return whether `path` is a readable table with the provenance `wanted`."""
    try:
        return provenance(path).to_json() == wanted.to_json()
    except TableError:
        return False


def scan(run: Path, stage: str) -> pl.LazyFrame:
    """Return the table after `stage`, lazily: its columns joined to those of the stages before it.

    Raises StageError when the stage has not been run, TableError for a damaged file.
    """
    path = stage_path(run, stage)
    if not path.exists():
        raise StageError(f"{path}: no such table. Run `vidcurate {command_of(stage)}` first.")
    before = [name for name in provenance(path).inputs if name in STAGES]
    own = pl.scan_parquet(path)
    if not before:
        return own
    columns = own.collect_schema().names()
    earlier = scan(run, before[0])
    names = earlier.collect_schema().names()
    kept = [name for name in names if name == "clip_id" or name not in columns]
    added = [name for name in columns if name != "clip_id"]
    both = pl.concat([earlier.select(kept), own.select(added)], how="horizontal")
    return both.select([*names, *(name for name in added if name not in names)])


def write(
    frame: pl.LazyFrame | pl.DataFrame,
    path: Path,
    origin: Provenance,
    *,
    words: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    """Write `frame` to `path` as a stage's table: streamed to a temporary name, then renamed.

    A later stage writes only its own columns. `words` describes columns that COLUMNS does not have (unit,
    meaning and more, as `column_words` returns them). The same arguments give the same bytes. Raises
    StorageError when the write fails (an old table is then untouched).
    """
    with atomic_file.storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file.atomic_path(path) as partial:
            sink(_own_part(frame, path, origin, words or {}), partial, lambda: origin, words or {})


@contextmanager
def writing(frame: pl.LazyFrame | pl.DataFrame, path: Path, origin: Provenance) -> Iterator[None]:
    """Write `frame` to `path` as `write` does, in a thread, while the block runs.

    The rename follows the block: a block that raises, or a process killed in the block, leaves an old table
    untouched. So the block may write the other files of the stage, and the table comes last. Raises
    StorageError.
    """
    lazy = _own_part(frame, path, origin, {})

    def fill(partial: Path) -> None:
        sink(lazy, partial, lambda: origin, {})
        atomic_file.flush(partial)

    with ExitStack() as stack, ThreadPoolExecutor(max_workers=1) as beside:  # the thread ends before the file
        with atomic_file.storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            filled = beside.submit(fill, stack.enter_context(atomic_file.atomic_path(path)))
        yield
        with atomic_file.storage_errors(path):
            filled.result()
            stack.close()


def _own_part(
    frame: pl.LazyFrame | pl.DataFrame, path: Path, origin: Provenance, words: Mapping[str, object]
) -> pl.LazyFrame:
    """Return the columns of `frame` that the file of a stage holds, with those of `words`."""
    lazy = frame.lazy()
    if path.stem != origin.stage or not any(name in STAGES for name in origin.inputs):
        return lazy
    own = written_by(origin.stage) | (set(OF_CAPTION) if origin.stage == "filter" else set()) | set(words)
    return lazy.select(name for name in lazy.collect_schema().names() if name in own)


def sink(
    frame: pl.LazyFrame,
    file: Path,
    origin: Callable[[], Provenance],
    words: Mapping[str, Mapping[str, str]],
) -> None:
    """Stream `frame` into `file`, all its columns; `write` does so and renames. Raises what polars raises.

    `origin` is asked for when all rows have been read, so that inputs can be digested meanwhile.
    """
    names = frame.collect_schema().names()
    known = {
        name: {"unit": COLUMNS[name].unit, "meaning": COLUMNS[name].meaning}
        for name in names
        if name in COLUMNS
    }
    described = json.dumps({**known, **words}, sort_keys=True)
    with pl.Config(streaming_chunk_size=_STREAMED_ROWS):
        frame.sink_parquet(
            file,
            maintain_order=True,
            row_group_size=16_384,  # groups of 65,536 dense captions cost 600 MB more peak memory
            metadata=lambda _: {
                _METADATA_KEY: origin().to_json(),
                "columns": described,
                table_checksum.CHECKSUM: table_checksum.UNSEALED,
            },
        )
    table_checksum.seal(file)


def from_rows(rows: Iterable[Mapping[str, Any]], names: Iterable[str]) -> pl.DataFrame:
    """Return rows as the columns `names` of the table, in their dtypes; missing values are null.

    Converts in slices: as Python objects the rows need ten times the memory.
    """
    schema = {name: COLUMNS[name].dtype for name in names}
    left, slices = iter(rows), [pl.DataFrame(schema=schema)]
    while some := list(itertools.islice(left, _ROWS_PER_SLICE)):
        slices.append(
            pl.DataFrame(
                pl.Series(name, [row.get(name) for row in some], dtype=dtype)
                for name, dtype in schema.items()
            )
        )
    return pl.concat(slices)


def export(frame: pl.LazyFrame, path: Path) -> None:
    """Write a whole table for other tools: .parquet, .csv or .jsonl, by the suffix. Raises InputError.

    A CSV cell has no lists: there a column of lists or structs is JSON text.
    """
    writers: dict[str, Callable[[pl.LazyFrame, Path], object]] = {
        ".parquet": pl.LazyFrame.sink_parquet,
        ".csv": pl.LazyFrame.sink_csv,
        ".jsonl": pl.LazyFrame.sink_ndjson,
    }
    if path.suffix not in writers:
        raise InputError(f"{path}: unknown suffix {path.suffix!r}. Use {', '.join(writers)}.")
    is_journal = path.name in _JOURNALS and stage_path(path.parent, "ingest").exists()
    if path.is_file() and (is_journal or table_checksum.has_own_bytes(path) is not None):
        raise InputError(f"{path}: is a file of a stage, which a run needs. Name another file.")
    if path.suffix == ".csv":
        frame = frame.with_columns(
            _as_json(name) for name, dtype in frame.collect_schema().items() if dtype.is_nested()
        )
    with atomic_file.storage_errors(path), atomic_file.atomic_path(path) as partial:
        writers[path.suffix](frame, partial)


def _as_json(name: str) -> pl.Expr:
    """Return a nested column as JSON text. polars encodes structs only: the value goes into one and out."""
    text = pl.struct(pl.col(name).alias("x")).struct.json_encode()
    value = text.str.strip_prefix('{"x":').str.strip_suffix("}")
    return pl.when(pl.col(name).is_not_null()).then(value).alias(name)
