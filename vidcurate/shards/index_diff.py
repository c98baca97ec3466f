"""Index diff: clips added, removed, edited or reshaped between two indexes.

`compare_indexes` skips shards whose fingerprints occur in both indexes, whatever their names, and matches the
clips of the others by id. So moved or re-sharded clips are no difference.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from vidcurate.shards.index import Index, shard_fingerprints

Rows = NDArray[np.int64]

_NAMED = 3  # most clips and shards in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Rows of the clips that are in one index only or differ.

    `removed` are rows of the old index, the others of the new. `edited`: another caption or other bytes.
    `reshaped`: another fold, level, size, length or frame rate.
    """

    old: Index
    new: Index
    added: Rows
    removed: Rows
    edited: Rows
    reshaped: Rows

    @property
    def num_shared(self) -> int:
        """Number of clips in both indexes."""
        return len(self.old) - len(self.removed)


def compare_indexes(old: Index, new: Index) -> Difference:
    """Return the difference between an index and an older one."""
    before, after = shard_fingerprints(old), shard_fingerprints(new)
    same = set(before.values()) & set(after.values())
    old_rows = _rows_outside(old, [shard for shard in old.shards if before[shard] in same])
    new_rows = _rows_outside(new, [shard for shard in new.shards if after[shard] in same])
    place = pc.index_in(new.words("clip_id").take(new_rows), old.words("clip_id").take(old_rows))
    found = pc.fill_null(place, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    in_both = new_rows[found >= 0]
    partners = old_rows[found[found >= 0]]
    changed = {
        column: in_both[
            pc.not_equal(new.words(column).take(in_both), old.words(column).take(partners)).to_numpy(
                zero_copy_only=False
            )
        ]
        for column in ("structure_hash", "content_hash")
    }
    return Difference(
        old=old,
        new=new,
        added=new_rows[found < 0],
        removed=np.setdiff1d(old_rows, partners),
        edited=changed["content_hash"],
        reshaped=changed["structure_hash"],
    )


def _rows_outside(index: Index, shards: Sequence[str]) -> Rows:
    numbers = [number for number, shard in enumerate(index.shards) if shard in set(shards)]
    return np.flatnonzero(~np.isin(index.shard_number, numbers)).astype(np.int64)


def clip_ids(index: Index, rows: Rows) -> list[str]:
    """Return the ids of these clips."""
    ids: list[str] = index.words("clip_id").take(rows).to_pylist()
    return ids


def named(index: Index, rows: Rows) -> str:
    """Return some of these clips with their shards, for a message: "a.tar: clip-1, clip-2; b.tar: …"."""
    by_shard: dict[str, list[str]] = {}
    some = rows[: _NAMED + 1]
    for row, clip_id in zip(some.tolist(), clip_ids(index, some), strict=True):
        by_shard.setdefault(index.word("shard", row), []).append(clip_id)
    left = _NAMED
    reported: list[str] = []
    for shard, ids in by_shard.items():
        if left > 0:
            reported.append(f"{shard}: {', '.join(ids[:left])}")
        left -= len(ids)
    more = "; …" if len(rows) > _NAMED else ""
    num_shards = len(Counter(index.shard_number[rows].tolist()))
    spread = f" in {num_shards} shards" if num_shards > 1 else ""
    return f"{spread} ({'; '.join(reported)}{more})"
