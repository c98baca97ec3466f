"""The recipe's section `preflight`: what is looked at before the first step, and when a node is bad."""

from typing import Annotated, Literal

from pydantic import Field

from trainer.health.xid import Action
from vidcurate.recipe.recipe import Recipe

Limit = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, lt=1)]
Number = Annotated[str, Field(pattern=r"^\d{1,4}$")]


class PreflightSpec(Recipe):
    """What is looked at before the first step, and when a node is bad. It changes no number of the run."""

    at_start: bool = True
    """check in the short form at every start of the training"""
    check_seconds: Limit = 30.0
    """how long one check may take; one that takes longer is named, and its node is bad"""
    slow_share: Share = 0.05
    """a GPU that is slower than the median of its kind by more than this share is marked"""
    bad_share: Share = 0.3
    """a GPU that is slower than the median of its kind by more than this share makes its node bad"""
    min_tflops: Limit | None = None
    """TFLOP/s of a GPU in the model's products, below which its node is bad; null: only compared"""
    min_copy_gb_per_second: Limit | None = None
    """GB/s, read and written, of a copy in a GPU's memory, below which its node is bad; null: only
    compared"""
    min_free_memory: Share = 0.9
    """share of a GPU's memory that must be free, or its node is bad"""
    min_all_reduce_gb_per_second: Limit | None = None
    """GB/s on the bus of an all-reduce over all ranks, below which it is marked and the links are tried in
    pairs; null: only shown"""
    min_link_gb_per_second: Limit | None = None
    """GB/s in each direction between two ranks, below which a node is bad; null: only compared"""
    min_write_mb_per_second: Limit | None = None
    """MB/s at which a node writes into the run's folder, below which it is bad; null: only shown"""
    max_clock_offset_seconds: Limit = 0.5
    """how far a node's clock may be from that of the first, or it is bad"""
    different_versions: Literal["bad", "warn"] = "bad"
    """what a node is whose driver, NCCL, torch, Python or vidcurate is another than most nodes'"""
    xid_hours: Annotated[float, Field(ge=0)] = 24.0
    """how old an Xid of the driver may be to count against its node; 0: none counts"""
    xid: dict[Number, Action] = Field(default_factory=dict)
    """changes of the policy for Xids: number → ignore, warn, restart_job or drain_node"""
