"""The order of a pass in blocks of shards: for shards that are far away and a cache that is small.

A block is some shards that follow each other. A pass takes the blocks in a keyed order, a few together, and
mixes the clips of those few; then the next few. So at any moment it reads from a few blocks only, and still
every clip once. The order of the blocks belongs to (seed, pass) alone: cells that are shown equally often go
through the same shards at the same time. Nothing is iterated: any place costs the same.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from vidcurate import draws

Ordinals = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """How the clips of a cell lie in blocks: ordinals count on from block to block.

    `sizes` (b,): clips of the cell in each block, 0 too. `together`: blocks whose clips are mixed.
    """

    sizes: Ordinals
    together: int

    def changed(self, removed: Ordinals, num_added: int) -> "Blocks":
        """Return the blocks without these ordinals, those after them moved up, and with new ones at the end.

        Clips added are blocks of their own, no larger than the largest before.
        """
        gone = np.searchsorted(np.cumsum(self.sizes), removed, side="right")
        left = self.sizes - np.bincount(gone, minlength=len(self.sizes))
        count = -(-num_added // max(1, int(self.sizes.max())))
        added = np.diff(np.arange(count + 1) * num_added // max(1, count))
        return Blocks(np.concatenate([left, added]), self.together)

    @property
    def facts(self) -> str:
        """What of them a plan depends on, as a word."""
        return f"{self.together} of {draws.hash_bytes(self.sizes.astype('<i8').tobytes())}"


@dataclass(frozen=True, slots=True, eq=False)
class _Pass:
    order: Ordinals  # (b,): blocks as the pass takes them
    rank: Ordinals  # (b,): the place of each block in `order`
    starts: Ordinals  # (b,): first ordinal of each block
    group_starts: Ordinals  # (g + 1,): first offset of each group of blocks, and the number of clips


@lru_cache(maxsize=16)
def _order(count: int, key: int) -> tuple[Ordinals, Ordinals]:
    order = draws.permute(count, key, np.arange(count))
    return order, np.argsort(order)


@lru_cache(maxsize=512)
def _pass(blocks: Blocks, key: int) -> _Pass:
    order, rank = _order(len(blocks.sizes), key)
    ends = np.cumsum(blocks.sizes[order])[blocks.together - 1 :: blocks.together]
    total = int(blocks.sizes.sum())
    if len(order) % blocks.together:
        ends = np.append(ends, total)
    starts = np.concatenate([[0], np.cumsum(blocks.sizes)[:-1]])
    return _Pass(order, rank, starts, np.concatenate([[0], ends]))


def _group(blocks: Blocks, this: _Pass, group: int) -> tuple[Ordinals, Ordinals]:
    """Return the blocks of a group, and the first place of each within the group, with the group's size."""
    members = this.order[group * blocks.together : (group + 1) * blocks.together]
    return members, np.concatenate([[0], np.cumsum(blocks.sizes[members])])


def permute(blocks: Blocks, blocks_key: int, clips_key: int, offsets: Ordinals) -> Ordinals:
    """Return the ordinals at these offsets (0 … n − 1) of the pass that the two keys name."""
    this = _pass(blocks, blocks_key)
    groups = np.searchsorted(this.group_starts, offsets, side="right") - 1
    ordinals = np.empty(len(offsets), dtype=np.int64)
    for group in np.unique(groups).tolist():
        here = np.flatnonzero(groups == group)
        members, firsts = _group(blocks, this, group)
        key = draws.key("blocks together", clips_key, group)
        places = draws.permute(int(firsts[-1]), key, offsets[here] - this.group_starts[group])
        which = np.searchsorted(firsts, places, side="right") - 1
        ordinals[here] = this.starts[members[which]] + places - firsts[which]
    return ordinals


def unpermute(blocks: Blocks, blocks_key: int, clips_key: int, ordinals: Ordinals) -> Ordinals:
    """Return the offsets at which `permute` has these ordinals."""
    this = _pass(blocks, blocks_key)
    which = np.searchsorted(this.starts, ordinals, side="right") - 1
    groups = this.rank[which] // blocks.together
    offsets = np.empty(len(ordinals), dtype=np.int64)
    for group in np.unique(groups).tolist():
        here = np.flatnonzero(groups == group)
        _, firsts = _group(blocks, this, group)
        in_group = this.rank[which[here]] - group * blocks.together
        places = firsts[in_group] + ordinals[here] - this.starts[which[here]]
        key = draws.key("blocks together", clips_key, group)
        offsets[here] = this.group_starts[group] + draws.unpermute(int(firsts[-1]), key, places)
    return offsets
