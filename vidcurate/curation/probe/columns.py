"""Probe columns: from the facts of files to the columns of the clips.

A clip takes the columns of its file. The best-known columns (`width`, `fps`, `num_frames`, ...) prefer
decoded values over the index, the index over the header, and the header over the metadata.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from vidcurate.curation.clip_table.schema import COLUMNS
from vidcurate.curation.probe import findings
from vidcurate.curation.probe.findings import REJECTING, Facts

_BEST_KNOWN = ("width", "height", "fps", "num_frames", "duration_seconds", "file_size_bytes")
# Columns whose name among the facts is shorter.
_NAMES = {"file_sha256": "sha256", "integrity_level": "level"}
_OWN = tuple(name for name, column in COLUMNS.items() if column.stage == "probe")
_SCHEMA = {name: COLUMNS[name].dtype for name in (*_OWN, *_BEST_KNOWN)}
_ROWS_PER_SLICE = 8192
_CLIPS_PER_SLICE = 65_536
# Columns of the clips that `of_clips` needs.
NEEDED = (
    "clip_id", "width", "height", "fps", "num_frames", "duration_seconds", "file_size_bytes",
    "start_seconds", "end_seconds",
)  # fmt: skip


def columns_of(facts: Facts, rejecting: tuple[str, ...] = REJECTING) -> dict[str, Any]:
    """Return the probe columns of a file from its facts, with the status by the policy."""
    status, problem = findings.verdict(facts, rejecting)
    row = {name: facts.get(_NAMES.get(name, name)) for name in _SCHEMA}
    return {
        **row,
        "num_frames": row["num_frames_from_decode"] or row["num_frames"],
        "duration_seconds": row["duration_seconds_from_decode"] or row["duration_seconds"],
        "probe_status": status,
        "probe_problem": problem,
        "probe_findings": findings.disagreements(facts),
    }


class FileColumns:
    """Probe columns of files, by place, collected in slices: as Python objects they need ten times more."""

    def __init__(self, rejecting: tuple[str, ...]) -> None:
        self._rejecting = rejecting
        self._waiting: list[dict[str, Any]] = []
        self._slices = [pl.DataFrame(schema={"place": pl.UInt32, **_SCHEMA})]

    def add(self, place: int, facts: Facts) -> None:
        """Add the columns of the file at `place`."""
        self._waiting.append({"place": place, **columns_of(facts, self._rejecting)})
        if len(self._waiting) == _ROWS_PER_SLICE:
            self._flush()

    def _flush(self) -> None:
        self._slices.append(
            pl.DataFrame(
                pl.Series(name, [row[name] for row in self._waiting], dtype=dtype)
                for name, dtype in self._slices[0].schema.items()
            )
        )
        self._waiting.clear()

    def of_clips(self, clips: pl.DataFrame) -> pl.LazyFrame:
        """Return the clips with the columns of their files, computed slice by slice; empties this.

        `clips` has NEEDED and `place`: which file is the clip's, null for none. A join would hold a million
        rows twice.
        """
        self._flush()
        # Column by column, so that no second copy of all is held; gathering needs few chunks.
        files = pl.DataFrame(
            pl.concat([part.drop_in_place(name) for part in self._slices], rechunk=True)
            for name in list(self._slices[0].columns)
        )
        places = [one["place"].fill_null(0).to_numpy() for one in (clips, files)]
        rows = np.full(1 + max(int(one.max(initial=0)) for one in places), -1, dtype=np.int64)
        rows[places[1]] = np.arange(files.height)
        found = files.drop("place").rename({name: f"probed_{name}" for name in _BEST_KNOWN})

        def slices(
            names: list[str] | None, predicate: pl.Expr | None, num_rows: int | None, _: int | None
        ) -> Iterator[pl.DataFrame]:
            for part in clips.slice(0, num_rows).iter_slices(_CLIPS_PER_SLICE):
                at = pl.Series(rows[part["place"].fill_null(0).to_numpy()])
                at = at.set(part["place"].is_null() | (at < 0), None)
                made = _best_known(pl.concat([part, found.select(pl.all().gather(at))], how="horizontal"))
                made = made if predicate is None else made.filter(predicate)
                yield made if names is None else made.select(names)

        empty = pl.concat([clips.clear(), found.clear()], how="horizontal")
        return register_io_source(slices, schema=_best_known(empty).schema)


def _best_known(clips: pl.DataFrame) -> pl.DataFrame:
    """Compute the best-known columns of clips that have those of their files as probed_…"""
    clips = clips.with_columns(
        pl.col("probe_status").fill_null("not_probed"),
        *(
            pl.coalesce(f"probed_{name}", name).cast(COLUMNS[name].dtype).alias(name)
            for name in ("width", "height", "fps", "file_size_bytes")
        ),
    )
    # A clip inside a longer file has its interval's length, cut at the file's end.
    start = pl.col("start_seconds").fill_null(0.0)
    end = pl.min_horizontal("end_seconds", "probed_duration_seconds")
    is_part = pl.col("start_seconds").is_not_null() | pl.col("end_seconds").is_not_null()
    clips = clips.with_columns(
        pl.when(is_part)
        .then((end - start).clip(0.0))
        .otherwise(pl.coalesce("probed_duration_seconds", "duration_seconds"))
        .alias("duration_seconds")
    )
    return clips.with_columns(
        pl.when(is_part)
        .then((pl.col("duration_seconds") * pl.col("fps")).round().cast(pl.Int64))
        .otherwise(pl.coalesce("probed_num_frames", "num_frames"))
        .alias("num_frames")
    ).drop("place", *(f"probed_{name}" for name in _BEST_KNOWN))
