"""Data position of a checkpoint: save, compare with current data, continue.

A deliberate change of the data needs a flag that names it (`vidcurate.sampler.order_state.FLAGS`). Each
change becomes an entry of the stage's change log, in the run's folder beside copies of the indexes.
"""

import json
import shutil
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trainer.data import stages as data_stages
from trainer.data.stages import StageData
from trainer.distributed import mesh
from trainer.distributed.mesh import ALONE, World
from trainer.model import power_average
from trainer.model.encoders.registry import VideoSpec
from trainer.model.stdit import STDiT3Config
from trainer.recipe import changes, data_spec
from trainer.recipe.recipe import TrainRecipe
from trainer.run_folder.checkpoint import checkpoint, whole
from trainer.training import resume
from trainer.training.guard import history, rollback_file
from trainer.training.guard.history import GuardState
from trainer.training.optim import adamw
from trainer.training.state import Origin
from vidcurate.errors import MissingError, RequestError, StateError, StorageError
from vidcurate.sampler import order
from vidcurate.sampler.order_state import LoaderState, StateComparison, check_state, compare_states, state_of
from vidcurate.sampler.plan import Plan
from vidcurate.sampler.plan_changes import change_log
from vidcurate.sampler.plan_changes.change_log import Change, Journal
from vidcurate.shards.index import Index, read_index
from vidcurate.shards.index_file import INDEX_NAME
from vidcurate.storage import atomic_file

JOURNAL = "journal"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPosition:
    """The stages with which a run continues; `change` is the change accepted now, if any."""

    stages: tuple[StageData, ...]
    verdict: StateComparison
    change: Change | None = None


def as_saved(stage: StageData, stage_step: int, clips_hash: str, delivered_hash: str) -> dict[str, Any]:
    """Return, as JSON values, the data position before the stage's update `stage_step`."""
    state = state_of(
        stage.index,
        stage.plan,
        data_stages.data_step(stage, stage_step),
        clips_hash,
        delivered_hash,
        journal=stage.journal,
        changes=tuple(change.to_text() for change in stage.changes),
    )
    fields: dict[str, Any] = json.loads(state.to_json())
    if stage.folder:
        fields["latents"] = stage.folder.manifest["weights"]
    return fields


def _state(saved: dict[str, Any]) -> LoaderState:
    return LoaderState.from_json(json.dumps({key: value for key, value in saved.items() if key != "latents"}))


def _index_folder(run: Path, structure: str, content: str) -> Path:
    return run / "index" / f"{structure[:16]}-{content[:16]}"


def keep_index(stage: StageData, run: Path) -> None:
    """Copy the stage's index into the run's folder, so that a later change can name the clips."""
    index = stage.index
    folder = _index_folder(run, index.structure_fingerprint, index.content_fingerprint)
    if (folder / INDEX_NAME).is_file():
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_file.atomic_path(folder / INDEX_NAME) as partial:
            shutil.copyfile(index.folder / INDEX_NAME, partial)
    except OSError as error:
        raise StorageError(f"{folder}: cannot be written ({error}).") from error


def _kept_index(run: Path, state: LoaderState, now: Index) -> Index | None:
    """Return the index a state was saved with; None if it equals the current one or was not kept."""
    then = (state.structure_fingerprint, state.content_fingerprint)
    folder = _index_folder(run, *then)
    if then == (now.structure_fingerprint, now.content_fingerprint) or not (folder / INDEX_NAME).is_file():
        return None
    return read_index(folder, check_files=False)


def saved_index(stage: StageData, saved: dict[str, Any], run: Path) -> Index:
    """Return the index a position was saved with, or the current one if it was not kept."""
    return _kept_index(run, _state(saved), stage.index) or stage.index


