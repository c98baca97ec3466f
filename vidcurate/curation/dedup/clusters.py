"""Duplicate clusters: group pairs of duplicates, and choose the clip to keep.

Equality (bytes, coded packets, all five hashes, all words) is transitive, so equal clips are joined by
union-find. Similarity is not: in a chain of a thousand clips, each similar to the next, the ends have nothing
in common. So similarity counts for one step only: the best clip takes all clips similar to it, then the best
of the remaining clips does the same. Every duplicate is similar to the clip kept for it, never through a
third clip.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vidcurate.curation.dedup.pairs import Pairs, Rows

Labels = NDArray[np.int64]  # per row: rows with the same number are equal; -1 equals no row


@dataclass(frozen=True, slots=True, kw_only=True)
class Clusters:
    """Clusters, per row: `kept` (the row kept for it; itself without a duplicate), `link` (index of the kind,
    -1 for itself), `distance`, `note` (seen from the kept row when `forward`)."""

    kept: Rows
    link: NDArray[np.int8]
    distance: NDArray[np.float64]
    note: NDArray[np.int8]
    forward: NDArray[np.bool_]


def joined(labels: list[Labels], count: int) -> Rows:
    """Return a group number per row: rows that are equal by any of `labels` share it."""
    parent = list(range(count))

    def root(row: int) -> int:
        while parent[row] != row:
            parent[row] = parent[parent[row]]
            row = parent[row]
        return row

    for label in labels:
        order = np.argsort(label, kind="stable")
        order = order[label[order] >= 0]
        same = np.flatnonzero(label[order[1:]] == label[order[:-1]])
        for one, other in zip(order[same].tolist(), order[same + 1].tolist(), strict=True):
            one, other = root(one), root(other)
            if one != other:
                parent[max(one, other)] = min(one, other)
    moved = [row for row in range(count) if parent[row] != row]
    result = np.arange(count, dtype=np.int64)
    for row in moved:
        result[row] = root(row)
    return result


def cluster(labels: list[Labels], likes: list[Pairs], place: Rows) -> Clusters:
    """Return the clusters of rows 0 … n - 1. `place` is each row's rank by preference, 0 is the best.

    Link k < len(labels): equal by labels[k]; link len(labels) + k: similar by likes[k].
    """
    count = len(place)
    group = joined(labels, count)
    by_place = np.argsort(place, kind="stable")
    best_of = np.full(count, -1, dtype=np.int64)
    best_of[group[by_place[::-1]]] = by_place[::-1]  # the last write is the best
    kept = best_of[group]
    link = np.full(count, -1, dtype=np.int8)
    distance = np.zeros(count)
    note = np.zeros(count, dtype=np.int8)
    forward = np.ones(count, dtype=np.bool_)
    others = np.flatnonzero(kept != np.arange(count))
    link[others] = _same_by(labels, others, kept)

    # Each group is now one node, its best row; nodes join in order of preference.
    leader = np.full(count, -1, dtype=np.int64)
    edges = _edges(likes, kept)
    starts = np.searchsorted(edges["from"], np.arange(count))
    ends = np.searchsorted(edges["from"], np.arange(count), side="right")
    for node in by_place[(ends > starts)[by_place]].tolist():
        if leader[node] >= 0:
            continue
        leader[node] = node
        for edge in range(starts[node], ends[node]):
            other = edges["to"][edge]
            if leader[other] < 0:
                leader[other] = node
                link[other] = len(labels) + edges["kind"][edge]
                distance[other] = edges["distance"][edge]
                note[other] = edges["note"][edge]
                forward[other] = edges["forward"][edge]
    led = np.flatnonzero((leader[kept] >= 0) & (leader[kept] != kept))
    by_way_of = kept[led]
    # A copy of a clip has the same link to the kept clip as that clip.
    link[led], distance[led], note[led], forward[led] = (
        link[by_way_of], distance[by_way_of], note[by_way_of], forward[by_way_of],
    )  # fmt: skip
    kept[led] = leader[by_way_of]
    return Clusters(kept=kept, link=link, distance=distance, note=note, forward=forward)


def _same_by(labels: list[Labels], rows: Rows, kept: Rows) -> NDArray[np.int8]:
    """Return the first label by which each of `rows` equals the row kept for it."""
    result = np.full(len(rows), len(labels) - 1, dtype=np.int8)
    for number in reversed(range(len(labels))):
        label = labels[number]
        result[(label[rows] >= 0) & (label[rows] == label[kept[rows]])] = number
    return result


def _edges(likes: list[Pairs], node_of: Rows) -> dict[str, NDArray[np.generic]]:
    """Return the pairs between nodes, both ways, by node: the closest of the first kind between two nodes.

    `forward`: the pair's second row belongs to the node `from`.
    """
    parts = []
    for kind, pairs in enumerate(likes):
        one, other = node_of[pairs.first], node_of[pairs.second]
        apart = one != other
        for forward, (a, b) in ((False, (one, other)), (True, (other, one))):
            size = int(apart.sum())
            parts.append(
                (
                    a[apart], b[apart], np.full(size, kind, dtype=np.int8), pairs.distance[apart],
                    pairs.note[apart], np.full(size, forward),
                )
            )  # fmt: skip
    names = ("from", "to", "kind", "distance", "note", "forward")
    empty = np.empty(0, dtype=np.int64)
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)] if parts else [empty] * 6
    order = np.lexsort((columns[3], columns[2], columns[1], columns[0]))
    columns = [column[order] for column in columns]
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = (columns[0][1:] != columns[0][:-1]) | (columns[1][1:] != columns[1][:-1])
    return {name: column[new] for name, column in zip(names, columns, strict=True)}
