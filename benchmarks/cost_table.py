"""Cost table (`buckets.cost_table`) for rank balance: seconds of a clip by bucket."""

import json
from collections.abc import Iterable
from pathlib import Path


def write_cost_table(
    path: Path,
    measured_on: str,
    costs: Iterable[tuple[str, int, float]],
    per_micro_batch: float = 0.0,
) -> None:
    """Write (resolution, frames, seconds of a clip); of several aspect ratios the costliest counts.

    `per_micro_batch`: the seconds that one takes whatever its size.
    """
    table: dict[str, dict[int, float]] = {}
    for resolution, num_frames, seconds in costs:
        lengths = table.setdefault(resolution, {})
        lengths[num_frames] = max(seconds, lengths.get(num_frames, 0.0))
    reported = {
        "measured_on": measured_on,
        "seconds_per_micro_batch": per_micro_batch,
        "seconds_per_clip": {name: dict(sorted(lengths.items())) for name, lengths in sorted(table.items())},
    }
    path.write_text(json.dumps(reported, indent=1) + "\n")
