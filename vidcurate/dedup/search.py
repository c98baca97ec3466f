"""What each kind of likeness finds in a table, put together."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vidcurate.dedup import captions, perceptual, semantic
from vidcurate.dedup.pairs import Pairs
from vidcurate.dedup.spec import DedupSpec
from vidcurate.engine import Progress

EMBEDDINGS = "embeddings.parquet"


@dataclass(slots=True)
class Search:
    """What the kinds have found so far, over the rows that take part; `notes` counts what was left out."""

    labels: list[NDArray[np.int64]] = field(default_factory=list)
    label_kinds: list[str] = field(default_factory=list)
    likes: list[Pairs] = field(default_factory=list)
    like_kinds: list[str] = field(default_factory=list)
    notes: dict[str, int] = field(default_factory=lambda: {"silent_clips": 0, "comparisons_skipped": 0})

    def add_equal(self, kind: str, keys: pl.DataFrame) -> NDArray[np.int64]:
        """Rows with the same values in all of `keys` are the same; a null in the first column is like
        none."""
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


def _frames(clips: pl.DataFrame, column: str) -> NDArray[np.uint64]:
    """Return a List column of whole numbers as uint64 (rows, frames), 0 where there is none."""
    filled = clips[column].fill_null([])
    width = int(filled.list.len().max() or 0)  # type: ignore[arg-type]
    flat = [filled.list.get(number, null_on_oob=True).cast(pl.UInt64).fill_null(0) for number in range(width)]
    return (
        np.stack([part.to_numpy() for part in flat], axis=1) if flat else np.zeros((len(clips), 0), np.uint64)
    )


def _colours_differ(colours: NDArray[np.uint64], pairs: Pairs) -> NDArray[np.float64]:
    """Return the levels by which the mean colours of the pairs' frames differ: the median over the frames of
    the largest of the three channels, 0 where none is known."""
    shifts = np.array([16, 8, 0], dtype=np.uint64)
    planes = (colours[..., None] >> shifts & np.uint64(255)).astype(np.int16)
    apart = np.abs(planes[pairs.first] - planes[pairs.second]).max(axis=2)
    return np.median(apart, axis=1) if apart.shape[1] else np.zeros(len(pairs))


def _look(search: Search, clips: pl.DataFrame, spec: DedupSpec, progress: Progress) -> None:
    wanted = spec.perceptual
    assert wanted is not None
    hashes = _frames(clips, "perceptual_hashes")
    if hashes.shape[1] < wanted.min_frames:
        return
    colours = _frames(clips, "perceptual_colours") if "perceptual_colours" in clips.columns else None
    representative = np.ones(len(clips), dtype=np.bool_)
    if spec.within_source:
        keys = {f"h{number}": hashes[:, number] for number in range(hashes.shape[1])}
        if colours is not None:
            keys |= {f"c{number}": colours[:, number] for number in range(colours.shape[1])}
        speaks = perceptual.says_something(hashes, wanted.min_set_bits).sum(axis=1) >= wanted.min_frames
        known = pl.when(pl.Series(speaks)).then(pl.lit(0))
        label = search.add_equal("perceptual", pl.DataFrame(keys).select(known.alias("known"), pl.all()))
        representative = (label < 0) | (label == np.arange(len(clips)))
    rows = np.flatnonzero(representative)
    found = perceptual.find(
        hashes[rows],
        max_bits=wanted.max_bits,
        min_frames=wanted.min_frames,
        min_set_bits=wanted.min_set_bits,
        any_orientation=wanted.orientations == "any",
        progress=progress,
    )
    pairs = _in_rows(found.pairs, rows)
    if colours is not None:
        pairs = pairs.where(_colours_differ(colours, pairs) <= wanted.max_colour_distance)
    search.add_alike("perceptual", pairs)
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
    found = captions.find(clips["caption"].gather(rows), spec.captions.threshold, progress=progress)
    search.add_alike("caption", _in_rows(found.pairs, rows))
    search.notes["comparisons_skipped"] += found.comparisons_skipped


def _meaning(search: Search, clips: pl.DataFrame, spec: DedupSpec, run: Path, progress: Progress) -> None:
    assert spec.semantic is not None
    rows, vectors = semantic.read(spec.semantic.embeddings or run / EMBEDDINGS, clips["clip_id"])
    search.add_alike("semantic", semantic.find(rows, vectors, spec.semantic, progress=progress))


def not_looked_for(clips: pl.DataFrame, spec: DedupSpec, videos: Path | None) -> dict[str, str]:
    """Return the kinds that are left out, each with the reason."""
    reasons = {}
    if not spec.exact:
        reasons["exact"] = "switched off"
    elif videos is None:
        reasons["exact"] = "no folder of videos is known; say it with --videos"
    for kind, column, wanted in (
        ("packets", "packet_hash", spec.packets),
        ("perceptual", "perceptual_hashes", spec.perceptual is not None),
    ):
        if not wanted:
            reasons[kind] = "switched off"
        elif column not in clips.columns:
            reasons[kind] = f"the column {column} is not there; run `vidcurate score-frames` first"
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
    """Look for every kind in `clips` that is not in `left_out`. `contents` is video_path, sha256 of the files
    that were read, None when exact copies are not looked for."""
    search = Search()
    if contents is not None:
        known = clips.join(contents, on="video_path", how="left", maintain_order="left")
        # Files that were not read have no copy: each is its own content.
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
