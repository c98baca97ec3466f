"""Semantic duplicates: cosine of embeddings, within k-means clusters if many.

Up to ALL_WITH_ALL clips every pair is compared. Beyond that k-means (faiss) groups the clips, and pairs are
compared within a group (SemDeDup, Abbas et al. 2023, arXiv 2303.09540): a pair in two groups is not found.
"""

import importlib.util
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vidcurate.curation.dedup.pairs import NO_PAIRS, Pairs, Rows, pairs_of
from vidcurate.errors import InputError
from vidcurate.executor.map_clips import Progress, no_progress

ALL_WITH_ALL = 20_000
CLIPS_PER_CLUSTER = 1000  # about so many, beyond ALL_WITH_ALL
_ROWS_AT_ONCE = 2048
_ITERATIONS = 20
_SEED = 0

Vectors = NDArray[np.float32]


def read_embeddings(path: Path, clip_ids: pl.Series) -> tuple[Rows, Vectors]:
    """Return (rows of `clip_ids` that have an embedding, their embeddings at length 1: float32 (rows, D)).

    Raises InputError for a file that does not hold clip_id and embedding.
    """
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                held = pl.DataFrame(
                    {"clip_id": file["clip_id"].astype(str), "place": np.arange(len(file["clip_id"]))}
                )
                vectors = np.asarray(file["embedding"], dtype=np.float32)
        else:
            whole = pl.read_parquet(path, columns=["clip_id", "embedding"]).drop_nulls("embedding")
            held = whole.select("clip_id").with_row_index("place")
            vectors = np.array(whole["embedding"].to_list(), dtype=np.float32)
        if vectors.ndim != 2 or len(vectors) != len(held):
            raise ValueError(f"embedding has the shape {vectors.shape} for {len(held)} clip ids")
    except Exception as error:  # numpy and polars raise many kinds for a file that is not theirs
        raise InputError(
            f"{path}: no embeddings can be read ({error}). The file needs clip_id and embedding (one row per "
            "clip). Write it with `vidcurate score-models`."
        ) from error
    places = (
        clip_ids.alias("clip_id")
        .to_frame()
        .with_row_index("row")
        .join(held.unique("clip_id", keep="first", maintain_order=True), on="clip_id", how="inner")
        .sort("row")
    )
    vectors = vectors[places["place"].to_numpy()]
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    usable = np.isfinite(length[:, 0]) & (length[:, 0] > 0)
    rows = places["row"].to_numpy().astype(np.int64)
    return rows[usable], vectors[usable] / length[usable]


def _within(rows: Rows, vectors: Vectors, threshold: float) -> list[Pairs]:
    """Return the pairs of `rows` whose cosine reaches `threshold`, comparing all pairs."""
    found = []
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        block = vectors[start : start + _ROWS_AT_ONCE] @ vectors[start:].T
        first, second = np.nonzero(block >= threshold)
        later = second > first
        first, second = first[later], second[later]
        distance = np.maximum(1.0 - block[first, second].astype(np.float64), 0.0)
        one, other = rows[start + first], rows[start + second]
        found.append(
            pairs_of(
                np.minimum(one, other), np.maximum(one, other), distance, np.zeros(len(one), dtype=np.int8)
            )
        )
    return found


def _groups(vectors: Vectors) -> NDArray[np.int64]:
    """Return the k-means cluster of each row. Raises InputError without faiss."""
    if importlib.util.find_spec("faiss") is None:
        raise InputError(
            f"dedup.semantic: {len(vectors):,} clips need faiss for k-means (up to {ALL_WITH_ALL:,} go "
            "without). Run `pip install 'vidcurate[semantic]'`."
        )
    import faiss

    count = max(2, len(vectors) // CLIPS_PER_CLUSTER)
    means = faiss.Kmeans(
        vectors.shape[1], count, niter=_ITERATIONS, seed=_SEED, spherical=True, verbose=False
    )
    means.train(vectors)
    _, cluster = means.index.search(vectors, 1)
    return np.asarray(cluster[:, 0], dtype=np.int64)


def find_semantic_pairs(
    rows: Rows, vectors: Vectors, threshold: float, *, progress: Progress = no_progress
) -> Pairs:
    """Return the pairs of `rows` whose cosine is at least `threshold`; `distance` is 1 - cosine."""
    if len(rows) <= ALL_WITH_ALL:
        found = _within(rows, vectors, threshold)
    else:
        cluster = _groups(vectors)
        order = np.argsort(cluster, kind="stable")
        ends = np.flatnonzero(np.diff(cluster[order])) + 1
        found = []
        for number, members in enumerate(np.split(order, ends)):
            found += _within(rows[members], vectors[members], threshold)
            progress(number + 1, len(ends) + 1, "clusters")
    found = [part for part in found if len(part)] or [NO_PAIRS]
    return pairs_of(
        np.concatenate([part.first for part in found]),
        np.concatenate([part.second for part in found]),
        np.concatenate([part.distance for part in found]),
        np.concatenate([part.note for part in found]),
    )
