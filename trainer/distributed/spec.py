"""Recipe section `parallel`: how ranks share the model, and what is recomputed."""

from typing import Annotated, Literal

from pydantic import Field

from trainer.distributed.memory import Sharding
from vidcurate.recipe.recipe import Recipe


class ParallelSpec(Recipe):
    """How the run uses its ranks. It changes the order of float additions and nothing else.

    `sharding`: `none` (every rank holds masters, moments and average), `full` (cut over all ranks), `hybrid`
    (cut over a host's ranks, copied over the hosts) or a number (cut over so many ranks, copied over the
    others).
    """

    sharding: Literal["none", "full", "hybrid"] | Annotated[int, Field(ge=1)] = "none"
    """none: each rank holds all; full: cut over all ranks (FSDP2); hybrid: over a host's (HSDP); or how many
    ranks share one copy"""
    recompute_blocks: Annotated[int, Field(ge=0)] | Literal["fit"] = 0
    """blocks, the first ones, whose activations are computed again in the backward pass to save memory; fit:
    each shape of micro-batch goes through in the fewest chunks that fit into the GPU, with fast blocks lean,
    which make only q, k and the GELU again; blocks are computed again only where one clip does not fit"""

    @property
    def shard_size(self) -> int | None:
        """The ranks that share one copy, if the recipe gives their number."""
        return self.sharding if isinstance(self.sharding, int) else None

    @property
    def form(self) -> Sharding:
        """The form of `sharding`: a number of ranks is a hybrid one."""
        return "hybrid" if isinstance(self.sharding, int) else self.sharding
