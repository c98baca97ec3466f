"""Blind review: a drawn sample in its order, without what the filter did."""

import numpy as np
import polars as pl

from vidcurate.curation.review.clip_rows import ClipRows, Places
from vidcurate.curation.review.query import Query
from vidcurate.curation.review_decisions.blind_sample import BlindSample
from vidcurate.errors import InputError

# The only cells that a blind review shows: what the clip is, and what its video needs to play.
SHOWN = (
    "clip_id", "caption", "video_path", "width", "height", "fps", "duration_seconds", "num_frames",
    "start_seconds", "end_seconds", "ingest_problem", "container", "codec", "pixel_format",
)  # fmt: skip


def refuse_unblinding() -> InputError:
    """Return the error for a request that would show what the filter did."""
    return InputError(
        "this is a blind review: the sample is shown in its order, without scores and verdicts."
    )


def check_query(query: Query) -> None:
    """Raise InputError for a query that sorts or filters; by decisions it may."""
    if query.model_copy(update={"decided": ""}) != Query():
        raise refuse_unblinding()


def sample_places(rows: ClipRows, sample: BlindSample) -> Places:
    """Return the places of the sample's clips in the drawn order, without clips that left the table."""
    ids = pl.DataFrame({"clip_id": list(sample.clip_ids)}, schema={"clip_id": pl.String})
    table = pl.DataFrame({"clip_id": rows.column("clip_id")}).with_row_index("place")
    found = ids.join(table, on="clip_id", how="left", maintain_order="left")["place"].drop_nulls()
    return found.to_numpy().astype(np.uint32)
