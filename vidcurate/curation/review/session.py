"""Session of a review: the run's rows and the latest results of queries."""

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vidcurate.curation.review.clip_rows import CARD, ClipRows, Places, signature
from vidcurate.curation.review.histograms import Histograms, facets
from vidcurate.curation.review.query import Mask, Query, matching, ordered
from vidcurate.curation.review.similar_clips import has_hashes
from vidcurate.curation.review.thresholds import Thresholds
from vidcurate.curation.review.video_files import file_of, how_played
from vidcurate.errors import InputError
from vidcurate.recipe import recipe as recipes

MOST_ROWS = 200  # of one page
_MOST_RESULTS = 8


@dataclass(slots=True, kw_only=True)
class _Loaded:
    """One state of the run's tables, and what was computed of it."""

    rows: ClipRows
    histograms: Histograms
    thresholds: Thresholds
    masks: "OrderedDict[str, Mask]" = field(default_factory=OrderedDict)
    results: "OrderedDict[str, tuple[Places, dict[str, Any]]]" = field(default_factory=OrderedDict)


class Session:
    """What all browsers of one server share. Its methods may be called by several threads."""

    def __init__(self, run: Path, videos: Path | None) -> None:
        self.run, self.videos = run, videos
        self._lock = threading.RLock()
        self._loaded = self._load()

    def _load(self) -> _Loaded:
        rows = ClipRows(self.run)
        return _Loaded(rows=rows, histograms=Histograms(rows), thresholds=Thresholds(rows))

    def loaded(self) -> _Loaded:
        """Return the run as it is now: read again when a stage has written its table anew.

        Raises StageError while the tables do not belong together.
        """
        with self._lock:
            if signature(self.run) != self._loaded.rows.signature:
                self._loaded = self._load()
            return self._loaded

    @property
    def rows(self) -> ClipRows:
        return self.loaded().rows

    def parse(self, text: str) -> Query:
        """Return a query from its JSON text. Raises RecipeError, InputError."""
        if len(text) > 20_000:
            raise InputError(f"the query has {len(text)} characters; at most 20,000 are read.")
        return recipes.parse(text or "{}", Query, where="query.json")

    def describe(self) -> dict[str, Any]:
        """Return what the page needs at its start: the run, its columns, the limits of its filter."""
        now = self.loaded()
        return {
            "name": self.run.resolve().name,
            "run": str(self.run),
            "rows": len(now.rows),
            "stage": now.rows.stage,
            "columns": now.rows.described(),
            "has_videos": self.videos is not None,
            "has_hashes": has_hashes(now.rows),
            "has_clusters": "duplicate_cluster" in now.rows.schema,
            "thresholds": now.thresholds.start(),
        }

    def _mask(self, now: _Loaded, query: Query) -> Mask:
        key = query.model_dump_json(include={"text", "contains", "ranges", "words", "cluster"})
        if key not in now.masks:
            now.masks[key] = matching(now.rows, query)
            while len(now.masks) > _MOST_RESULTS:
                now.masks.popitem(last=False)
        return now.masks[key]

    def places(self, query: Query) -> tuple[Places, dict[str, Any]]:
        """Return the rows that the grid shows, in order, and notes. Raises ColumnError, RecipeError."""
        with self._lock:
            now = self.loaded()
            key = query.model_dump_json()
            if key not in now.results:
                scored: NDArray[np.float64] | None = None
                if query.limits is not None:
                    scored = now.thresholds.changed(query.limits, query.side)
                now.results[key] = ordered(now.rows, query, self._mask(now, query), scored)
                while len(now.results) > _MOST_RESULTS:
                    now.results.popitem(last=False)
            return now.results[key]

    def page(self, query: Query, offset: int, limit: int) -> dict[str, Any]:
        """Return total and the cards from `offset` on, at most 200. Raises ColumnError, RecipeError."""
        places, notes = self.places(query)
        some = places[max(offset, 0) : max(offset, 0) + min(max(limit, 1), MOST_ROWS)]
        extra = [query.sort] if query.sort else []
        extra += [*query.ranges, *(query.limits or {})]
        cards = self.rows.rows(some, [*CARD, *extra])
        for card in cards:
            self._add_video(card)
        return {"total": len(places), "offset": max(offset, 0), "rows": cards, **notes}

    def _add_video(self, card: dict[str, Any]) -> None:
        has_name = bool(card.get("video_path")) and self.videos is not None
        is_there = has_name and card.get("ingest_problem") not in ("missing_file", "path_outside_root")
        card["video"] = how_played(card) if is_there else None

    def facets(self, query: Query) -> dict[str, Any]:
        """Return the counts by value, over the rows that the query's filters let through."""
        with self._lock:
            now = self.loaded()
            return facets(now.rows, query, self._mask(now, query))

    def histogram(self, query: Query, name: str) -> dict[str, Any]:
        """Return a column's histogram, see `Histograms.of`."""
        with self._lock:
            return self.loaded().histograms.of(name, query)

    def clip(self, place: int) -> dict[str, Any]:
        """Return every cell of one row, and how its video is played. Raises InputError."""
        rows = self.rows
        try:
            found = rows.row(place)
        except IndexError as error:
            raise InputError(f"{self.run}: no row {place}; the table has {len(rows)}.") from error
        card = {**found, "row": place}
        self._add_video(card)
        return {"row": place, "video": card["video"], "cells": found}

    def file(self, place: int) -> tuple[Path, dict[str, Any]] | None:
        """Return the file of a row and the row's cells; None when there is no such file in the folder."""
        rows = self.rows
        if not 0 <= place < len(rows):
            return None
        names = [name for name in CARD if name not in ("caption", "reject_value", "reject_threshold")]
        (clip,) = rows.rows(np.array([place], dtype=np.uint32), names)
        path = file_of(self.videos, clip)
        return None if path is None else (path, clip)