def verdict_of(stage: StageData, saved: dict[str, Any], run: Path) -> StateComparison:
    """Return how a stage's data and recipe differ from a position that `run` has saved."""
    state = _state(saved)
    return compare_states(
        state,
        stage.index,
        stage.plan,
        old_index=_kept_index(run, state, stage.index),
        replan=lambda old: data_stages.stage_plan(old, stage.stage.data, stage.plan.seed),
    )


def continue_data(
    stages: tuple[StageData, ...],
    number: int,
    saved: dict[str, Any],
    saved_recipe: dict[str, Any],
    encoder_spec: VideoSpec,
    model: STDiT3Config,
    *,
    run: Path,
    into: Path,
    accept: Collection[str] = (),
    world: World = ALONE,
) -> DataPosition:
    """Return the stages, with stage `number` continuing from a position that `run` has saved.

    The folder `into` receives the change log and the plans it names. All ranks call this together. Raises
    StateError if the position no longer means the same, unless `accept` has the flag of every difference; the
    message names the differences, the clips if the run has kept their index, and the flags. Clips and their
    latents count as the same data.
    """
    stage, state = stages[number], _state(saved)
    old_index = _kept_index(run, state, stage.index)
    verdict = check_state(
        state,
        stage.index,
        stage.plan,
        old_index=old_index,
        replan=lambda old: data_stages.stage_plan(old, stage.stage.data, stage.plan.seed),
        accept=accept,
    )
    _check_latents(stage, saved)

    def first_plan() -> Plan:
        spec = data_spec.from_saved(saved_recipe["stages"][number]["data"])
        return data_stages.stage_plan(stage.index if old_index is None else old_index, spec, stage.plan.seed)

    def write() -> str:
        """Write the whole change log into this run's folder and return its name."""
        changes: Journal = ()
        if state.journal:
            if into != run / JOURNAL:
                change_log.copy_change_log(run / JOURNAL, into, state.journal)
            changes = change_log.read_change_log(into, state.journal)
        if not verdict.findings:
            return state.journal
        return change_log.write_change_log(
            into,
            change_log.extend_change_log(
                into, changes, state, verdict, stage.index, stage.plan, old_index, first_plan
            ),
        )

    name = mesh.run_on_first_rank(write, world)
    if not name:
        return DataPosition(stages=stages, verdict=verdict)
    changes = change_log.read_change_log(into, name)
    plan = stage.plan
    if any(change.plan_file for change in changes):
        plan = change_log.replay_changes(into, changes, stage.index)
        plan = replace(plan, left_out=stage.plan.left_out, notes=stage.plan.notes)
        plan = replace(plan, costs=data_stages.costs(plan, stage.stage.data, encoder_spec, model))
    now = replace(stage, plan=plan, changes=changes, journal=name)
    return DataPosition(
        stages=_in_place(stages, now), verdict=verdict, change=changes[-1] if verdict.findings else None
    )


def _in_place(stages: tuple[StageData, ...], stage: StageData) -> tuple[StageData, ...]:
    """Return the stages with this one replaced; a length in epochs is recomputed from its clips."""
    spec = stage.stage
    num_steps = spec.steps or order.steps_for_epochs(stage.plan, spec.epochs or 0.0)
    replaced = [*stages[: stage.number], replace(stage, num_steps=num_steps), *stages[stage.number + 1 :]]
    first_step = 0
    for number, each in enumerate(replaced):
        replaced[number] = replace(each, first_step=first_step)
        first_step += each.num_steps
    return tuple(replaced)


def _check_latents(stage: StageData, saved: dict[str, Any]) -> None:
    now = stage.folder.manifest["weights"] if stage.folder else None
    if now and "latents" in saved:
        for name, digest in saved["latents"].items():
            if now.get(name) != digest:
                raise StateError(
                    f"{stage.stage.data.latents}: its latents were made with other weights of the {name} "
                    f"({str(now.get(name))[:12]}) than those that the run was saved with "
                    f"({str(digest)[:12]}); resume with the earlier latents."
                )


