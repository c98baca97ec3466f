"""Recipe section `guard`: policy for each finding, thresholds of the findings."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from vidcurate.recipe.recipe import Recipe

Policy = Literal["ignore", "warn", "skip", "scale_lr", "rollback", "restart", "drain", "stop"]
"""What is done, from the mildest to the firmest; findings of others (a slow rank, an Xid) use the same words.

ignore: nothing; warn: an event and a line; skip: no update in this step; scale_lr: a smaller learning rate
for a while; rollback: back to the last good checkpoint, without the data in between; restart: end with 76;
drain: end with 77, begin again without that node; stop: end with 78, a person has to look.
"""

FIRMNESS: tuple[Policy, ...] = (
    "ignore",
    "warn",
    "skip",
    "scale_lr",
    "rollback",
    "restart",
    "drain",
    "stop",
)

Kind = Literal["nonfinite", "spike", "gradient", "divergence", "weights", "lr", "hardware"]

# What a recipe can have done about each kind, mildest first: a used-up policy gives way to the next.
CHOICES: dict[Kind, tuple[Policy, ...]] = {
    "nonfinite": ("skip", "rollback", "stop"),
    "spike": ("ignore", "warn", "skip", "scale_lr", "rollback", "stop"),
    "gradient": ("ignore", "warn", "skip", "scale_lr", "rollback", "stop"),
    "divergence": ("ignore", "warn", "scale_lr", "rollback", "stop"),
    "weights": ("ignore", "warn", "scale_lr", "rollback", "stop"),
}

# What follows a finding, however sensitive the guard is.
MOST: dict[Policy, int] = {"skip": 10, "scale_lr": 3}
"""uses of a policy before the guard takes the next stricter one; warnings have no limit"""
LR_FACTOR = 0.5
"""what scale_lr multiplies the learning rate with"""
LR_STEPS = 200
"""steps for which scale_lr does"""
MARGIN_STEPS = 4
"""data steps that a rollback skips before the first suspicious step and behind the last one, too (PaLM,
section 5.1, skipped 200 to 500 batches around a spike; the guard knows the step)"""
RERUN_TOLERANCE = 0.02
"""relative difference between two computations of one micro-batch that is no finding"""
SUSPICIOUS_STEPS = 32
"""how far back a spike's beginning is looked for"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """From where on a figure is a finding. The defaults are `sensitivity: normal`.

    Robust z-scores (Iglewicz & Hoaglin 1993, who call 3.5 an outlier) are set higher, as a run makes many
    thousand steps; a ratio beside each keeps a run with little noise from calling small differences findings.
    `benchmarks/guard.py` measures false alarms and what is found.
    """

    spike_z: float = 6.0
    """robust z-score of a step's loss, by bucket and timestep, from which on it is a spike"""
    spike_ratio: float = 1.25
    """times that the loss must be above the expected one to be a spike"""
    gradient_z: float = 8.0
    """robust z-score of the logarithm of the gradient's norm"""
    gradient_ratio: float = 3.0
    """times that the gradient's norm must be above its median"""
    divergence_window: int = 200
    """steps over which the loss is smoothed, for each bucket the last so many that read it"""
    divergence_rise: float = 0.1
    """relative rise of the smoothed loss over its best that is a divergence"""
    divergence_z: float = 4.0
    """standard errors that the rise must be, too"""
    weight_z: float = 10.0
    """robust z-score of the change of the weights' norm per step"""
    weight_change: float = 0.02
    """relative change between two looks that the weights' norm must make, too"""

    def scaled(self, factor: float) -> "Thresholds":
        """Return thresholds `factor` times as far from no difference: z-scores, rises, ratios less 1."""
        return replace(
            self,
            spike_z=factor * self.spike_z,
            spike_ratio=1 + factor * (self.spike_ratio - 1),
            gradient_z=factor * self.gradient_z,
            gradient_ratio=1 + factor * (self.gradient_ratio - 1),
            divergence_rise=factor * self.divergence_rise,
            divergence_z=factor * self.divergence_z,
            weight_z=factor * self.weight_z,
            weight_change=factor * self.weight_change,
        )


THRESHOLDS = {"low": Thresholds().scaled(2), "normal": Thresholds(), "high": Thresholds().scaled(0.75)}
"""by the recipe's `sensitivity`"""


class GuardSpec(Recipe):
    """Policies on the run's own findings: docs/guard.md. Without a finding no number changes."""

    nonfinite: Literal["skip", "rollback", "stop"] = "stop"
    """a loss or gradient that is not finite; the update is never made"""
    spike: Literal["ignore", "warn", "skip", "scale_lr", "rollback", "stop"] = "warn"
    """a step whose loss is far above what its buckets and timesteps had before"""
    gradient: Literal["ignore", "warn", "skip", "scale_lr", "rollback", "stop"] = "warn"
    """a step whose gradient is far larger than those before"""
    divergence: Literal["ignore", "warn", "scale_lr", "rollback", "stop"] = "warn"
    """a loss that has been rising slowly over a window of steps"""
    weights: Literal["ignore", "warn", "scale_lr", "rollback", "stop"] = "warn"
    """a jump of the weights' norm, looked at in the steps of log_every"""
    lr: ClassVar[Literal["warn"]] = "warn"
    """a last learning rate that is not what the schedule says of that step: logged, and ends no run"""
    hardware: ClassVar[Literal["drain"]] = "drain"
    """a suspicious step whose rerun gives other numbers: exit with 77, unless watch.on_hardware is warn"""
    max_rollbacks: Annotated[int, Field(ge=0)] = 3
    """rollbacks of the whole run; after them the guard takes the next stricter policy"""
    sensitivity: Literal["low", "normal", "high"] = "normal"
    """thresholds of the findings: low takes twice the distance of normal, high three quarters of it"""

    def policy(self, kind: Kind) -> Policy:
        """Return the recipe's policy for a kind of finding."""
        chosen: Policy = getattr(self, kind)
        return chosen

    @property
    def thresholds(self) -> Thresholds:
        """From where on a figure is a finding."""
        return THRESHOLDS[self.sensitivity]

    def most(self, policy: Policy) -> int | None:
        """Return how often a policy may be used; None where nothing limits it."""
        return self.max_rollbacks if policy == "rollback" else MOST.get(policy)

    def delay_steps(self) -> int:
        """Return the most steps between a fault and the finding that rolls the run back."""
        delays = [0]
        if self.divergence == "rollback":
            delays.append(2 * self.thresholds.divergence_window)
        if any(self.policy(kind) == "rollback" for kind in ("nonfinite", "spike", "gradient", "weights")):
            delays.append(SUSPICIOUS_STEPS)
        return max(delays)
