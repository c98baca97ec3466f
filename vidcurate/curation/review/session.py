"""Session of a review: the run's rows and the latest results of queries."""

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vidcurate.curation.filter.apply_reviews import Reviews
from vidcurate.curation.review import blind
from vidcurate.curation.review.clip_rows import CARD, ClipRows, Places, signature
from vidcurate.curation.review.decide import DecisionBook, DecisionRequest, UndoRequest
from vidcurate.curation.review.histograms import Histograms, facets
from vidcurate.curation.review.query import Mask, Query, Range, matching, ordered
from vidcurate.curation.review.similar_clips import has_hashes
from vidcurate.curation.review.thresholds import Thresholds
from vidcurate.curation.review.video_files import file_of, how_played
from vidcurate.curation.review_decisions.blind_sample import read_sample
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

    def __init__(
        self, run: Path, videos: Path | None, reviewer: str, blind_sample: str | None = None
    ) -> None:
        self.run, self.videos = run, videos
        self.sample = None if blind_sample is None else read_sample(run, blind_sample)
        self.book = DecisionBook(run, reviewer, blind_sample=blind_sample)
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
        if self.sample is not None:
            return self._describe_blind(now)
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
            "reviewer": self.book.reviewer,
            "blind": None,
        }

    def _describe_blind(self, now: _Loaded) -> dict[str, Any]:
        assert self.sample is not None
        return {
            "name": self.run.resolve().name,
            "run": str(self.run),
            "rows": len(self.sample.strata),
            "stage": now.rows.stage,
            "columns": [one for one in now.rows.described() if one["name"] in blind.SHOWN],
            "has_videos": self.videos is not None,
            "has_hashes": False,
            "has_clusters": False,
            "thresholds": {"limits": {}, "is_filtered": False},
            "reviewer": self.book.reviewer,
            "blind": self.sample.name,
        }

    def _mask(self, now: _Loaded, query: Query) -> Mask:
        key = query.model_dump_json(include={"text", "contains", "ranges", "words", "clips", "cluster"})
        if key not in now.masks:
            now.masks[key] = matching(now.rows, query)
            while len(now.masks) > _MOST_RESULTS:
                now.masks.popitem(last=False)
        return now.masks[key]

    def places(self, query: Query) -> tuple[Places, dict[str, Any]]:
        """Return the rows that the grid shows, in order, and notes. Raises ColumnError, RecipeError."""
        with self._lock:
            now = self.loaded()
            if self.sample is not None:
                blind.check_query(query)
                places = blind.sample_places(now.rows, self.sample)
                if query.decided:
                    places = places[self.book.matching(now.rows, query.decided)[places]]
                return places, {}
            key = query.model_dump_json()
            if query.decided or query.limits is not None:
                key += str(self.book.state().stamp)
            if key not in now.results:
                scored: NDArray[np.float64] | None = None
                if query.limits is not None:
                    scored = now.thresholds.changed(query.limits, query.side, self._reviews())
                mask = self._mask(now, query)
                if query.decided:
                    mask = mask & self.book.matching(now.rows, query.decided)
                now.results[key] = ordered(now.rows, query, mask, scored)
                while len(now.results) > _MOST_RESULTS:
                    now.results.popitem(last=False)
            return now.results[key]

    def page(self, query: Query, offset: int, limit: int) -> dict[str, Any]:
        """Return total and the cards from `offset` on, at most 200. Raises ColumnError, RecipeError."""
        places, notes = self.places(query)
        some = places[max(offset, 0) : max(offset, 0) + min(max(limit, 1), MOST_ROWS)]
        extra = [query.sort] if query.sort else []
        extra += [*query.ranges, *(query.limits or {})]
        cards = self.rows.rows(some, blind.SHOWN if self.sample is not None else [*CARD, *extra])
        for card in cards:
            self._add_video(card)
            card["decision"] = self.book.of(card["clip_id"])
        return {"total": len(places), "offset": max(offset, 0), "rows": cards, **notes}

    def _add_video(self, card: dict[str, Any]) -> None:
        has_name = bool(card.get("video_path")) and self.videos is not None
        is_there = has_name and card.get("ingest_problem") not in ("missing_file", "path_outside_root")
        card["video"] = how_played(card) if is_there else None

    def facets(self, query: Query) -> dict[str, Any]:
        """Return the counts by value, over the rows that the query's filters let through."""
        if self.sample is not None:
            return {"columns": {}, "decided": self.book.counts()}
        with self._lock:
            now = self.loaded()
            return {
                "columns": facets(now.rows, query, self._mask(now, query)),
                "decided": self.book.counts(),
            }

    def histogram(self, query: Query, name: str) -> dict[str, Any]:
        """Return a column's histogram, see `Histograms.of`."""
        self._refuse_blind()
        with self._lock:
            return self.loaded().histograms.of(name, query)

    def clip(self, place: int) -> dict[str, Any]:
        """Return every cell of one row, and how its video is played. Raises InputError."""
        rows = self.rows
        try:
            found = rows.row(place)
        except IndexError as error:
            raise InputError(f"{self.run}: no row {place}; the table has {len(rows)}.") from error
        if self.sample is not None:
            found = {name: value for name, value in found.items() if name in blind.SHOWN}
        card = {**found, "row": place}
        self._add_video(card)
        return {
            "row": place,
            "video": card["video"],
            "cells": found,
            "decision": self.book.of(card["clip_id"]),
        }

    def recipe(self, limits: dict[str, Range], name: str | None) -> dict[str, Any]:
        """Return the thresholds as YAML; with a name, save them and return the file and the filter's command.

        Raises InputError for another kind of name.
        """
        self._refuse_blind()
        thresholds = self.loaded().thresholds
        found: dict[str, Any] = {"text": thresholds.recipe_text(limits)}
        if name is not None:
            path = thresholds.save_recipe(limits, name)
            found |= {"file": str(path), "command": f"vidcurate filter {self.run} --recipe {path}"}
        return found

    def _refuse_blind(self) -> None:
        if self.sample is not None:
            raise blind.refuse_unblinding()

    def _reviews(self) -> Reviews:
        return Reviews(self.book.state().outcomes)

    def trial(self, limits: dict[str, Range]) -> dict[str, Any]:
        """Return what other thresholds would keep, see `Thresholds.trial`."""
        self._refuse_blind()
        return self.loaded().thresholds.trial(limits, self._reviews())

    def decide(self, wanted: DecisionRequest) -> dict[str, Any]:
        """Record a decision, see `DecisionBook.record`."""
        return {**self.book.record(self.rows, wanted), "counts": self.book.counts()}

    def undo(self, wanted: UndoRequest) -> dict[str, Any]:
        """Undo a decision, see `DecisionBook.undo`."""
        return {**self.book.undo(wanted), "counts": self.book.counts()}

    def file(self, place: int) -> tuple[Path, dict[str, Any]] | None:
        """Return the file of a row and the row's cells; None when there is no such file in the folder."""
        rows = self.rows
        if not 0 <= place < len(rows):
            return None
        names = [name for name in CARD if name not in ("caption", "reject_value", "reject_threshold")]
        (clip,) = rows.rows(np.array([place], dtype=np.uint32), names)
        path = file_of(self.videos, clip)
        return None if path is None else (path, clip)
