"""Metadata table as a lazy frame, with tolerant matching of column names.

CSV cells are read as text, always: a reader that guesses turns the id 12.10 into 12.1. Names are matched
without regard to case, spaces, hyphens and underscores, so `aesthetic score` is `aesthetic_score`. Text that
is not UTF-8 is never guessed at; an encoding that is asked for is converted into a file beside the table.
"""

import codecs
import csv
import difflib
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from vidcurate.curation.clip_table import table
from vidcurate.curation.ingest.rows import CELLS
from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.errors import ColumnError, InputError, StorageError
from vidcurate.storage import regular_file

SEPARATORS = {".csv": ",", ".tsv": "\t"}
PARQUET = (".parquet", ".pq")
_MOST_LETTERS = 300  # of the reason that polars gives: its panics nest
JSON_LINES = (".jsonl", ".ndjson")
# Cells that stand for "nothing here" in a table that pandas or a database wrote.
ABSENT = ("", "nan", "NaN", "None", "null", "NULL", "NA", "N/A", "<NA>")
_LONGEST_ABSENT = max(map(len, ABSENT))
OWN = "own:"  # own:3 is the column of rows that holds the source's own column number 3, from 0
_CHUNK_BYTES = 1 << 20
# Polars reads text in chunks that grow with the file, up to 16 MB and several at once: 180 MB beside the
# rows. Chunks of 2 MB hold 60 MB at most and take the same time. A value that the user set stays.
for _variable in ("POLARS_CSV_CHUNK_SIZE", "POLARS_NDJSON_CHUNK_SIZE"):
    os.environ.setdefault(_variable, str(2 << 20))


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """An opened table: `dtypes` are those of the file, before anything is made text.

    `is_text`: every cell is text that says nothing of its type, as in a CSV.
    """

    path: Path
    frame: pl.LazyFrame
    dtypes: Mapping[str, pl.DataType]
    is_text: bool = False


def normal(name: str) -> str:
    """Return a column name as it is compared: `Aesthetic Score` becomes `aesthetic_score`."""
    return re.sub(r"[^0-9a-z]+", "_", name.strip().lower()).strip("_")


def listed(names: Iterable[str], limit: int = 30) -> str:
    """Return column names for a message: each cut to 40 characters, at most `limit`."""
    shown = [name if len(name) <= 40 else name[:37] + "..." for name in names]
    more = f" and {len(shown) - limit} more" if len(shown) > limit else ""
    return (", ".join(name or "(unnamed)" for name in shown[:limit]) or "none") + more


def open_source(spec: IngestSpec, scratch: Path) -> Source:
    """Open the metadata file; `scratch` is a folder for a copy in UTF-8 where one is needed.

    Raises InputError for a file that is missing, empty, of an unknown format or not text in the encoding.
    """
    path = spec.metadata
    suffix = path.suffix.lower()
    try:
        with regular_file.opened(path) as file:
            head = file.read(4096)
    except OSError as error:
        raise InputError(f"{path}: the metadata cannot be read ({error.strerror}).") from error
    if not head:
        raise InputError(f"{path}: the metadata file is empty; it needs a header and rows.")
    try:
        if suffix in PARQUET:
            return _source(path, pl.scan_parquet(path))
        if suffix in SEPARATORS or suffix in JSON_LINES:
            text = _as_utf8(path, head, spec.encoding, scratch)
            if suffix in JSON_LINES:
                return json_lines(path, text)
            return _csv(path, text, spec.separator or SEPARATORS[suffix])
    except (*table.UNREADABLE, UnicodeDecodeError) as error:
        raise unreadable(path, error, spec.encoding) from error
    known = ", ".join((*SEPARATORS, *PARQUET, *JSON_LINES))
    raise InputError(
        f"{path}: {suffix or 'no extension'} is not a kind of table that is read ({known}); "
        "a JSON file, a folder of videos or a tar of clips is read too."
    )


def _source(path: Path, frame: pl.LazyFrame) -> Source:
    return Source(path=path, frame=frame, dtypes=dict(frame.collect_schema()))


def _csv(path: Path, text: Path, separator: str) -> Source:
    frame = pl.scan_csv(text, infer_schema=False, separator=separator)
    quoted = [
        name for name in frame.collect_schema() if '""' in name
    ]  # polars leaves quotes in names doubled
    frame = frame.rename({name: name.replace('""', '"') for name in quoted}) if quoted else frame
    source = Source(path=path, frame=frame, dtypes=dict(frame.collect_schema()), is_text=True)
    if len(source.dtypes) == 1:
        only = next(iter(source.dtypes))
        for other, word in ((";", "';'"), ("\t", "a tab"), ("|", "'|'"), (",", "','")):
            if other != separator and other in only:
                raise InputError(
                    f"{path}: the header is one column; its separator seems to be {word}. Set it."
                )
    return source


