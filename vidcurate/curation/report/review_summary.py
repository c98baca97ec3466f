"""Review summary: decisions, agreement, the filter's errors, contradictions.

A contradiction is a decision that the run does not follow: the filter has not been run since, a later stage
dropped a clip kept by eye, the clip is damaged, or the shards are older than the decision.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from vidcurate.curation.clip_table import rejection_ledger, table
from vidcurate.curation.review_decisions.blind_sample import (
    LEVEL,
    estimate_errors,
    list_samples,
    read_sample,
)
from vidcurate.curation.review_decisions.journal import REVIEWS, read_decisions
from vidcurate.curation.review_decisions.outcome import (
    Outcome,
    digest_of,
    merge_decisions,
    summarise_decisions,
)
from vidcurate.errors import StageError
from vidcurate.shards import index_file

_MOST_LISTED = 100


def _rows(run: Path, clip_ids: list[str]) -> dict[str, dict[str, Any]]:
    """Return clip_id → its row in the newest table that has verdicts; none before the filter."""
    newest = table.newest_stage(run)
    clips = table.scan(run, newest)
    names = clips.collect_schema().names()
    wanted = ("clip_id", "is_kept", "reject_stage", "reject_rule", "caption")
    if "is_kept" not in names:
        return {}
    rows = clips.filter(pl.col("clip_id").is_in(clip_ids)).select(name for name in wanted if name in names)
    return {row["clip_id"]: row for row in rows.collect().iter_rows(named=True)}


def _in_shards(run: Path) -> dict[str, str | None] | None:
    """Return clip_id → caption of the clips in RUN/shards; None without an index."""
    folder = run / "shards"
    if not (folder / index_file.INDEX_NAME).exists():
        return None
    found = index_file.read_columns(folder, ["clip_id", "caption"])
    return dict(zip(found.column("clip_id").to_pylist(), found.column("caption").to_pylist(), strict=True))


def _of_table(one: Outcome, row: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    if row is None:
        yield "table", "no clip of the table has this id"
        return
    by = f"rejected by {row['reject_rule']}"
    if one.verdict == "keep" and not row["is_kept"]:
        yield row["reject_stage"], f"kept by eye, and {by}"
    if one.edit is not None and not row["is_kept"] and one.verdict is None:
        yield row["reject_stage"], f"its caption was edited, and it is {by}"


def _of_shards(
    one: Outcome, row: Mapping[str, Any] | None, there: Mapping[str, str | None], unwritten: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    is_there = one.clip_id in there
    if one.verdict == "reject" and is_there:
        yield "shards", "rejected by eye, and still in the shards"
    if one.verdict == "keep" and row is not None and row["is_kept"] and not is_there:
        yield "shards", f"kept by eye, and not in the shards ({unwritten.get(one.clip_id, 'built before')})"
    if one.edit is not None and is_there and there[one.clip_id] != one.edit.caption:
        yield "shards", "the shards have its caption as it was before the edit"


def contradictions(run: Path, outcomes: Mapping[str, Outcome]) -> list[dict[str, Any]]:
    """Return the decisions that the run does not follow: {clip_id, decision, stage, what}, by clip.

    While the filter has not been run since the last decision, the list is one entry that says so. Raises
    StageError for tables that do not belong together, ShardError.
    """
    if not outcomes:
        return []
    filtered = table.stage_path(run, "filter")
    recorded = table.provenance(filtered).inputs.get(REVIEWS) if filtered.exists() else None
    if recorded != digest_of(outcomes):
        what = f"decisions since the last filter: run `vidcurate filter {run}` and the stages after it"
        return [{"clip_id": "", "decision": "", "stage": "filter", "what": what}]
    try:
        rows = _rows(run, [*outcomes])
    except StageError as error:  # the filter has run, and the stages after it have not
        return [{"clip_id": "", "decision": "", "stage": "", "what": str(error)}]
    there = _in_shards(run)
    unwritten = {row["clip_id"]: row["rule"] for row in rejection_ledger.unwritten(run).to_dicts()}
    found = []
    for one in outcomes.values():
        row = rows.get(one.clip_id)
        odd = [*_of_table(one, row), *(() if there is None else _of_shards(one, row, there, unwritten))]
        for stage, what in odd:
            said = one.text() or "caption edited"
            found.append({"clip_id": one.clip_id, "decision": said, "stage": stage, "what": what})
    return found


def review_summary(run: Path, *, level: float = LEVEL) -> dict[str, Any]:
    """Return what `vidcurate review RUN --summary` prints, as plain values.

    The keys of `outcome.summarise_decisions`; num_contradictions and contradictions (the first 100, as
    `contradictions` returns them); blind_samples, each as `blind_sample.estimate_errors` returns it, at the
    confidence `level`. Raises TableError for a forged decision or a damaged sample, StageError, ShardError.
    """
    decisions = read_decisions(run)
    odd = contradictions(run, merge_decisions(decisions))
    return {
        **summarise_decisions(decisions),
        "num_contradictions": len(odd),
        "contradictions": odd[:_MOST_LISTED],
        "blind_samples": [
            estimate_errors(read_sample(run, name), decisions, level) for name in list_samples(run)
        ],
    }
