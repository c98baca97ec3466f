"""Resume: start a run at step 0, from its newest checkpoint, or from another one.

`start` loads the state and refuses what does not fit: another model, recipe, data or optimizer, or a damaged
checkpoint. The log keeps one event with the learning rate before and after, the update count, and the
checksums of weights, EMA and moments as loaded. All ranks start together; rank 0 chooses the checkpoint.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from trainer.distributed import mesh
from trainer.distributed.mesh import ALONE, World
from trainer.model.stdit import ModelSpec, STDiT3Config
from trainer.recipe import changes, skip_windows
from trainer.recipe import recipe as recipes
from trainer.recipe.recipe import Stage, TrainRecipe
from trainer.run_folder import pointer
from trainer.run_folder.checkpoint import checkpoint, checksum, part_metadata, parts, retention
from trainer.training.guard import history
from trainer.training.optim import adamw
from trainer.training.optim import ema as optim_ema
from trainer.training.saved_state import require_form
from trainer.training.state import Origin, StartReport, TrainState
from vidcurate.errors import CheckpointError, InputError, RecipeError, StateError
from vidcurate.sampler.order_state import FLAGS


def check_origin(origin: Origin) -> None:
    """Raise InputError for flags that exclude each other, naming the right one."""
    if origin.load and origin.ckpt_path:
        raise InputError(
            f"--load {origin.load} and --ckpt-path {origin.ckpt_path} exclude each other: --load resumes "
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
    if origin.load and (origin.load / "config.json").is_file():
        raise InputError(
            f"--load {origin.load}: holds weights alone, without optimizer, step and data position. To begin "
            f"with them: --ckpt-path {origin.load}"
        )
    if origin.load and (origin.load / part_metadata.METADATA).is_file():
        raise InputError(
            f"--load {origin.load}: is a part of a checkpoint. For all of it: --load {origin.load.parent}; "
            f"for these weights only: --ckpt-path {origin.load}"
        )


def _alternatives(path: Path) -> str:
    return (
        f"Alternatives, each with a new output: --load {path} --start-from-scratch (weights, average and "
        f"optimizer; the data from its start), or --ckpt-path {path} (weights only)."
    )


def check_model(saved: dict[str, Any], now: STDiT3Config, path: Path) -> None:
    """Raise StateError for a recipe of another model than the checkpoint's."""
    spec = ModelSpec(**{name: getattr(now, name) for name in ModelSpec.model_fields})
    for key, (before, after) in changes.changes(saved, spec).items():
        raise StateError(
            f"{path}: model.{key} is {before!r} in the checkpoint and {after!r} in the recipe; "
            "a checkpoint loads into the model it was made from."
        )


def _fill(
    path: Path, state: TrainState, model: STDiT3Config, world: World, is_verified: bool = False
) -> dict[str, Any]:
    """Verify a checkpoint and load it, each rank its shards; return its state.json."""
    if not is_verified:
        checkpoint.verify(path, world=world)
    saved = checkpoint.read_state(path)
    require_form(saved, path)
    averages = tuple(state.power_averages.tensors) if state.power_averages else ()
    check_fits(saved, model, state.masters.optimizer_name, averages, path)
    if averages:
        checkpoint.verify(path, averages, world)

    def read() -> None:
        for name, tensors in state.tensors().items():
            parts.fill(tensors, path / name)

    mesh.run_on_all_ranks(read, world)
    return saved


def check_fits(
    saved: dict[str, Any], model: STDiT3Config, optimizer: str, averages: Collection[str], path: Path
) -> None:
    """Raise StateError for a checkpoint of another model or optimizer, or without `power_ema`'s averages."""
    check_model(saved["recipe"]["model"], model, path)
    if saved["optimizer"] != optimizer:
        raise StateError(
            f"{path}: was saved with the optimizer {saved['optimizer']} and this trainer has {optimizer}, "
            f"whose moments have another meaning. Load the weights only: --ckpt-path {path}"
        )
    if not set(averages) <= saved["checksums"].keys():
        raise StateError(
            f"{path}: has no averages of power_ema, which begin with a run's first update. Set "
            f"power_ema=null, or load the weights only: --ckpt-path {path}"
        )


def _restore_counts(state: TrainState, saved: dict[str, Any]) -> None:
    adamw.set_update_count(state.optimizer, saved["optimizer_updates"])
    state.ema_updates = saved["ema_updates"]


