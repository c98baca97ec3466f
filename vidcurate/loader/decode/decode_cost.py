"""What decoding costs here: CPU seconds a clip of each cell, measured on clips of it."""

import time

import numpy as np

from vidcurate.errors import MediaError
from vidcurate.loader.remote_clips import decode_from
from vidcurate.loader.tasks import decode_task, num_starts
from vidcurate.sampler.plan import Plan
from vidcurate.shards.index import Index


def decode_seconds(index: Index, plan: Plan, clips_per_cell: int) -> dict[str, float]:
    """Return cell → median CPU seconds to decode one of its clips, from the middle of its possible starts.

    Each clip is decoded twice and the second time counts, so it lies in memory; at most `clips_per_cell` of a
    cell, spread over it. A cell none of whose clips can be decoded is not in it. Raises ShardError,
    StorageError.
    """
    decode = decode_from(index)
    found: dict[str, float] = {}
    for cell in plan.cells:
        times: list[float] = []
        for place in np.linspace(0, len(cell.rows) - 1, min(clips_per_cell, len(cell.rows))).astype(int):
            row = int(cell.rows[place])
            first = (num_starts(index, row, cell.bucket) - 1) // 2
            task = decode_task(index, row, cell.bucket, first_frame=first)
            try:
                decode(task)
                begun = time.process_time()
                decode(task)
            except MediaError:
                continue
            times.append(time.process_time() - begun)
        if times:
            found[cell.name] = float(np.median(times))
    return found
