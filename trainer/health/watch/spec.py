"""What a recipe says of watching a run."""

from typing import Annotated, Literal

from pydantic import Field

from trainer.cli import exit_codes
from vidcurate.errors import VidcurateError
from vidcurate.recipe.recipe import Recipe

Policy = Literal["warn", "restart", "stop"]
Positive = Annotated[float, Field(gt=0)]


class WatchSpec(Recipe):
    """What is watched while a run goes on, and what is done about it.

    Policies: `warn` records the event and goes on. `restart` leaves with exit code 76, which `launch` begins
    again from, `stop` with 78. Before that, what does not hang ends its step and saves; a run that hangs
    cannot, and keeps the stacks.
    """

    stall_seconds: Positive | None = 600.0
    """a step that takes longer hangs; null watches for no hanging and lost ranks"""
    slow_phase_seconds: Positive = 3600.0
    """the same for what may take longer than a step: the start, a stage's first step, a save, a round of
    samples or of validation, a step that the guard computes again, a rollback"""
    on_stall: Policy = "restart"
    """when a step hangs; a rank that is gone is always a reason to begin again"""
    slow_rank_factor: Annotated[float, Field(gt=1)] = 1.5
    """a rank is slow when its own work takes this many times the others' median"""
    slow_rank_steps: Annotated[int, Field(ge=1)] = 50
    """steps over which the ranks are compared"""
    on_slow_rank: Policy = "warn"
    """when a rank is slow"""
    throughput_drop: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """share by which tokens/s may fall below the run's own median for the same buckets"""
    on_throughput_drop: Policy = "warn"
    """when they fall further"""
    clock_step_seconds: Positive = 0.1
    """a host's clock that was set by this much is told"""
    on_clock_step: Policy = "warn"
    """when a clock was set"""
    hardware_seconds: Positive | None = 60.0
    """seconds between two looks at a host's GPUs and its kernel's log; null looks at neither"""
    on_hardware: Literal["warn", "act"] = "act"
    """act: what the table of Xids says (exit code 77 to go on without the node, 76 to begin again); warn:
    record only"""


class LostRankError(VidcurateError):
    """Another rank is gone, so this one cannot go on; the run's folder is sound."""

    exit_code = exit_codes.RESTART
