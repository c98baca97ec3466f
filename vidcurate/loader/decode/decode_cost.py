"""Decode cost: measure the CPU seconds per clip of each cell on this machine."""

import time

import numpy as np

from vidcurate.errors import MediaError
from vidcurate.loader.decode_tasks import decode_task, num_starts
from vidcurate.loader.remote_clips import decode_from
from vidcurate.sampler.plan import Plan
from vidcurate.shards.index import Index


def decode_seconds(index: Index, plan: Plan, clips_per_cell: int) -> dict[str, float]:
    """Return cell → median CPU seconds to decode one of its clips, from the middle of its possible starts.

    Decodes up to `clips_per_cell` clips, spread over the cell, each twice, and times the second pass, which
    reads the clip from the page cache. Leaves out a cell when none of its clips decodes. Raises ShardError,
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
