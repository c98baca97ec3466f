"""Where a run begins: at zero, where it stopped, or from another checkpoint; and the proof of it.

`begin` fills the state from what it finds and refuses anything that does not fit: another model, another
recipe, other data, a checkpoint that is damaged. What it did is printed and kept as one event, with
the rate before and after, the update count, and the checksum of the weights as they now lie in the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainer import checkpoint, optim, weights
from trainer import recipe as recipes
from trainer.recipe import TrainRecipe
from vidcurate.errors import CheckpointError, InputError, RecipeError


@dataclass(slots=True, kw_only=True)
class TrainState:
    """What a step changes. `step` counts updates of the whole run, `stage_step` those of this stage."""

    model: nn.Module
    optimizer: torch.optim.AdamW
    ema: dict[str, Tensor]
    step: int = 0
    stage: int = 0
    stage_step: int = 0
    ema_updates: int = 0
    lr: float | None = None  # of the last update
    clips_hash: str = ""  # over the ids of all clips so far, in order
    loader: dict[str, Any] | None = None  # the data position saved with a checkpoint
    origin: str | None = None  # the checkpoint of another run that this one began from


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What the command line asked to begin from.

    `load`: a checkpoint, with its optimizer, step and data position (not these two with
    `start_from_scratch`). `ckpt_path`: weights only.
    """

    load: Path | None = None
    ckpt_path: Path | None = None
    start_from_scratch: bool = False

    @property
    def word(self) -> str | None:
        """The origin as a checkpoint's state keeps it."""
        if self.ckpt_path:
            return f"--ckpt-path {self.ckpt_path}"
        return f"--load {self.load}{' --start-from-scratch' * self.start_from_scratch}" if self.load else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """How the run begins: `kind` is start, resume, load, load_from_scratch or weights; the rest is proof."""

    kind: str
    path: Path | None = None
    changed: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    proof: dict[str, Any] = field(default_factory=dict)


def check_origin(origin: Origin) -> None:
    """Raise InputError for flags that do not go together, naming the one that was meant."""
    if origin.load and origin.ckpt_path:
        raise InputError(
            f"--load {origin.load} and --ckpt-path {origin.ckpt_path} exclude each other: --load goes on "
            "with optimizer, step and data position, --ckpt-path takes weights only. Give one."
        )
    if origin.start_from_scratch and origin.ckpt_path:
        raise InputError(
            "--start-from-scratch belongs to --load; --ckpt-path takes weights only and always begins "
            "at step 0. Leave --start-from-scratch out."
        )
    if origin.start_from_scratch and not origin.load:
        raise InputError(
            "--start-from-scratch needs --load CHECKPOINT: it keeps weights, average and optimizer and "
            "begins at step 0 of the data. For a run without any checkpoint choose an empty output."
        )
    if origin.load and origin.load.is_file():
        raise InputError(
            f"--load {origin.load}: is a file; --load needs a checkpoint folder (step-…) or a run folder. "
            f"For weights only: --ckpt-path {origin.load}"
        )


def _ways_on(path: Path) -> str:
    return (
        f"Other ways on, each with a new output: --load {path} --start-from-scratch (weights, average and "
        f"optimizer; the data from its beginning), or --ckpt-path {path} (weights only)."
    )


def _check_model(saved: dict[str, Any], now: TrainRecipe, path: Path) -> None:
    for key, (before, after) in recipes.changes(saved["model"], now.model).items():
        raise CheckpointError(
            f"{path}: model.{key} is {before!r} in the checkpoint and {after!r} in the recipe; "
            "a checkpoint loads into the model it was made from."
        )


def _fill(path: Path, state: TrainState, recipe: TrainRecipe) -> dict[str, Any]:
    """Copy a checkpoint, verified, into the state's tensors; return its state.json."""
    found = checkpoint.load(path)
    _check_model(found.state["recipe"], recipe, found.path)
    wanted = {
        "model": dict(state.model.state_dict()),
        "ema": state.ema,
        "optimizer": optim.moments(state.model, state.optimizer),
    }
    for name, tensors in wanted.items():
        checkpoint.copy_into(tensors, found.parts[name], str(found.path / f"{name}.safetensors"))
    return found.state


def _take_counts(state: TrainState, saved: dict[str, Any]) -> None:
    optim.set_update_count(state.optimizer, saved["optimizer_updates"])
    state.ema_updates = saved["ema_updates"]


def _take_position(state: TrainState, saved: dict[str, Any]) -> None:
    state.step, state.stage, state.stage_step = saved["step"], saved["stage_number"], saved["stage_step"]
    state.lr, state.clips_hash, state.loader = saved["lr"], saved["clips_hash"], saved["loader"]


