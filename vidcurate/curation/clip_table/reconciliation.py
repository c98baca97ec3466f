"""Shape of RUN/reconcile.json: what ingest found between metadata and files."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from vidcurate.curation.clip_table import stage_json
from vidcurate.storage.json_shape import Count

RECONCILE = "reconcile.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """How many rows or files, and the first of them: objects, or names."""

    count: Count
    listed: list[dict[str, Any] | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnColumn:
    """Column of the metadata that is kept as it is."""

    column: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """What ingest found; a finding that this version does not write is None."""

    schema: str
    reason: str
    metadata_rows: Count
    rows_in: Count
    rows_kept: Count
    problems: dict[str, Count] = field(default_factory=dict)
    own_columns: list[OwnColumn] = field(default_factory=list)
    captions: list[str] = field(default_factory=list)
    videos: str | None = None
    missing_files: Finding | None = None
    extra_files: Finding | None = None
    duplicate_ids: Finding | None = None
    empty_captions: Finding | None = None
    bad_values: Finding | None = None
    paths_outside_root: Finding | None = None
    found_by_name: Finding | None = None
    ambiguous_names: Finding | None = None
    disagreements: Finding | None = None
    captions_without_a_video: Finding | None = None

    def findings(self) -> dict[str, Finding]:
        """Return the findings by name."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in found.items() if isinstance(value, Finding)}


def read(run: Path) -> Reconciliation | None:
    """Return the reconciliation of a run, None where there is none. Raises TableError."""
    return stage_json.read(run / RECONCILE, Reconciliation)