def check_position(saved: dict[str, Any], path: Path) -> None:
    """Raise CheckpointError for a checkpoint whose data is at another step than its training."""
    skip = skip_windows.merged(saved.get("skip", ()))
    due = skip_windows.data_step(skip, saved["stage_step"] + 1) - 1
    if saved["loader"] and saved["loader"]["step"] != due:
        raise CheckpointError(
            f"{path}: its data is at step {saved['loader']['step']} of the stage and its training at "
            f"{saved['stage_step']}, which reads {due}; they must agree. Resume from the checkpoint before."
        )


def _restore_position(state: TrainState, saved: dict[str, Any]) -> None:
    state.step, state.stage, state.stage_step = saved["step"], saved["stage_number"], saved["stage_step"]
    state.lr, state.clips_hash, state.loader = saved["lr"], saved["clips_hash"], saved["loader"]
    state.delivered_hash = saved.get("delivered_hash", saved["clips_hash"])  # older checkpoints have one hash
    state.guard = history.from_json(saved.get("guard"))


def _proof(state: TrainState, saved: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return checksums and counts of the loaded state. Raises CheckpointError on a mismatch."""
    now = checksums(state.tensors())
    for part, found in now.items():
        if found != saved["checksums"][part]:
            raise CheckpointError(
                f"{path}: the loaded {part} has checksum {found[:12]}, the checkpoint was saved with "
                f"{saved['checksums'][part][:12]}. Load again, or resume from the checkpoint before."
            )
    return {
        "path": str(path),
        "saved_on_ranks": saved["world_size"],
        "lr_before": saved["lr"],
        "optimizer_updates": adamw.update_count(state.optimizer),
        "ema_updates": state.ema_updates,
        "checksums": now,
        "checksums_match_the_manifest": True,
        "stray_files": retention.stray_files(path),
    }


def checksums(tensors: Mapping[str, Mapping[str, Tensor]]) -> dict[str, str]:
    """Return the checksum of each part, independent of sharding; all ranks call it together."""
    return {part: checksum.checksum(values) for part, values in tensors.items()}


def check_changes(
    path: Path,
    saved: dict[str, Any],
    changed: dict[str, tuple[Any, Any]],
    stages: Sequence[Stage],
    settings: Sequence[str],
    accept: Sequence[str],
) -> None:
    """Raise RecipeError for a change since the checkpoint at `path` that a resumed run does not accept."""
    refused = changes.refused_changes(
        changed,
        stages,
        saved["stage_number"],
        saved["stage_step"],
        settings,
        accept,
        data_step=saved["loader"]["step"],
    )
    if refused:
        key = refused[0]
        before, after = changed[key]
        more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
        mean_it = ""
        if changes.is_taken_by_set(key, saved["stage_number"]):
            mean_it = f" or say that it is meant: --set {key}={after}"
        if key.endswith(".skip"):
            mean_it = f", or --set {key}=… with windows behind data step {saved['loader']['step']}"
        if changes.is_of_plan(key, saved["stage_number"]):
            mean_it = f" or say that it is meant: {FLAGS['plan']}"
        raise RecipeError(
            f"{key} was {before!r} when {path} was saved and is {after!r} now{more}. "
            f"Restore the value{mean_it}. {_alternatives(path)}"
        )


def restore(path: Path, state: TrainState, model: STDiT3Config, world: World = ALONE) -> dict[str, Any]:
    """Load everything from a checkpoint of this run, for a rollback; return its checksums.

    The recipe is not compared: the running training has accepted it. Raises CheckpointError.
    """
    saved = _fill(path, state, model, world)
    check_position(saved, path)
    _restore_counts(state, saved)
    _restore_position(state, saved)
    return _proof(state, saved, path)


def read_weights(path: Path, model: STDiT3Config) -> tuple[Path, dict[str, Tensor]]:
    """Return weights only, and where they lie: a file, an Open-Sora folder, or a checkpoint of this trainer.

    Of a checkpoint, the raw weights are read; PATH/ema names its EMA. Raises MissingError, InputError,
    CheckpointError.
    """
    from trainer.run_folder.checkpoint import (
        convert,  # needs safetensors, which a training-only machine may lack
    )

    if path.is_dir() and (pointer.is_there(path) or (path / "manifest.json").exists()):
        path = checkpoint.find(path) / "model"
    return path, convert.read_open_sora(path, model)


def _load_weights(path: Path, state: TrainState, model: STDiT3Config) -> StartReport:
    path, given = read_weights(path, model)
    wanted = dict(state.model.state_dict())
    # Published weights are bfloat16 or float16; training keeps float32.
    cast = {name: value.to(wanted[name].dtype) for name, value in given.items()}
    parts.copy_into(wanted, cast, str(path))
    optim_ema.reset_ema(state.ema, state.model)
    proof = {"path": str(path), "checksums": {"model": checksum.checksum(wanted)}}
    return StartReport(kind="weights", path=path, proof=proof)


def start(
    recipe: TrainRecipe,
    origin: Origin,
    state: TrainState,
    settings: Sequence[str] = (),
    world: World = ALONE,
    verified: Path | None = None,
) -> StartReport:
    """Load the run's newest checkpoint, else `origin`; with neither, leave `state` unchanged.

    The same command can be repeated: a run with a checkpoint resumes from it. Its origin must be the same.
    `verified`: a checkpoint whose hashes need not be computed again. Raises InputError, RecipeError,
    StateError, CheckpointError.
    """

    def resume_from(path: Path, kind: str) -> StartReport:
        saved = _fill(path, state, recipe.model, world, path == verified)
        check_position(saved, path)
        changed = changes.changes(saved["recipe"], recipe)
        check_changes(path, saved, changed, recipe.stages, settings, origin.accept)
        _restore_counts(state, saved)
        _restore_position(state, saved)
        state.origin = saved["origin"] if kind == "resume" else state.origin
        proof = _proof(state, saved, path)
        return StartReport(kind=kind, path=path, changed=changed, proof=proof, recipe=saved["recipe"])

    check_origin(origin)
    newest = mesh.run_on_first_rank(lambda: pointer.latest(recipe.output), world)
    state.origin = origin.word
    if newest is not None:
        saved = checkpoint.read_state(newest)
        check_same_origin(newest, saved, recipe.output, origin)
        return resume_from(newest, "resume")
    if origin.ckpt_path:
        return _load_weights(origin.ckpt_path, state, recipe.model)
    if origin.load and origin.start_from_scratch:
        path = checkpoint.find(origin.load)
        saved = _fill(path, state, recipe.model, world)
        _restore_counts(state, saved)
        return StartReport(kind="load_from_scratch", path=path, proof=_proof(state, saved, path))
    if origin.load:
        path = checkpoint.find(origin.load)
        return resume_from(path, "load")
    return StartReport(kind="start")


def check_same_origin(newest: Path, saved: dict[str, Any], run: Path, origin: Origin) -> None:
    """Raise InputError if the run of the checkpoint `newest` began from another origin."""
    is_itself = origin.load is not None and not origin.start_from_scratch and _same(origin.load, newest)
    if origin.word not in (None, saved["origin"]) and not is_itself:
        began = f"began from {saved['origin']}" if saved["origin"] else "began without a checkpoint"
        raise InputError(
            f"{run} already holds a run that {began} and is at step {saved['step']}; with "
            f"{origin.word} this would be another. Leave the flag out to resume, or --set output=NEW."
        )


def _same(path: Path, newest: Path) -> bool:
    return checkpoint.find(path).resolve() == newest.resolve()


def state_json(
    state: TrainState,
    tensors: Mapping[str, Mapping[str, Tensor]],
    recipe: dict[str, Any],
    stage_name: str,
    loader: dict[str, Any],
    world_size: int,
    skip: skip_windows.Windows = (),
) -> dict[str, Any]:
    """Return a checkpoint's state.json; all ranks call it together.

    `tensors` are the state's, passed in because collecting them takes 0.1 s when sharded. `recipe`: as JSON
    values. `skip`: skipped data steps.
    """
    return {
        "step": state.step,
        "stage": stage_name,
        "stage_number": state.stage,
        "stage_step": state.stage_step,
        "seed": recipe["seed"],
        "lr": state.lr,
        "optimizer_updates": adamw.update_count(state.optimizer),
        "ema_updates": state.ema_updates,
        "clips_hash": state.clips_hash,
        "delivered_hash": state.delivered_hash,
        "loader": loader,
        "skip": [list(window) for window in skip],
        "guard": history.to_json(state.guard),
        "origin": state.origin,
        "optimizer": state.masters.optimizer_name,
        "checksums": checksums(tensors),
        "recipe": recipe,
        "recipe_digest": recipes.digest(recipe),
        "world_size": world_size,
    }
