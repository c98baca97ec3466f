"""Recipe section `preflight`: checks before step 1, and when a node fails."""

from typing import Annotated

from pydantic import Field

from trainer.health.xid import Action
from vidcurate.recipe.recipe import Recipe

SLOW_SHARE = 0.05
"""a GPU that is slower than the median of its kind by more than this share is marked"""
MIN_FREE_MEMORY = 0.9
"""share of a GPU's memory that must be free, or its node is bad"""
MAX_CLOCK_OFFSET_SECONDS = 0.5
"""how far a node's clock may be from that of the first, or the node is bad"""
XID_HOURS = 24.0
"""how old an Xid of the driver may be to count against its node"""

Number = Annotated[str, Field(pattern=r"^\d{1,4}$")]


class PreflightSpec(Recipe):
    """Checks before the first step, and when they fail a node. They change no number of the run."""

    at_start: bool = True
    """check in the short form at every start of the training"""
    check_seconds: Annotated[float, Field(gt=0)] = 30.0
    """how long one check may take; one that takes longer is named, and its node is bad"""
    max_slowdown: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """a GPU that is slower than the median of its kind by more than this share makes its node bad"""
    xid: dict[Number, Action] = Field(default_factory=dict)
    """changes of the policy for Xids: number → ignore, warn, restart_job or drain_node"""
