"""Recipe section `watch`: hangs, slow ranks, hardware faults that end a run."""

from typing import Annotated, Literal

from pydantic import Field

from trainer.cli import exit_codes
from vidcurate.errors import VidcurateError
from vidcurate.recipe.recipe import Recipe

SLOW_PHASE_SECONDS = 3600.0
"""stall_seconds of what may take longer than a step: the start, a stage's first step, a save, a round of
samples or of validation, a step that the guard computes again, a rollback"""
SLOW_RANK_STEPS = 50
"""steps over which the ranks are compared"""
THROUGHPUT_DROP = 0.3
"""share by which tokens/s may fall below the run's own median for the same buckets"""
CLOCK_STEP_SECONDS = 0.1
"""a host's clock that was set by this much is logged"""
HARDWARE_SECONDS = 60.0
"""seconds between two looks at a host's GPUs and its kernel's log"""

Policy = Literal["warn", "restart", "stop"]
Positive = Annotated[float, Field(gt=0)]


class WatchSpec(Recipe):
    """Hung and lost ranks, slow ranks, and hardware faults while a run trains, with a policy for each.

    Policies: `warn` records the event and the run continues. `restart` ends the run with exit code 76, after
    which `launch` starts it again; `stop` ends it with 78. Before that a run that does not hang finishes its
    step and saves; a run that hangs cannot, and keeps the stacks.
    """

    stall_seconds: Positive | None = 600.0
    """a step that takes longer hangs; null watches for no hanging and lost ranks"""
    on_stall: Policy = "restart"
    """when a step hangs; a rank that is gone is always a reason to restart"""
    max_slowdown: Positive = 0.5
    """a rank is slow when its own work takes longer than the others' median by more than this share"""
    on_slow_rank: Policy = "warn"
    """when a rank is slow"""
    on_hardware: Literal["warn", "act"] = "act"
    """act: what the table of Xids says (exit code 77 to continue without the node, 76 to restart), and 77 for
    a rank whose suspicious step comes out otherwise when computed again; warn: record only"""


class LostRankError(VidcurateError):
    """Another rank is gone, so this rank cannot continue; the run folder is sound."""

    exit_code = exit_codes.RESTART
