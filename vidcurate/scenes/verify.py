"""Is an extracted clip what was asked for? Its frames are counted and its first one compared."""

from pathlib import Path

import numpy as np

from vidcurate.errors import MediaError
from vidcurate.transcode import Cut, first_frame
from vidcurate.video import count_decodable_frames, read_frames

_SIDE_PX = 64


def check(cut: Cut, source: Path, *, max_difference: float) -> float:
    """Return by how many levels the clip's first frame differs on average from the source's at that time.

    Raises MediaError, kind wrong_extract, when the clip holds another number of frames than it says, or when
    the first frame differs by more than `max_difference`.
    """
    counted = count_decodable_frames(cut.payload)
    if counted != cut.facts["num_frames"]:
        raise MediaError(
            f"{source.name}: the clip should hold {cut.facts['num_frames']} frames, {counted} decode.",
            kind="wrong_extract",
        )
    start, end = cut.facts["start_seconds"], cut.facts["end_seconds"]
    here = read_frames(cut.payload, [0], height=_SIDE_PX, width=_SIDE_PX, accept_corrupt=True)[0]
    there = first_frame(source, start, end, height=_SIDE_PX, width=_SIDE_PX)
    difference = float(np.abs(here.astype(np.int16) - there).mean())
    if difference > max_difference:
        raise MediaError(
            f"{source.name}: the clip's first frame differs by {difference:.1f} levels from the source's at "
            f"{start:.3f} s; {max_difference:g} are allowed.",
            kind="wrong_extract",
        )
    return difference
