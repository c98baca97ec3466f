"""Rows of the projected speedrun: GPU hours and imbalance beside the published run's."""

import dataclasses
import functools
from dataclasses import dataclass

from rows import Row, row
from step_shapes import TEXT_TOKENS

PUBLISHED_STEPS = {"stage-1": 2_210, "stage-2": 7_100, "stage-3": 14_780}
PUBLISHED_TOTAL = sum(PUBLISHED_STEPS.values())
PUBLISHED_HOURS = 18_000.0


NAMES = {  # of a form of the step: what a reader calls it, and the peer of its rows
    "captions": ("bfloat16, captions by their true lengths", "bfloat16, 300 tokens to each caption"),
    "float8": ("float8, 300 tokens to each caption", "the same in bfloat16"),
    "float8_captions": (
        "float8, captions by their true lengths",
        "bfloat16, 300 tokens to each caption",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """GPU hours of a stage, and each case's imbalance, assigned round-robin and by time.

    `share` is what a real run reaches of training and update. `forms`: training and share of other forms
    of the step, by the projection's names; `read`: the caption tokens of a clip in those of `captions`.
    """

    steps: int
    training: float
    update: float
    ahead: float
    online: float
    imbalance: dict[str, tuple[float, float]]
    share: float
    read: float
    forms: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)

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
    case = SPREADS["48_ranks"]
    usual = sum(figures.hours(case) + figures.ahead for figures in found.values())
    for form, (_, peer) in NAMES.items():
        if not all(form in figures.forms for figures in found.values()):
            continue
        of_form = [
            dataclasses.replace(one, training=one.forms[form][0], share=one.forms[form][1])
            for one in found.values()
        ]
        rows.append(
            less_is_better(
                f"gpu_hours_ahead_48_ranks_{form}",
                sum(figures.hours(case) + figures.ahead for figures in of_form),
                "GPU hours",
                peer=peer,
                peer_value=usual,
                goal="<= 2,300",
            )
        )
    for name, figures in found.items():
        steps = PUBLISHED_STEPS[name]
        for form, (hours, _) in figures.forms.items():
            rows.append(
                less_is_better(f"{name}_gpu_hours_training_{form}", hours, "GPU hours",
                               peer=NAMES[form][1], peer_value=figures.training)
            )  # fmt: skip
        if any(form.endswith("captions") for form in figures.forms):
            rows.append(
                less_is_better(f"{name}_tokens_read", figures.read, "tokens", peer="assumed of every clip",
                               peer_value=TEXT_TOKENS)
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
