"""Stage `dedup`: find duplicate clips, cluster them, and rank each cluster.

Kinds of duplicates: exact copies, the same coded packets, similar frames, captions or embeddings. Each kind
finds pairs or equal keys (one file per kind), `clusters` joins them, `preference` chooses the clip to keep.
This stage rejects nothing: the filter's rule `duplicate` keeps the best of a cluster that passes all other
rules.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from vidcurate.curation.clip_table import run_lock, stage_json, table
from vidcurate.curation.clip_table.schema import COLUMNS, require
from vidcurate.curation.dedup import clusters, exact, perceptual, preference
from vidcurate.curation.dedup.search import EMBEDDINGS, Search, not_looked_for, search_all
from vidcurate.curation.dedup.spec import DedupSpec
from vidcurate.errors import InputError
from vidcurate.executor.map_clips import Progress, no_progress
from vidcurate.executor.parts_folder import remove_parts
from vidcurate.storage import atomic_file, download
from vidcurate.storage.json_shape import Count

_TOP = 10
_NEEDED = (
    "clip_id", "source_id", "video_path", "file_size_bytes", "start_seconds", "end_seconds", "caption",
    "ingest_problem",
)  # fmt: skip
_USED = (
    "width", "height", "probe_status", "frames_status", "num_frames_damaged", "packet_hash",
    "perceptual_hashes", "perceptual_thumbnail", "num_cuts", *preference.BARS,
)  # fmt: skip
# A clip at 90, turned back, is at 270; every mirrored orientation is its own inverse.
_INVERSE = {"rotated 90": "rotated 270", "rotated 270": "rotated 90"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupSummary:
    """Counts of a duplicate search. `not_looked_for`: kinds not searched, with the reason.

    `silent_clips` have too few informative frames; `comparisons_skipped`: too many clips share a hash or
    phrase.
    """

    rows_in: int
    rows_compared: int
    clusters: int
    duplicates: int
    by_kind: dict[str, int]
    not_looked_for: dict[str, str]
    silent_clips: int
    comparisons_skipped: int
    largest: tuple[dict[str, Any], ...]
    up_to_date: bool


def _columns(clips: pl.DataFrame, search: Search, preferred: preference.Preference) -> pl.DataFrame:
    """Return clip_id and the columns of this stage for the participating rows."""
    found = clusters.cluster(search.labels, search.likes, preferred.place)
    kinds = np.array([*search.label_kinds, *search.like_kinds, ""])
    ids = clips["clip_id"]
    rows = np.flatnonzero(found.kept != np.arange(len(clips)))
    kind = kinds[found.link[rows]]
    orientation = []
    for row, name in zip(rows.tolist(), kind.tolist(), strict=True):
        turn = perceptual.NAMES[found.note[row]]
        turn = turn if found.forward[row] else _INVERSE.get(turn, turn)
        orientation.append(turn if name == "perceptual" else None)
    copies = pl.DataFrame(
        {
            "row": rows,
            "duplicate_of": ids.gather(found.kept[rows]),
            "duplicate_kind": kind,
            "duplicate_distance": found.distance[rows],
            "duplicate_orientation": orientation,
            "duplicate_kept_because": preference.because(preferred, found.kept, rows),
        },
        schema_overrides={"row": pl.Int64, "duplicate_orientation": pl.String, "duplicate_kind": pl.String},
    )
    whole = (
        ids.to_frame()
        .with_columns(pl.Series("kept", found.kept), pl.Series("place", preferred.place))
        .with_row_index("row")
        .with_columns(pl.col("row").cast(pl.Int64))
        .join(copies, on="row", how="left", maintain_order="left")
    )
    in_cluster = pl.len().over("kept") > 1
    return whole.select(
        "clip_id",
        pl.when(in_cluster).then(pl.col("clip_id").min().over("kept")).alias("duplicate_cluster"),
        pl.when(in_cluster).then(pl.col("place").rank("ordinal").over("kept")).alias("duplicate_rank"),
        *(name for name in copies.columns if name != "row"),
    )


def _take_part(clips: pl.DataFrame) -> pl.Series:
    return clips.select(pl.col("ingest_problem").is_null()).to_series()


@run_lock.holding_run
def run_dedup(
    run: Path,
    spec: DedupSpec,
    *,
    videos: Path | None = None,
    num_workers: int = 1,
    progress: Progress = no_progress,
) -> DedupSummary:
    """Find duplicates in the run's table and write RUN/dedup.parquet.

    Clips with an ingest problem do not participate. Exact copies need `videos`. A stopped stage resumes: file
    hashes are kept until the table is written. Raises InputError for an unusable folder or file of
    embeddings, ColumnError, StageError, StorageError.
    """
    if videos is not None and not videos.is_dir():
        raise InputError(f"{videos}: no such video folder. Set it with --videos FOLDER.")
    previous = table.previous_stage(run, "dedup")
    source = table.stage_path(run, previous)
    lazy = table.scan(run, previous)
    schema = lazy.collect_schema()
    require(schema.names(), _NEEDED, str(source))
    prefer = preference.columns_of(
        spec.prefer, schema, type(spec).model_fields["prefer"].default, str(source)
    )
    names = {*_NEEDED, *_USED, *prefer} - ({"caption"} if spec.captions is None else set())
    clips = lazy.select(name for name in schema.names() if name in names).collect()
    part = clips.filter(_take_part(clips))
    left_out = not_looked_for(clips, spec, videos)
    to_read: list[str] = []
    inputs = {previous: table.digest(source)}
    if videos is not None and "exact" not in left_out:
        files = part.filter(pl.col("video_path").is_not_null() & ~pl.col("video_path").str.starts_with("/"))
        to_read = exact.to_read(files)
        inputs["videos"] = download.digest(videos, to_read)
    if spec.semantic is not None:
        path = run / EMBEDDINGS
        if not path.is_file():
            raise InputError(f"{path}: no such file of embeddings. Run `vidcurate score-models` to write it.")
        inputs["embeddings"] = table.digest(path)
    origin = table.Provenance(
        stage="dedup",
        settings=json.loads(spec.model_dump_json()),
        inputs=inputs,
    )
    target, said = table.stage_path(run, "dedup"), run / "dedup.json"
    up_to_date = table.is_up_to_date(target, origin) and said.exists()
    if not up_to_date:
        parts = run / f".dedup-{hashlib.sha256(origin.to_json().encode()).hexdigest()[:16]}"
        contents = None
        if videos is not None and "exact" not in left_out:
            contents = exact.contents(
                to_read, videos, num_workers=num_workers, parts=parts, progress=progress
            )
        search = search_all(part, spec, left_out, contents, run, progress)
        found = _columns(part, search, preference.rank(part, prefer, search.picture_shares))
        own = [name for name, column in COLUMNS.items() if column.stage == "dedup"]
        # A repeated id participates once; its other rows have an ingest problem.
        whole = clips.select("clip_id", _take_part(clips).alias("takes_part")).join(
            found.with_columns(takes_part=True),
            on=["clip_id", "takes_part"],
            how="left",
            maintain_order="left",
        )
        atomic_file.write_json(said, {**search.notes, "not_looked_for": left_out, "rows_compared": len(part)})
        table.write(
            whole.select("clip_id", *(pl.col(name).cast(COLUMNS[name].dtype) for name in own)), target, origin
        )
        remove_parts(parts)
    return _summary(target, said, up_to_date)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Notes:
    """What dedup.json says beside the table."""

    rows_compared: Count
    not_looked_for: dict[str, str]
    silent_clips: Count
    comparisons_skipped: Count


def _summary(target: Path, said: Path, up_to_date: bool) -> DedupSummary:
    found = pl.read_parquet(target)
    notes = stage_json.require(said, _Notes)
    copies = found.filter(pl.col("duplicate_of").is_not_null())
    kinds = copies["duplicate_kind"].value_counts().sort("duplicate_kind")
    largest = (
        copies.group_by("duplicate_of")
        .agg(
            (pl.len() + 1).alias("clips"),
            pl.col("duplicate_kind").unique().sort().str.join(", ").alias("kinds"),
            pl.col("clip_id").sort().first().alias("a_copy"),
            pl.col("duplicate_kept_because").sort_by("clip_id").first().alias("kept_because"),
        )
        .sort(["clips", "duplicate_of"], descending=[True, False])
        .rename({"duplicate_of": "kept"})
        .head(_TOP)
    )
    return DedupSummary(
        rows_in=len(found),
        rows_compared=notes.rows_compared,
        clusters=copies["duplicate_of"].n_unique(),
        duplicates=len(copies),
        by_kind=dict(kinds.iter_rows()),
        not_looked_for=notes.not_looked_for,
        silent_clips=notes.silent_clips,
        comparisons_skipped=notes.comparisons_skipped,
        largest=tuple(largest.iter_rows(named=True)),
        up_to_date=up_to_date,
    )
