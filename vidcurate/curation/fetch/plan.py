"""Download plan: byte ranges of zip parts that hold the kept clips of a run.

OpenVid-1M consists of 186 zips of some 40 GB, and its table does not say which one holds a clip (OpenVid-1M
issues 19 and 21). Their central directories do, and range requests read them: a filtered subset is then a
list of byte ranges. `RUN/parts.parquet` caches the directories, one row per member, for the next plan.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl

from vidcurate.curation.clip_table import table
from vidcurate.curation.clip_table.schema import require
from vidcurate.curation.fetch import zips
from vidcurate.curation.fetch.zips import ZipPart
from vidcurate.curation.ingest.reconcile import MAX_LISTED
from vidcurate.errors import InputError
from vidcurate.executor.map_clips import Progress, no_progress
from vidcurate.storage import atomic_file
from vidcurate.storage.ranges import spans

PARTS = "parts.parquet"
MEMBER = {
    "part": pl.String,
    "name": pl.String,
    "offset": pl.Int64,
    "range_bytes": pl.Int64,
    "compressed_bytes": pl.Int64,
    "size_bytes": pl.Int64,
    "crc32": pl.Int64,
    "method": pl.Int32,
    "problem": pl.String,
}
# Columns of a plan. A file has one row for each piece of its part that contains bytes of it.
COLUMNS = (
    "video_path", "clips", "part", "name", "offset", "range_bytes", "compressed_bytes", "size_bytes", "crc32",
    "method", "range", "ranges", "place", "place_bytes", "first_byte", "last_byte",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPlanSummary:
    """Counts of a plan; `files_wanted` = `files_planned` + `missing` + `conflicting` + `refused`.

    `missing`: files that no part has. `conflicting`: files with several members of different content.
    `refused`: files whose only members are unsafe. `duplicates`: further members with the same content.
    `wrong_size`: downloaded files with another size than their member. `extra`: members that no row of the
    table names. `not_wanted`: members that only rejected rows name.
    """

    clips_wanted: int
    files_wanted: int
    files_planned: int
    missing: int
    conflicting: int
    refused: int
    duplicates: int
    wrong_size: int
    extra: int
    not_wanted: int
    rejected_as_missing: int
    parts: int
    parts_touched: int
    bytes_to_fetch: int
    bytes_of_parts: int
    share_of_bytes: float
    plan: str


def _stamps(parts: Sequence[ZipPart]) -> dict[str, str]:
    return {
        f"{part.name}/{number}": f"{one.size_bytes}:{one.stamp}"
        for part in parts
        for number, one in enumerate(part.pieces)
    }


def directory(run: Path, parts: Sequence[ZipPart], *, progress: Progress = no_progress) -> pl.DataFrame:
    """Return every member of the parts (columns of MEMBER), in the order of parts and bytes.

    RUN/parts.parquet caches them: parts with the same size and stamp are not read again. Raises InputError
    for a damaged zip, StorageError.
    """
    path, stamps = run / PARTS, _stamps(parts)
    known: pl.DataFrame | None = None
    before: dict[str, str] = {}
    if path.exists():
        before = dict(table.provenance(path).inputs)
        known = pl.read_parquet(path)
    frames = []
    for number, part in enumerate(parts):
        keys = [f"{part.name}/{at}" for at in range(len(part.pieces))]
        if known is not None and all(key in before and before[key] == stamps[key] for key in keys):
            frames.append(known.filter(pl.col("part") == part.name))
        else:
            rows = [{"part": part.name, **asdict(member)} for member in zips.members(part)]
            frames.append(pl.DataFrame(rows, schema=MEMBER))
        progress(number + 1, len(parts), "parts")
    found = pl.concat(frames)
    if stamps != before or known is None:
        origin = table.Provenance(stage="parts", settings={}, inputs=stamps)
        table.write(found, path, origin)
    return found


def _files(clips: pl.LazyFrame) -> pl.DataFrame:
    """Return every file that the table names: video_path, base, clips (kept ones), is_wanted, size_bytes."""
    schema = clips.collect_schema()
    wanted = (
        pl.col("is_kept")
        if "is_kept" in schema
        else pl.col("ingest_problem").fill_null("missing_file") == "missing_file"
    )
    has_size = "file_size_bytes" in schema
    size = pl.col("file_size_bytes") if has_size else pl.lit(None, dtype=pl.Int64)
    return (
        clips.filter(pl.col("video_path").is_not_null())
        .select("video_path", wanted=wanted, file_size_bytes=size)
        .group_by("video_path", maintain_order=True)
        .agg(pl.col("wanted").sum().alias("clips"), pl.col("file_size_bytes").first())
        .with_columns(
            pl.col("video_path").str.split("/").list.last().alias("base"), is_wanted=pl.col("clips") > 0
        )
        .collect()
    )


def _matched(files: pl.DataFrame, members: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each pair of a wanted file and a member with its name (its path, if any has it)."""
    found = (
        files.filter("is_wanted")
        .select("video_path", "base", "clips", "file_size_bytes")
        .with_row_index("file")
        .join(
            members.with_columns(base=pl.col("name").str.split("/").list.last()),
            on="base",
            how="inner",
            maintain_order="left_right",
        )
    )
    exact = (pl.col("name") == pl.col("video_path")) | pl.col("name").str.ends_with(
        pl.lit("/") + pl.col("video_path")
    )
    in_folder = pl.col("video_path").str.contains("/", literal=True)
    return found.with_columns(exact=exact & in_folder).filter(
        pl.col("exact") | ~pl.col("exact").any().over("file")
    )


