"""Recipe section `trackers`: TensorBoard and Weights & Biases."""

from typing import Literal

from vidcurate.recipe.recipe import Recipe


class WandbSpec(Recipe):
    """Weights & Biases. The run keeps one identity over all its starts, in RUN/wandb."""

    project: str
    """project of the run"""
    name: str | None = None
    """name of the run there; null: the recipe's"""
    group: str | None = None
    """group of the run, and of the inference server's beside it; null: the recipe's name"""
    tags: tuple[str, ...] = ()
    """tags of the run"""
    mode: Literal["online", "offline"] | None = None
    """offline keeps the run in RUN/wandb for `wandb sync`; null: what WANDB_MODE says, or online"""


class TrackersSpec(Recipe):
    """Where the numbers are shown besides metrics.jsonl."""

    tensorboard: bool = False
    """write RUN/tensorboard"""
    wandb: WandbSpec | None = None
    """send to Weights & Biases"""