def json_lines(path: Path, text: Path) -> Source:
    """Open JSON Lines with every key of every row; a nested value other than a plain list is JSON text."""
    try:
        guessed = dict(pl.scan_ndjson(text, infer_schema_length=None).collect_schema())
    except pl.exceptions.PolarsError:  # one key holds structs and text, or structs of other kinds
        guessed = _types_of_keys(path, text)
    # Text, so that a number stays as it was written; a list may be one that an adapter takes apart.
    held = {name: dtype if _is_plain_list(dtype) else pl.String() for name, dtype in guessed.items()}
    dtypes = {name: held[name] if dtype.is_nested() else dtype for name, dtype in guessed.items()}
    return Source(path=path, frame=pl.scan_ndjson(text, schema=held), dtypes=dtypes)


def _is_plain_list(dtype: pl.DataType) -> bool:
    """Return whether every value of a type is a list, of lists or plain values."""
    while isinstance(dtype, pl.List) and isinstance(dtype.inner, pl.DataType):
        dtype = dtype.inner
        if not dtype.is_nested():
            return True
    return False


def _types_of_keys(path: Path, text: Path) -> dict[str, pl.DataType]:
    """Return key → type of all rows of JSON Lines: int, float, bool, else text.

    Raises InputError for a line that is no object.
    """
    kinds: dict[str, set[type]] = {}
    with text.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line) if line.strip() else {}
                for key, value in row.items():
                    kinds.setdefault(key, set()).update(() if value is None else (type(value),))
            except (ValueError, AttributeError) as error:
                raise InputError(f"{path}: line {number} is no JSON object ({error}).") from error
    plain: list[tuple[set[type], pl.DataType]] = [
        ({bool}, pl.Boolean()),
        ({int}, pl.Int64()),
        ({int, float}, pl.Float64()),
    ]
    return {
        key: next((dtype for only, dtype in plain if seen and seen <= only), pl.String())
        for key, seen in kinds.items()
    }


def _as_utf8(path: Path, head: bytes, encoding: str, scratch: Path) -> Path:
    """Return a path whose text is UTF-8: `path` itself, or a converted copy in `scratch`."""
    try:
        name = codecs.lookup(encoding).name
    except LookupError:
        raise InputError(f"encoding {encoding!r} is not known; utf-8, latin-1 and cp1252 are.") from None
    if name in ("utf-8", "utf-8-sig", "ascii"):
        if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise InputError(f"{path}: begins like UTF-16, not {encoding}. Set the encoding to utf-16.")
        return path
    copy = scratch / f"metadata{path.suffix.lower()}"
    try:
        with (
            path.open(encoding=name, newline="") as read,
            copy.open("w", encoding="utf-8", newline="") as write,
        ):
            shutil.copyfileobj(read, write, _CHUNK_BYTES)
    except UnicodeError as error:
        raise InputError(f"{path}: is not {encoding} ({error}). Set the right encoding.") from error
    except OSError as error:
        raise StorageError(f"{copy}: cannot be written ({error.strerror}).") from error
    return copy


def no_rows(path: Path) -> InputError:
    """Return what is wrong with a table that holds nothing but its header."""
    return InputError(f"{path}: a header and no rows; there is nothing to take in.")


def unreadable(path: Path, error: BaseException, encoding: str) -> InputError:
    """Return what is wrong with the table that made polars fail, with the place where it can be found."""
    is_text = path.suffix.lower() not in PARQUET and path.is_file()
    if is_text and codecs.lookup(encoding).name in ("utf-8", "utf-8-sig", "ascii"):
        place = _first_not_utf8(path)
        if place is not None:
            return InputError(
                f"{path}: line {place[0]} is not UTF-8 (byte 0x{place[1]:02x}). "
                "Set the encoding, such as latin-1 or cp1252."
            )
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    if isinstance(error, pl.exceptions.NoDataError):
        return InputError(f"{path}: the metadata file holds no header and no rows.")
    if "more fields" in reason:
        reason = _first_long_row(path, encoding) or reason
    kind = path.suffix.lstrip(".")
    return InputError(f"{path}: cannot be read as {kind}: {reason[:_MOST_LETTERS]}.".replace("..", "."))


