"""Training state: model, optimizer, EMA and step; where a run starts from."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainer.training.guard.history import GuardState
from trainer.training.optim import adamw
from trainer.training.optim.adamw import Masters


@dataclass(slots=True, kw_only=True)
class TrainState:
    """What a step changes. `step` counts updates of the whole run, `stage_step` those of this stage.

    The tensors of model, optimizer and average lie over the ranks alike (parallel.py).
    """

    model: nn.Module
    masters: Masters
    step: int = 0
    stage: int = 0
    stage_step: int = 0
    ema_updates: int = 0
    lr: float | None = None  # of the last update
    clips_hash: str = ""  # over the ids of all clips planned so far, in order
    delivered_hash: str = ""  # the same of the clips that came, with spares for those that cannot be read
    loader: dict[str, Any] | None = None  # the data position saved with a checkpoint
    origin: str | None = None  # the checkpoint of another run that this one began from
    guard: GuardState = field(default_factory=GuardState)

    @property
    def optimizer(self) -> torch.optim.AdamW:
        """Of the masters."""
        return self.masters.optimizer

    @property
    def ema(self) -> dict[str, Tensor]:
        """The moving average, by name: the masters'."""
        return self.masters.ema

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return what a checkpoint's parts hold, by name, not copied."""
        return {
            "model": dict(self.model.state_dict()),
            "ema": self.ema,
            "optimizer": adamw.moments(self.model, self.optimizer),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What the command line asked to begin from.

    `load`: a checkpoint, with its optimizer, step and data position (not these two with
    `start_from_scratch`). `ckpt_path`: weights only. `accept`: the flags of changed data and plans that the
    run is to go on after (`vidcurate.sampler.order_state.FLAGS`).
    """

    load: Path | None = None
    ckpt_path: Path | None = None
    start_from_scratch: bool = False
    accept: tuple[str, ...] = ()

    @property
    def word(self) -> str | None:
        """The origin as a checkpoint's state keeps it."""
        if self.ckpt_path:
            return f"--ckpt-path {self.ckpt_path}"
        return f"--load {self.load}{' --start-from-scratch' * self.start_from_scratch}" if self.load else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartReport:
    """How the run begins: `kind` is start, resume, load, load_from_scratch or weights; the rest is proof.

    `recipe`: the one kept in the checkpoint that it goes on from.
    """

    kind: str
    path: Path | None = None
    changed: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    proof: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)