def preview_resume(
    stages: tuple[StageData, ...], recipe: TrainRecipe, origin: Origin, settings: Sequence[str]
) -> tuple[tuple[StageData, ...], dict[str, Any] | None]:
    """Return the stages as the run would resume them, and a report of the changes; write nothing.

    The report is None for a run that starts at step 0. If the resume would be refused, the stages are
    unchanged and the report's `error` has the reason. What --load and --ckpt-path name is read whole. Raises
    CheckpointError, and MissingError or InputError where they name no checkpoint or weights.
    """
    path, damaged = whole.likely_resume_point(recipe.output)
    is_itself = path is not None
    averages = power_average.PARTS if recipe.power_ema else ()

    def check_fits(saved: dict[str, Any], path: Path) -> None:
        resume.check_fits(saved, recipe.model, adamw.name_of(recipe.stages[0].optim), averages, path)

    if path is None and origin.load:
        path = checkpoint.find(origin.load)
        checkpoint.verify(path, (*checkpoint.PARTS, *averages))
        if origin.start_from_scratch:
            check_fits(checkpoint.read_state(path), path)
            return stages, None
    if path is None:
        if origin.ckpt_path:
            resume.read_weights(origin.ckpt_path, recipe.model)
        return stages, None
    saved = checkpoint.read_state(path)
    number, position = saved["stage_number"], saved["loader"]
    report: dict[str, Any] = {"checkpoint": str(path), "step": saved["step"], "changes": [], "error": None}
    report["damaged"] = [one.reason for one in damaged]
    try:
        if is_itself:
            resume.check_same_origin(path, saved, recipe.output, origin)
        check_fits(saved, path)
        resume.check_position(saved, path)
        changed = changes.changes(saved["recipe"], recipe)
        resume.check_changes(path, saved, changed, recipe.stages, settings, origin.accept)
        if number < len(stages):
            verdict = verdict_of(stages[number], position, path.parent)
            report["changes"] = [
                {**asdict(finding), "accepted": finding.flag in origin.accept} for finding in verdict.findings
            ]
            with tempfile.TemporaryDirectory() as into:
                stages = continue_data(
                    stages,
                    number,
                    position,
                    saved["recipe"],
                    recipe.video_encoder,
                    recipe.model,
                    run=path.parent,
                    into=Path(into),
                    accept=origin.accept,
                ).stages
    except MissingError:
        raise  # the exit code depends on whether the run has made steps
    except RequestError as error:
        report["error"] = str(error)
    guard = guard_of(saved, recipe.output if path.parent == recipe.output else None)
    return data_stages.with_skips(stages, guard.windows), report


def guard_of(saved: dict[str, Any], run: Path | None) -> GuardState:
    """Return a checkpoint's guard state, with later rollbacks of the run `run` that resumes from it."""
    state = history.from_json(saved.get("guard"))
    if run is not None:
        state.rollbacks = rollback_file.in_force(run, state.rollbacks)
    return state


def to_text(verdict: StateComparison, change: Change | None) -> list[str]:
    """Return the differences and their effect as text, one line each."""
    lines = [f"{finding.text} ({finding.flag or 'nothing accepts this'})" for finding in verdict.findings]
    if change and change.with_gaps:
        lines.append("fallback clips of the same cells replace the removed clips; the order is unchanged")
    elif change and change.plan_file:
        lines.append(
            "from here on every cell first shows each unseen clip, old or new, once, then continues in epochs"
        )
    return lines


def event(change: Change) -> dict[str, Any]:
    """Return a change's facts for events.jsonl."""
    return {
        "kinds": list(change.kinds),
        "counts": dict(change.counts),
        "clip_ids": {kind: list(clip_ids) for kind, clip_ids in change.clips.items()},
        "stage_step": change.step,
        "fallback_clips_take_the_places": change.with_gaps,
        "structure_fingerprint": change.structure_fingerprint,
        "content_fingerprint": change.content_fingerprint,
        "plan_fingerprint": change.plan_fingerprint,
    }
