"""Shard blocks: shuffle an epoch a few blocks at a time, for a small cache.

For remote shards. A block is a number of consecutive shards. An epoch takes the blocks in a keyed random
order, a few together, and shuffles the clips of those few; then the next few. So at any moment the loader
reads from a few blocks only, and still reads every clip once. The order of the blocks depends on (seed,
epoch) alone: cells shown equally often read the same shards at the same time. Every position costs the same
to compute: nothing iterates.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from vidcurate import rng

Ordinals = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Blocks:
    """Blocks of a cell's clips; ordinals count on from block to block.

    `sizes` (b,): clips of the cell in each block, may be 0. `together`: blocks shuffled together.
    """

    sizes: Ordinals
    together: int

    @cached_property
    def starts(self) -> Ordinals:
        """First ordinal of each block, (b,)."""
        return np.cumsum(self.sizes) - self.sizes

    def changed(self, removed: Ordinals, num_added: int) -> "Blocks":
        """Return the blocks without the `removed` ordinals and with new blocks at the end.

        The added clips form new blocks, no larger than the largest existing one.
        """
        gone = np.searchsorted(np.cumsum(self.sizes), removed, side="right")
        left = self.sizes - np.bincount(gone, minlength=len(self.sizes))
        count = -(-num_added // max(1, int(self.sizes.max())))
        added = np.diff(np.arange(count + 1) * num_added // max(1, count))
        return Blocks(np.concatenate([left, added]), self.together)

    @property
    def facts(self) -> str:
        """Text that a plan's fingerprint hashes."""
        return f"{self.together} of {rng.hash_bytes(self.sizes.astype('<i8').tobytes())}"


@lru_cache(maxsize=16)
def _order(count: int, key: int) -> Ordinals:
    """Return the blocks in the order of an epoch: sorted by a hash; no two hashes are equal."""
    return np.argsort(rng.mix(np.arange(count, dtype=np.uint64) ^ np.uint64(key)))


@lru_cache(maxsize=512)
def _group_starts(blocks: Blocks, key: int) -> Ordinals:
    """Return (g + 1,): the first offset in an epoch of each group of blocks, and the number of clips."""
    begins = np.concatenate([[0], np.cumsum(blocks.sizes[_order(len(blocks.sizes), key)])])
    return np.append(begins[: -1 : blocks.together], begins[-1])


def _group(blocks: Blocks, order: Ordinals, group: int) -> tuple[Ordinals, Ordinals]:
    """Return the blocks of a group, and their first offsets in the group, ending with the group's size."""
    members = order[group * blocks.together : (group + 1) * blocks.together]
    return members, np.concatenate([[0], np.cumsum(blocks.sizes[members])])


def permute(blocks: Blocks, blocks_key: int, clips_key: int, offsets: Ordinals) -> Ordinals:
    """Return the ordinals at these offsets (0 … n − 1) of the epoch with these two keys."""
    order, starts = _order(len(blocks.sizes), blocks_key), _group_starts(blocks, blocks_key)
    groups = np.searchsorted(starts, offsets, side="right") - 1
    ordinals = np.empty(len(offsets), dtype=np.int64)
    for group in np.unique(groups).tolist():
        here = np.flatnonzero(groups == group)
        members, firsts = _group(blocks, order, group)
        key = rng.key("blocks together", clips_key, group)
        places = rng.permute(int(firsts[-1]), key, offsets[here] - starts[group])
        which = np.searchsorted(firsts, places, side="right") - 1
        ordinals[here] = blocks.starts[members[which]] + places - firsts[which]
    return ordinals


def unpermute(blocks: Blocks, blocks_key: int, clips_key: int, ordinals: Ordinals) -> Ordinals:
    """Return the offsets at which `permute` has these ordinals."""
    order, starts = _order(len(blocks.sizes), blocks_key), _group_starts(blocks, blocks_key)
    which = np.searchsorted(blocks.starts, ordinals, side="right") - 1
    rank = np.argsort(order)[which]
    groups = rank // blocks.together
    offsets = np.empty(len(ordinals), dtype=np.int64)
    for group in np.unique(groups).tolist():
        here = np.flatnonzero(groups == group)
        _, firsts = _group(blocks, order, group)
        places = firsts[rank[here] - group * blocks.together] + ordinals[here] - blocks.starts[which[here]]
        key = rng.key("blocks together", clips_key, group)
        offsets[here] = starts[group] + rng.unpermute(int(firsts[-1]), key, places)
    return offsets
