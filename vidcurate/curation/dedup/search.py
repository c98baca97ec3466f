"""Duplicate search over a table: all kinds of similarity, combined."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vidcurate.curation.dedup import captions, perceptual, preference, semantic, thumbnails, unseen_bars
from vidcurate.curation.dedup.pairs import Pairs
from vidcurate.curation.dedup.spec import DedupSpec, PerceptualSpec
from vidcurate.executor.map_clips import Progress, no_progress

EMBEDDINGS = "embeddings.parquet"
_FRAMES = 5  # hashed frames per clip


@dataclass(slots=True)
class Search:
    """Search results so far, over the participating rows; `notes` counts what was left out."""

    labels: list[NDArray[np.int64]] = field(default_factory=list)
    label_kinds: list[str] = field(default_factory=list)
    likes: list[Pairs] = field(default_factory=list)
    like_kinds: list[str] = field(default_factory=list)
    picture_shares: NDArray[np.float64] | None = None  # per row: what is not in unseen bars
    notes: dict[str, int] = field(default_factory=lambda: {"silent_clips": 0, "comparisons_skipped": 0})

    def add_equal(self, kind: str, keys: pl.DataFrame) -> NDArray[np.int64]:
        """Mark rows with the same values in all `keys` as equal; a null in the first column has no equal."""
        label = _numbered(keys)
        self.labels.append(label)
        self.label_kinds.append(kind)
        return label

    def add_alike(self, kind: str, pairs: Pairs) -> None:
        self.likes.append(pairs)
        self.like_kinds.append(kind)


def _numbered(keys: pl.DataFrame) -> NDArray[np.int64]:
    """Return, per row, the first row with the same values; -1 where the first column is null."""
    names = keys.columns
    first = keys.with_row_index("row").select(
        pl.when(pl.col(names[0]).is_not_null()).then(pl.col("row").first().over(names).cast(pl.Int64))
    )
    return first.to_series().fill_null(-1).to_numpy()


def _interval(clips: pl.DataFrame) -> list[pl.Series]:
    return [clips["start_seconds"], clips["end_seconds"]]


def _numbers(clips: pl.DataFrame, column: str, dtype: type[np.generic], width: int) -> NDArray[Any]:
    """Return a List column of whole numbers as (rows, width), 0 for missing ones."""
    filled = clips[column].fill_null([])
    flat = [filled.list.get(number, null_on_oob=True).fill_null(0) for number in range(width)]
    return np.stack([part.to_numpy().astype(dtype) for part in flat], axis=1)


def twins_by_look(
    hashes: NDArray[np.uint64],
    thumbs: NDArray[np.uint8] | None,
    spec: PerceptualSpec,
    progress: Progress = no_progress,
) -> perceptual.PerceptualPairs:
    """Return the pairs of rows whose hashes (rows, frames) agree and whose thumbnails do not differ.

    Thumbnails are (rows, 192), all 0 for a missing one.
    """
    found = perceptual.find_perceptual_pairs(
        hashes,
        max_bits=spec.max_bits,
        min_frames=spec.min_frames,
        min_set_bits=spec.min_set_bits,
        progress=progress,
    )
    if thumbs is None:
        return found
    apart = thumbnails.distances(thumbs, np.any(thumbs, axis=1), found.pairs)
    return replace(found, pairs=found.pairs.where(apart <= spec.max_thumbnail_distance))


def _look(search: Search, clips: pl.DataFrame, spec: DedupSpec, progress: Progress) -> None:
    wanted = spec.perceptual
    assert wanted is not None
    hashes = _numbers(clips, "perceptual_hashes", np.uint64, _FRAMES)
    thumbs = None
    if "perceptual_thumbnail" in clips.columns:
        thumbs = _numbers(clips, "perceptual_thumbnail", np.uint8, 3 * thumbnails.CELLS**2)
    representative = np.ones(len(clips), dtype=np.bool_)
    if spec.within_source:
        keys = {f"h{number}": hashes[:, number] for number in range(_FRAMES)}
        if thumbs is not None:
            words = np.ascontiguousarray(thumbs).view(np.uint64)
            odd = np.random.default_rng(0).integers(0, 2**63, words.shape[1], dtype=np.uint64) * 2 + 1
            keys["thumbnail"] = (words * odd).sum(axis=1, dtype=np.uint64)  # equal for equal ones
        speaks = perceptual.says_something(hashes, wanted.min_set_bits).sum(axis=1) >= wanted.min_frames
        known = pl.when(pl.Series(speaks)).then(pl.lit(0))
        label = search.add_equal("perceptual", pl.DataFrame(keys).select(known.alias("known"), pl.all()))
        representative = (label < 0) | (label == np.arange(len(clips)))
    rows = np.flatnonzero(representative)
    found = twins_by_look(hashes[rows], thumbs[rows] if thumbs is not None else None, wanted, progress)
    pairs = _in_rows(found.pairs, rows)
    search.add_alike("perceptual", pairs)
    if thumbs is not None:
        sizes = preference.sizes_inside(clips)
        search.picture_shares = unseen_bars.picture_shares(thumbs, sizes, pairs)
    search.notes["silent_clips"] += found.silent_rows
    search.notes["comparisons_skipped"] += found.comparisons_skipped


def _in_rows(pairs: Pairs, rows: NDArray[np.int64]) -> Pairs:
    return Pairs(first=rows[pairs.first], second=rows[pairs.second], distance=pairs.distance, note=pairs.note)


def _words(search: Search, clips: pl.DataFrame, spec: DedupSpec, progress: Progress) -> None:
    assert spec.captions is not None
    representative = np.ones(len(clips), dtype=np.bool_)
    if spec.within_source:
        label = captions.written_alike(clips["caption"])
        search.labels.append(label)
        search.label_kinds.append("caption")
        representative = label == np.arange(len(clips))
    rows = np.flatnonzero(representative)
    found = captions.find_caption_pairs(clips["caption"].gather(rows), spec.captions, progress=progress)
    search.add_alike("caption", _in_rows(found.pairs, rows))
    search.notes["comparisons_skipped"] += found.comparisons_skipped


def _meaning(search: Search, clips: pl.DataFrame, spec: DedupSpec, run: Path, progress: Progress) -> None:
    assert spec.semantic is not None
    rows, vectors = semantic.read_embeddings(run / EMBEDDINGS, clips["clip_id"])
    search.add_alike(
        "semantic", semantic.find_semantic_pairs(rows, vectors, spec.semantic, progress=progress)
    )


def not_looked_for(clips: pl.DataFrame, spec: DedupSpec, videos: Path | None) -> dict[str, str]:
    """Return the kinds that are not searched, each with the reason."""
    reasons = {}
    if not spec.exact:
        reasons["exact"] = "switched off"
    elif videos is None:
        reasons["exact"] = "no video folder is known; add --videos FOLDER"
    for kind, column, wanted in (
        ("packets", "packet_hash", True),
        ("perceptual", "perceptual_hashes", spec.perceptual is not None),
    ):
        if not wanted:
            reasons[kind] = "switched off"
        elif column not in clips.columns:
            reasons[kind] = f"the column {column} is missing; run `vidcurate score-frames` first"
    if spec.captions is None:
        reasons["caption"] = "switched off"
    if spec.semantic is None:
        reasons["semantic"] = "switched off"
    return reasons


def search_all(
    clips: pl.DataFrame,
    spec: DedupSpec,
    left_out: dict[str, str],
    contents: pl.DataFrame | None,
    run: Path,
    progress: Progress,
) -> Search:
    """Search `clips` for every kind that is not in `left_out`.

    `contents` is video_path, sha256 of the files that were read; None without a search for exact copies.
    """
    search = Search()
    if contents is not None:
        known = clips.join(contents, on="video_path", how="left", maintain_order="left")
        # A file that was not read has a unique size, hence no copy.
        content = pl.coalesce("sha256", pl.format("file:{}", "video_path"))
        search.add_equal("exact", known.select(content.alias("content"), *_interval(clips)))
    if "packets" not in left_out:
        search.add_equal("packets", clips.select("packet_hash", *_interval(clips)))
    if "perceptual" not in left_out:
        _look(search, clips, spec, progress)
    if spec.captions is not None:
        _words(search, clips, spec, progress)
    if spec.semantic is not None:
        _meaning(search, clips, spec, run, progress)
    if not spec.within_source:
        source = clips["source_id"].rank("dense").fill_null(0).to_numpy()
        for number, pairs in enumerate(search.likes):
            one, other = source[pairs.first], source[pairs.second]
            search.likes[number] = pairs.where((one != other) | (one == 0))
    return search