def _proof(state: TrainState, saved: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return what was loaded, as it now lies in the model. Raises CheckpointError when it is not that."""
    now = checkpoint.checksum(state.model.state_dict())
    if now != saved["parameters_sha256"]:
        raise CheckpointError(
            f"{path}: the weights in the model have checksum {now[:12]}, the checkpoint was saved with "
            f"{saved['parameters_sha256'][:12]}; the load went wrong."
        )
    return {
        "path": str(path),
        "lr_before": saved["lr"],
        "optimizer_updates": optim.update_count(state.optimizer),
        "ema_updates": state.ema_updates,
        "parameters_sha256": now,
        "parameters_match_the_manifest": True,
    }


def continue_from(
    path: Path, state: TrainState, recipe: TrainRecipe, settings: Sequence[str], kind: str
) -> Begun:
    """Take everything from the checkpoint at `path`, its position included.

    Raises RecipeError when the recipe has changed in a way that this run cannot take, CheckpointError.
    """
    saved = _fill(path, state, recipe)
    changed = recipes.changes(saved["recipe"], recipe)
    refused = recipes.refused_changes(changed, recipe, saved["stage_number"], saved["stage_step"], settings)
    if refused:
        key = refused[0]
        before, after = changed[key]
        more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
        mean_it = f" or say that it is meant: --set {key}={after}" if ".optim." in key else ""
        raise RecipeError(
            f"{key} was {before!r} when {path} was saved and is {after!r} now{more}. "
            f"Put it back{mean_it}. {_ways_on(path)}"
        )
    _take_counts(state, saved)
    _take_position(state, saved)
    state.origin = saved["origin"] if kind == "resume" else state.origin
    return Begun(kind=kind, path=path, changed=changed, proof=_proof(state, saved, path))


def _load_weights(path: Path, state: TrainState, recipe: TrainRecipe) -> Begun:
    """Take weights only: those of a file, of an Open-Sora folder, or the raw ones of a checkpoint of ours."""
    if path.is_dir() and ((path / checkpoint.LATEST).exists() or (path / "manifest.json").exists()):
        path = checkpoint.find(path)
        checkpoint.verify(path)
    given = weights.read_open_sora(path, recipe.model)
    wanted = dict(state.model.state_dict())
    # Published weights are bfloat16 or float16; training keeps float32.
    cast = {name: value.to(wanted[name].dtype) for name, value in given.items()}
    checkpoint.copy_into(wanted, cast, str(path))
    state.ema = optim.make_ema(state.model)
    proof = {"path": str(path), "parameters_sha256": checkpoint.checksum(wanted)}
    return Begun(kind="weights", path=path, proof=proof)


def begin(recipe: TrainRecipe, origin: Origin, state: TrainState, settings: Sequence[str] = ()) -> Begun:
    """Fill `state` from the run's newest checkpoint, else from `origin`, else leave it as it is.

    A run that has a checkpoint goes on from it, so that the same command can be given again; it must have
    begun from the same origin. Raises InputError, RecipeError, CheckpointError.
    """
    check_origin(origin)
    newest = checkpoint.latest(recipe.output)
    state.origin = origin.word
    if newest is not None:
        saved = checkpoint.read_state(newest)
        is_itself = origin.load is not None and not origin.start_from_scratch and _same(origin.load, newest)
        if origin.word not in (None, saved["origin"]) and not is_itself:
            began = f"began from {saved['origin']}" if saved["origin"] else "began without a checkpoint"
            raise InputError(
                f"{recipe.output} already holds a run that {began} and is at step {saved['step']}; with "
                f"{origin.word} this would be another. Leave the flag out to go on, or --set output=NEW."
            )
        return continue_from(newest, state, recipe, settings, "resume")
    if origin.ckpt_path:
        return _load_weights(origin.ckpt_path, state, recipe)
    if origin.load and origin.start_from_scratch:
        path = checkpoint.find(origin.load)
        saved = _fill(path, state, recipe)
        _take_counts(state, saved)
        return Begun(kind="load_from_scratch", path=path, proof=_proof(state, saved, path))
    if origin.load:
        return continue_from(checkpoint.find(origin.load), state, recipe, settings, "load")
    return Begun(kind="start")


def _same(path: Path, newest: Path) -> bool:
    return checkpoint.find(path).resolve() == newest.resolve()


def state_json(
    state: TrainState, recipe: TrainRecipe, stage_name: str, loader: dict[str, Any], world_size: int
) -> dict[str, Any]:
    """Return what a checkpoint's state.json holds."""
    return {
        "step": state.step,
        "stage": stage_name,
        "stage_number": state.stage,
        "stage_step": state.stage_step,
        "seed": recipe.seed,
        "lr": state.lr,
        "optimizer_updates": optim.update_count(state.optimizer),
        "ema_updates": state.ema_updates,
        "clips_hash": state.clips_hash,
        "loader": loader,
        "origin": state.origin,
        "parameters_sha256": checkpoint.checksum(state.model.state_dict()),
        "recipe": recipes.as_json(recipe),
        "recipe_digest": recipes.digest(recipe),
        "world_size": world_size,
    }
