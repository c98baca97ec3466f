"""Rows of the projected speedrun: GPU hours and imbalance beside the published run's."""

import dataclasses
import functools
from dataclasses import dataclass

from rows import Row, row

PUBLISHED_STEPS = {"stage-1": 2_210, "stage-2": 7_100, "stage-3": 14_780}
PUBLISHED_TOTAL = sum(PUBLISHED_STEPS.values())
PUBLISHED_HOURS = 18_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """GPU hours of a stage, and each case's imbalance, assigned round-robin and by time.

    `share` is what a real run reaches of training and update; `float8` is training in float8.
    """

    steps: int
    training: float
    float8: float | None
    update: float
    ahead: float
    online: float
    imbalance: dict[str, tuple[float, float]]
    share: float

    def hours(self, case: str) -> float:
        """Return all but encoding, with the waiting of a case assigned by time, as a real run takes it."""
        return (self.training * self.imbalance[case][1] + self.update) / self.share

    @property
    def lost(self) -> float:
        """Return the hours that a real run takes beyond its micro-batches and updates."""
        return (self.training + self.update) * (1 / self.share - 1)


# How the run is spread → the simulated case: 48 ranks share the published step of 192 four by four.
SPREADS = {"8_ranks": "8_ranks", "48_ranks": "192_ranks_four_each", "192_ranks": "192_ranks"}


def as_rows(found: dict[str, Figures], hardware: str) -> list[Row]:
    """Return the rows to keep, the published run or the published assignment beside each."""
    less_is_better = functools.partial(row, hardware=hardware, higher_is_better=False)
    rows = []
    for way in ("ahead", "online"):
        for spread, case in SPREADS.items():
            rows.append(
                less_is_better(
                    f"gpu_hours_{way}_{spread}",
                    sum(figures.hours(case) + getattr(figures, way) for figures in found.values()),
                    "GPU hours",
                    peer="published run (H100, 192 ranks, on line)",
                    peer_value=PUBLISHED_HOURS,
                    goal="<= 2,300" if (way, spread) == ("ahead", "48_ranks") else "",
                )
            )
    in_float8 = [dataclasses.replace(one, training=one.float8) for one in found.values() if one.float8]
    if len(in_float8) == len(found):
        case = SPREADS["48_ranks"]
        rows.append(
            less_is_better(
                "gpu_hours_ahead_48_ranks_float8",
                sum(figures.hours(case) + figures.ahead for figures in in_float8),
                "GPU hours",
                peer="the same in bfloat16",
                peer_value=sum(figures.hours(case) + figures.ahead for figures in found.values()),
                goal="<= 2,300",
            )
        )
    for name, figures in found.items():
        steps = PUBLISHED_STEPS[name]
        if figures.float8:
            rows.append(
                less_is_better(f"{name}_gpu_hours_training_float8", figures.float8, "GPU hours",
                               peer="the same in bfloat16", peer_value=figures.training)
            )  # fmt: skip
        rows.append(
            less_is_better(f"{name}_steps", figures.steps, "steps", peer="published run", peer_value=steps)
        )
        pace = PUBLISHED_HOURS * steps / PUBLISHED_TOTAL
        for part in ("training", "update", "lost", "ahead", "online"):
            rows.append(
                less_is_better(
                    f"{name}_gpu_hours_{part}",
                    getattr(figures, part),
                    "GPU hours",
                    peer="published run, all of it (H100, by its share of the steps)",
                    peer_value=pace,
                )
            )
        for case, (turn, balanced) in figures.imbalance.items():
            metric = f"{name}_imbalance_{case}"
            rows.append(less_is_better(metric, balanced, "max/mean", peer="round-robin", peer_value=turn))
    return rows
