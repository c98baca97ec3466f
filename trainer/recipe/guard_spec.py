"""The recipe's section `guard`: what each finding leads to, and from where on a figure is a finding."""

from typing import Annotated, Literal

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

# What can be done about each kind, mildest first: a policy that has been used up gives way to the next.
CHOICES: dict[Kind, tuple[Policy, ...]] = {
    "nonfinite": ("skip", "rollback", "stop"),
    "spike": ("ignore", "warn", "skip", "scale_lr", "rollback", "stop"),
    "gradient": ("ignore", "warn", "skip", "scale_lr", "rollback", "stop"),
    "divergence": ("ignore", "warn", "scale_lr", "rollback", "stop"),
    "weights": ("ignore", "warn", "scale_lr", "rollback", "stop"),
    "lr": ("ignore", "warn", "stop"),
    "hardware": ("warn", "drain"),
}

Threshold = Annotated[float, Field(gt=0)]
Ratio = Annotated[float, Field(gt=1)]
Count = Annotated[int, Field(ge=1)]
Most = Annotated[int, Field(ge=0)]


class GuardSpec(Recipe):
    """What the run does about its own troubles. Without a finding it changes no number.

    The first seven keys are policies (docs/guard.md has the table), `most_…` how often one may be used
    before the next firmer one takes its place, the rest says from where on a figure is a finding.
    """

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
    lr: Literal["ignore", "warn", "stop"] = "warn"
    """a last learning rate that is not what the schedule says of that step"""
    hardware: Literal["warn", "drain"] = "drain"
    """a suspicious step that comes out otherwise when it is computed again: end with 77, or go on"""
    rerun: bool = True
    """compute a step with a spike, or one that is not finite, again on its rank and on the next one"""
    rerun_tolerance: Threshold = 0.02
    """relative difference between two computations of one micro-batch that is no finding"""
    most_warnings: Most | None = None
    """warnings before the next firmer policy takes over; null: no limit"""
    most_skips: Most = 10
    """updates that may be skipped"""
    most_scalings: Most = 3
    """times that the learning rate may be scaled"""
    most_rollbacks: Most = 3
    """rollbacks of the whole run"""
    lr_factor: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """what scale_lr multiplies the learning rate with"""
    lr_steps: Count = 200
    """steps for which scale_lr does"""
    margin_steps: Most = 4
    """data steps that a rollback skips before the first suspicious step and behind the last one, too"""
    spike_z: Threshold = 6.0
    """robust z-score of a step's loss, by bucket and timestep, from which on it is a spike"""
    spike_ratio: Ratio = 1.25
    """times that the loss must be above the expected one to be a spike"""
    gradient_z: Threshold = 8.0
    """robust z-score of the logarithm of the gradient's norm"""
    gradient_ratio: Ratio = 3.0
    """times that the gradient's norm must be above its median"""
    divergence_window: Annotated[int, Field(ge=8)] = 200
    """steps over which the loss is smoothed, for each bucket the last so many that read it"""
    divergence_rise: Threshold = 0.1
    """relative rise of the smoothed loss over its best that is a divergence"""
    divergence_z: Threshold = 4.0
    """standard errors that the rise must be, too"""
    weight_z: Threshold = 10.0
    """robust z-score of the change of the weights' norm per step"""
    weight_change: Threshold = 0.02
    """relative change between two looks that the weights' norm must make, too"""

    def policy(self, kind: Kind) -> Policy:
        """Return the recipe's policy for a kind of finding."""
        chosen: Policy = getattr(self, kind)
        return chosen

    def most(self, policy: Policy) -> int | None:
        """Return how often a policy may be used; None where nothing limits it."""
        return {
            "warn": self.most_warnings,
            "skip": self.most_skips,
            "scale_lr": self.most_scalings,
            "rollback": self.most_rollbacks,
        }.get(policy)

    def delay_steps(self) -> int:
        """Return how many steps may lie between a trouble and its finding, where one leads to a rollback."""
        delays = [0]
        if self.divergence == "rollback":
            delays.append(2 * self.divergence_window)
        if any(self.policy(kind) == "rollback" for kind in ("nonfinite", "spike", "gradient", "weights")):
            delays.append(SUSPICIOUS_STEPS)
        return max(delays)


SUSPICIOUS_STEPS = 32  # how far back a spike's beginning is looked for
