"""Recipe section `trackers`: TensorBoard and Weights & Biases."""

from vidcurate.recipe.recipe import Recipe


class TrackersSpec(Recipe):
    """Where the numbers are shown besides metrics.jsonl.

    The run keeps one identity in Weights & Biases over all its starts, in RUN/wandb. W&B's own variables
    choose the rest: WANDB_NAME and WANDB_RUN_GROUP (without them the recipe's name), WANDB_TAGS,
    WANDB_ENTITY, and WANDB_MODE=offline, which keeps the run in RUN/wandb for `wandb sync`.
    """

    tensorboard: bool = False
    """write RUN/tensorboard"""
    wandb: str | None = None
    """project in Weights & Biases to send the run to; null: none"""
