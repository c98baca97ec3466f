"""Recipe section `trackers`: TensorBoard and Weights & Biases."""

from vidcurate.recipe.recipe import Recipe


class WandbSpec(Recipe):
    """Weights & Biases. The run keeps one identity over all its starts, in RUN/wandb.

    Its own variables choose the rest: WANDB_NAME and WANDB_RUN_GROUP (without them the recipe's name),
    WANDB_TAGS, WANDB_ENTITY, and WANDB_MODE=offline, which keeps the run in RUN/wandb for `wandb sync`.
    """

    project: str
    """project of the run"""


class TrackersSpec(Recipe):
    """Where the numbers are shown besides metrics.jsonl."""

    tensorboard: bool = False
    """write RUN/tensorboard"""
    wandb: WandbSpec | None = None
    """send to Weights & Biases"""
