"""Training state: model, optimizer, EMA and step; where a run starts from."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainer.training.guard.history import GuardState
from trainer.training.optim.adamw import Masters
from trainer.training.optim.power_averages import PowerAverages


@dataclass(slots=True, kw_only=True)
class TrainState:
    """What a step changes. `step` counts updates of the run, `stage_step` those of the stage.

    The tensors of model, optimizer and EMA are sharded alike.
    """

    model: nn.Module
    masters: Masters
    step: int = 0
    stage: int = 0
    stage_step: int = 0
    ema_updates: int = 0
    lr: float | None = None  # of the last update
    clips_hash: str = ""  # over the ids of all planned clips so far, in order
    delivered_hash: str = ""  # over the ids of the clips read, with fallback clips for unreadable ones
    loader: dict[str, Any] | None = None  # the data position saved with a checkpoint
    origin: str | None = None  # the checkpoint of another run that this run started from
    guard: GuardState = field(default_factory=GuardState)
    power_averages: PowerAverages | None = None

    @property
    def optimizer(self) -> torch.optim.AdamW:
        """The masters' optimizer."""
        return self.masters.optimizer

    @property
    def ema(self) -> dict[str, Tensor]:
        """The masters' EMA, by name."""
        return self.masters.ema

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return the tensors of a checkpoint's parts, by name, not copied."""
        return {
            "model": dict(self.model.state_dict()),
            "ema": self.ema,
            "optimizer": self.masters.optimizer_tensors(self.model),
            **(self.power_averages.tensors if self.power_averages else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The starting point that the command line asks for.

    `load`: a checkpoint, with its optimizer, step and data position (without the last two if
    `start_from_scratch`). `ckpt_path`: weights only. `accept`: the flags of the data and plan changes that
    the resumed run accepts (`vidcurate.sampler.order_state.FLAGS`).
    """

    load: Path | None = None
    ckpt_path: Path | None = None
    start_from_scratch: bool = False
    accept: tuple[str, ...] = ()

    @property
    def word(self) -> str | None:
        """The origin as stored in a checkpoint's state."""
        if self.ckpt_path:
            return f"--ckpt-path {self.ckpt_path}"
        return f"--load {self.load}{' --start-from-scratch' * self.start_from_scratch}" if self.load else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartReport:
    """How the run starts: `kind` is start, resume, load, load_from_scratch or weights.

    `proof`: checksums and counts of what was loaded. `recipe`: the recipe stored in the loaded checkpoint.
    """

    kind: str
    path: Path | None = None
    changed: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    proof: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)