def plan(
    run: Path, parts: Sequence[ZipPart], *, progress: Progress = no_progress
) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Return the files to fetch (one row per file) and the findings as plain values.

    Columns: video_path, clips, part, name, offset, range_bytes, compressed_bytes, size_bytes, crc32, method;
    rows in the order of parts and bytes. The findings have a count and a list for each kind of
    FetchPlanSummary. Raises StageError, ColumnError, InputError, StorageError.
    """
    newest = table.newest_stage(run)
    clips = table.scan(run, newest)
    needed = ("clip_id", "video_path", "ingest_problem")
    require(clips.collect_schema(), needed, str(table.stage_path(run, newest)))
    members = directory(run, parts, progress=progress).with_row_index("place")
    files = _files(clips)
    pairs = _matched(files, members)
    sound = pairs.filter(pl.col("problem").is_null())
    contents = sound.group_by("video_path").agg(pl.struct("crc32", "size_bytes").n_unique().alias("contents"))
    conflicting = contents.filter(pl.col("contents") > 1)["video_path"]
    agreed = sound.filter(~pl.col("video_path").is_in(conflicting.implode()))
    chosen = agreed.sort("place").unique("video_path", keep="first", maintain_order=True)
    wanted = files.filter("is_wanted")
    named = pl.Series(pairs["video_path"].unique())
    missing = wanted.filter(~pl.col("video_path").is_in(named.implode()))
    refused_files = named.filter(~named.is_in(sound["video_path"].implode()))
    bases = files.select("base").unique()
    by_name = members.with_columns(base=pl.col("name").str.split("/").list.last())
    extra = by_name.join(bases, on="base", how="anti", maintain_order="left")
    not_wanted = by_name.join(bases, on="base", how="semi").join(wanted, on="base", how="anti")
    known_size = pl.col("file_size_bytes").is_not_null()
    wrong = chosen.filter(known_size & (pl.col("file_size_bytes") != pl.col("size_bytes")))
    again = agreed.join(chosen.select("place"), on="place", how="anti", maintain_order="left")
    missing_rows = clips.filter(pl.col("ingest_problem") == "missing_file")
    rejected = missing_rows.select(pl.len()).collect().item() if "is_kept" in clips.collect_schema() else 0

    def listed(frame: pl.DataFrame, *columns: str) -> dict[str, Any]:
        return {"count": len(frame), "listed": frame.head(MAX_LISTED).select(columns).to_dicts()}

    findings = {
        "missing": listed(missing, "video_path"),
        "conflicting": listed(
            sound.filter(pl.col("video_path").is_in(conflicting.implode())).sort("place"),
            "video_path", "part", "name", "size_bytes", "crc32",
        ),
        "refused": listed(members.filter(pl.col("problem").is_not_null()), "part", "name", "problem"),
        "duplicates": listed(again, "video_path", "part", "name"),
        "wrong_size": listed(wrong, "video_path", "file_size_bytes", "size_bytes"),
        "extra": listed(extra, "part", "name"),
        "not_wanted": {"count": len(not_wanted)},
        "counts": {
            "clips_wanted": int(wanted["clips"].sum()),
            "files_wanted": len(wanted),
            "conflicting": len(conflicting),
            "refused": len(refused_files),
            "rejected_as_missing": rejected,
        },
    }  # fmt: skip
    kept = ("video_path", "clips", *(name for name in MEMBER if name != "problem"))
    return chosen.select(kept), findings


def rows_of(planned: pl.DataFrame, parts: Sequence[ZipPart]) -> pl.DataFrame:
    """Return the download list: one row per file and piece, with the piece's location and byte range.

    `range` counts the rows of a file, `ranges` is their number: two for a file that spans two pieces.
    """
    pieces = {part.name: part.pieces for part in parts}
    rows = []
    for row in planned.iter_rows(named=True):
        found = spans(pieces[row["part"]], row["offset"], row["range_bytes"])
        for number, (one, first, count) in enumerate(found, start=1):
            rows.append(
                {
                    **row,
                    "range": number,
                    "ranges": len(found),
                    "place": one.place,
                    "place_bytes": one.size_bytes,
                    "first_byte": first,
                    "last_byte": first + count - 1,
                }
            )
    integers = dict.fromkeys(("range", "ranges", "place_bytes", "first_byte", "last_byte"), pl.Int64)
    return pl.DataFrame(rows, schema={**planned.schema, **integers, "place": pl.String}).select(COLUMNS)


def run_fetch_plan(
    run: Path, places: Sequence[str], out: Path, *, progress: Progress = no_progress
) -> FetchPlanSummary:
    """Write the download list of a run's kept clips to `out` (.csv) and the findings next to it (.json).

    Raises InputError for a part that is damaged or unreachable, StageError, StorageError.
    """
    if out.suffix != ".csv":
        raise InputError(f"{out}: a plan is a .csv file. Give --out a name that ends in .csv.")
    if not run.is_dir():
        table.newest_stage(run)  # says what is missing
    parts = zips.find_parts(places)
    planned, findings = plan(run, parts, progress=progress)
    counts = findings.pop("counts")
    whole = sum(part.size_bytes for part in parts)
    fetched = int(planned["range_bytes"].sum())
    atomic_file.write_text(out, rows_of(planned, parts).write_csv())
    summary = FetchPlanSummary(
        **counts,
        files_planned=len(planned),
        **{
            name: findings[name]["count"]
            for name in ("missing", "duplicates", "wrong_size", "extra", "not_wanted")
        },
        parts=len(parts),
        parts_touched=planned["part"].n_unique(),
        bytes_to_fetch=fetched,
        bytes_of_parts=whole,
        share_of_bytes=fetched / whole if whole else 0.0,
        plan=str(out),
    )
    by_part = (
        planned.group_by("part", maintain_order=True)
        .agg(pl.len().alias("files"), pl.col("range_bytes").sum().alias("bytes"))
        .join(
            pl.DataFrame({"part": [p.name for p in parts], "bytes_of_part": [p.size_bytes for p in parts]}),
            on="part",
        )
    )
    report = {**{k: v for k, v in asdict(summary).items() if k != "plan"}, "by_part": by_part.to_dicts()}
    atomic_file.write_json(out.with_suffix(".json"), {**report, "findings": findings})
    return summary
