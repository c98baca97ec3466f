"""Changed stream: a cell after clips were added, removed or regrouped.

The new stream begins with a partial epoch: the rest of the open epoch and the added clips, shuffled. So no
clip repeats before every unseen clip was shown once, and the order before the change stays as it was.
"""

from dataclasses import replace

import numpy as np

from vidcurate.sampler import epoch_shuffle
from vidcurate.sampler.epoch_shuffle import Ordinals, PartialEpoch, Stream


def changed(
    stream: Stream, place: int, *, num_added: int, removed: Ordinals, micro_batch_size: int
) -> Stream:
    """Return the stream after a change at `place` clips shown, a whole number of micro-batches.

    The added clips get the next ordinals; `removed` are ordinals of the stream. At least one clip, and
    `micro_batch_size` clips, must remain.
    """
    dead = np.union1d(stream.dead, removed)
    count = stream.num_ordinals + num_added - len(dead)
    blocks = stream.blocks and stream.blocks.changed(
        epoch_shuffle.number_of_kept(stream.dead, removed), num_added
    )
    after = Stream(
        seed=stream.seed,
        name=stream.name,
        count=count,
        micro_batch_size=micro_batch_size,
        dead=dead,
        blocks=blocks,
    )
    if place == 0 and stream.partial is None:  # nothing was shown: there is no open epoch
        return after
    open_epoch, rest = epoch_shuffle.open_epoch(stream, place)
    gone = np.sort(epoch_shuffle.places_in_epoch(stream, open_epoch, removed)) - place
    gone = gone[gone >= 0]
    partial = PartialEpoch(
        previous=stream,
        place=place,
        num_left=rest - len(gone),
        gone=gone,
        num_added=num_added,
        number=stream.partial.number + 1 if stream.partial else 1,
    )
    return replace(after, partial=partial, first_epoch=open_epoch + 1)
