"""Thresholds to try: what they would keep, and which clips change sides."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml
from numpy.typing import NDArray

from vidcurate.curation.clip_table import table
from vidcurate.curation.filter.apply_reviews import NO_REVIEWS, Reviews, with_edited_captions
from vidcurate.curation.filter.bind_rules import Masks, Plan, plan_of, survivors
from vidcurate.curation.filter.rules import columns_of
from vidcurate.curation.filter.spec import FilterSpec, written_out
from vidcurate.curation.report import counts, what_if
from vidcurate.curation.review.clip_rows import ClipRows
from vidcurate.curation.review.query import Range
from vidcurate.curation.review_decisions.outcome import digest_of
from vidcurate.errors import InputError
from vidcurate.recipe import recipe as recipes
from vidcurate.storage import atomic_file

RECIPES = "recipes"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}")
_MOST_RULES = 64  # results of rules that are kept for the next trial


def _limits(spec: FilterSpec, wanted: dict[str, Range]) -> FilterSpec:
    """Return the settings with the ends of `wanted` in place of their own. Raises RecipeError."""
    document = json.loads(spec.model_dump_json(exclude_defaults=True))
    limits = document.setdefault("limits", {})
    for name, ends in wanted.items():
        limit = {word: end for word, end in limits.get(name, {}).items() if word not in ("min", "max")}
        limit |= {word: end for word in ("min", "max") if (end := getattr(ends, word)) is not None}
        if limit:
            limits[name] = limit
        else:
            limits.pop(name, None)
    document.pop("preset", None)  # its rules are written out
    return recipes.parse(json.dumps(document), FilterSpec, where="thresholds.json")


class Thresholds:
    """The filter of a run with other limits, over its rows in memory."""

    def __init__(self, rows: ClipRows) -> None:
        self._rows = rows
        self._known: Masks = {}
        self._reviewed = ""
        self._groups: counts.ClipCounts | None = None
        self._last: tuple[str, NDArray[np.bool_], NDArray[np.float64]] | None = None
        self.spec = written_out(what_if.settings_of(rows.run))
        now = rows.column("is_kept")
        path = table.stage_path(rows.run, "filter")
        if path.exists():
            now = pl.read_parquet(path, columns=["is_kept"])["is_kept"]
        self.kept_now = now

    def start(self) -> dict[str, Any]:
        """Return the limits of the run's filter that are ranges: column → min and max."""
        ranges = {
            name: {"min": limit.min, "max": limit.max}
            for name, limit in self.spec.limits.items()
            if limit.allowed is None and limit.forbidden is None
        }
        return {"limits": ranges, "is_filtered": self._rows.is_filtered}

    def _facts(self, columns: set[str], reviews: Reviews = NO_REVIEWS) -> pl.DataFrame:
        names = sorted({"clip_id", *columns, *(("caption",) if reviews.captions() else ())})
        facts = pl.DataFrame({name: self._rows.column(name) for name in names})
        return with_edited_captions(self._rows.run, facts.lazy(), reviews)[0].collect()

    def _plan(self, spec: FilterSpec, reviews: Reviews) -> Plan:
        return plan_of(self._rows.schema, spec, table.stage_path(self._rows.run, self._rows.stage), reviews)

    def _counts(self) -> counts.ClipCounts:
        if self._groups is None:
            schema = self._rows.schema
            cuts = counts.level_cuts(self._rows.run)
            wanted = [*counts.COLUMNS, *([cuts[0]] if cuts else [])]
            facts = self._facts({name for name in wanted if name in schema})
            self._groups = what_if.clip_counts(self._rows.run, facts, cuts)
        return self._groups

    def trial(self, wanted: dict[str, Range], reviews: Reviews = NO_REVIEWS) -> dict[str, Any]:
        """Return rows_in, kept, now, newly_kept, newly_rejected, rules, by_source, by_level, by_bucket.

        As `what_if.what_if` gives them. Raises RecipeError, ColumnError.
        """
        plan = self._plan(_limits(self.spec, wanted), reviews)
        clips = self._facts(plan.columns(), reviews)
        facts = what_if.Facts(clips=clips, counts=self._counts(), kept_now=self.kept_now)
        return what_if.outcome(facts, plan)

    def changed(
        self, wanted: dict[str, Range], side: str, reviews: Reviews = NO_REVIEWS
    ) -> NDArray[np.float64]:
        """Return how far beyond the thresholds each clip is that changes sides (N,); NaN: the clip stays.

        The distance is that to the nearest of the thresholds that differ from the run's, in spreads of its
        column (from the 10 % to the 90 % quantile): borderline clips have the smallest. `side` is kept (newly
        kept), rejected or both. Raises RecipeError, ColumnError.
        """
        spec = _limits(self.spec, wanted)
        digest = digest_of(reviews.outcomes)
        key = f"{digest} {spec.model_dump_json()}"
        if self._last is None or self._last[0] != key:
            plan = self._plan(spec, reviews)
            if len(self._known) > _MOST_RULES or digest != self._reviewed:
                self._known.clear()  # results of rules on these captions
            self._reviewed = digest
            kept = survivors(self._facts(plan.checked(), reviews), plan, self._known).to_numpy()
            self._last = (key, kept, self._distances(spec))
        _, kept, distances = self._last
        now = self.kept_now.to_numpy()
        sides = {"kept": kept & ~now, "rejected": ~kept & now, "both": kept != now}
        return np.where(sides[side], distances, np.nan)

    def _distances(self, spec: FilterSpec) -> NDArray[np.float64]:
        nearest = np.full(len(self._rows), np.inf)
        for name in {*spec.limits, *self.spec.limits}:
            old, new = self.spec.limits.get(name), spec.limits.get(name)
            if any(one not in self._rows.schema for one in columns_of(name)):
                continue
            for word in ("min", "max"):
                before, after = (getattr(limit, word) if limit else None for limit in (old, new))
                if before == after:
                    continue
                bound: float = after if after is not None else before  # type: ignore[assignment]
                values = self._rows.values(name)
                known = values[np.isfinite(values)]
                spread = float(np.subtract(*np.quantile(known, [0.9, 0.1]))) if len(known) else 1.0
                away = np.abs(values - bound) / (spread or 1.0)
                nearest = np.fmin(nearest, away)
        return np.where(np.isfinite(nearest), nearest, 1e9)  # a rule of words, or of the duplicates

    def recipe_text(self, wanted: dict[str, Range]) -> str:
        """Return the settings as YAML, as `vidcurate filter --recipe` takes them. Raises RecipeError."""
        settings = json.loads(_limits(self.spec, wanted).model_dump_json(exclude_defaults=True))
        return str(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))

    def save_recipe(self, wanted: dict[str, Range], name: str) -> Path:
        """Write RUN/recipes/NAME.yaml and return its path.

        Raises InputError for another kind of name, or when the file holds other settings; RecipeError,
        StorageError.
        """
        if not _NAME.fullmatch(name):
            raise InputError(f"recipe name {name[:80]!r}: use letters, digits, - and _, at most 60.")
        text = self.recipe_text(wanted)
        path = self._rows.run / RECIPES / f"{name}.yaml"
        if path.is_file() and path.read_text(encoding="utf-8") != text:
            raise InputError(f"{path}: holds other settings. Save under another name.")
        atomic_file.write_text(path, text)
        return path