def _first_not_utf8(path: Path) -> tuple[int, int] | None:
    """Return (line from 1, byte) of the first byte that is not UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    line = 1
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            try:
                line += decoder.decode(chunk).count("\n")
            except UnicodeDecodeError as error:
                before = error.object[: error.start].count(b"\n")
                return line + before, error.object[error.start]
    return None


def _first_long_row(path: Path, encoding: str) -> str | None:
    """Return where the first row with more cells than the header is; read only after a failure."""
    csv.field_size_limit(1 << 30)
    separator = SEPARATORS.get(path.suffix.lower(), ",")
    with path.open(encoding=encoding, errors="replace", newline="") as file:
        reader = csv.reader(file, delimiter=separator)
        width = len(next(reader, []))
        for number, row in enumerate(reader, start=1):
            if len(row) > width:
                return (
                    f"row {number} (line {reader.line_num}) has {len(row)} cells, the header {width}; "
                    "a caption with a comma needs quotes"
                )
    return None


def find(source: Source, *names: str) -> str | None:
    """Return the source's column that is one of `names` (the first that is there), or None.

    A name as it stands goes before one that only compares equal. Raises ColumnError when two columns do.
    """
    for name in names:
        if name in source.dtypes:
            return name
        alike = [column for column in source.dtypes if normal(column) == normal(name) and column]
        if len(alike) > 1:
            raise ColumnError(
                f"{source.path}: {' and '.join(map(repr, alike))} both read as {name}; rename one."
            )
        if alike:
            return alike[0]
    return None


def demand(source: Source, name: str, what: str) -> str:
    """Return the source's column `name`. Raises ColumnError that says `what` asked and what is near."""
    column = find(source, name)
    if column is not None:
        return column
    near = difflib.get_close_matches(
        normal(name), [normal(column) for column in source.dtypes], n=1, cutoff=0.6
    )
    hint = f" Did you mean {next(c for c in source.dtypes if normal(c) == near[0])!r}?" if near else ""
    raise ColumnError(f"{source.path}: no column {name!r} ({what}); it has {listed(source.dtypes)}.{hint}")


def pick(
    source: Source, columns: Mapping[str, tuple[str, ...]], *, required: Iterable[str] = ()
) -> dict[str, str]:
    """Return {our column: source column} for those of `columns` that are there, by their accepted names.

    Raises ColumnError when a `required` one is not.
    """
    found = {}
    for ours, names in columns.items():
        column = find(source, *names)
        if column is not None:
            found[ours] = column
        elif ours in required:
            demand(source, names[0], f"needed for {ours}")
    return found


def text(source: Source, found: Mapping[str, str]) -> pl.LazyFrame:
    """Return the columns of `found` under our names as trimmed text; a cell that holds nothing is null.

    A word such as `nan` counts as nothing, but not in an id or a path. A list of captions stays a list. The
    other columns follow untouched, as OWN and their number. Raises ColumnError for an id that the file holds
    as a floating number: its zeros are lost already.
    """
    for ours in ("clip_id", "source_id"):
        if ours in found and source.dtypes[found[ours]].is_float():
            raise ColumnError(
                f"{source.path}: the ids in {found[ours]!r} are floating numbers, so 12.10 is 12.1 already; "
                "write them as text."
            )
    lists = {
        ours: pl.col(column)
        for ours, column in found.items()
        if ours.startswith("caption") and isinstance(source.dtypes[column], pl.List)
    }
    cells = {
        ours: _trimmed(pl.col(column), source.dtypes[column])
        for ours, column in found.items()
        if ours not in lists
    }
    taken = taken_by(found)
    own = {f"{OWN}{place}": pl.nth(place) for place, name in enumerate(source.dtypes) if name not in taken}
    frame = source.frame.select(**cells, **lists, **own)
    return frame.with_columns(
        pl.when(_is_absent(ours)).then(None).otherwise(pl.col(ours)).alias(ours) for ours in cells
    )


def _is_absent(ours: str) -> pl.Expr:
    """Return whether a trimmed cell holds nothing. Looks only at short cells: the others cost a hash each."""
    length = pl.col(ours).str.len_bytes()
    if ours in ("clip_id", "source_id", "video_path"):
        return length == 0
    return pl.when(length <= _LONGEST_ABSENT).then(pl.col(ours)).is_in(ABSENT)


def _trimmed(cell: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Return a cell as text without the blanks around it.

    Copies only texts that may have such blanks, because a million captions are 400 MB: every blank is a
    control character, the space, or not ASCII.
    """
    if dtype != pl.String():
        text = cell.struct.json_encode() if isinstance(dtype, pl.Struct) else cell.cast(pl.String)
        return text.str.strip_chars()
    last = cell.str.tail(1)
    may_have = (cell < "!") | (cell >= "\x80") | (last < "!") | (last >= "\x80")
    return pl.coalesce(pl.when(may_have).then(cell).str.strip_chars(), cell)


def taken_by(found: Mapping[str, str]) -> set[str]:
    """Return the source columns that become a column of ours as they are; `found` maps ours to them."""
    return {column for ours, column in found.items() if ours in CELLS or ours.startswith("caption:")}
