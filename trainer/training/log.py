"""Training log: console lines of rank 0 and events in RUN/events.jsonl."""

import importlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainer.data import stages as data_stages
from trainer.data.stages import StageData
from trainer.distributed import memory, mesh
from trainer.distributed import rank as distributed_rank
from trainer.distributed.mesh import World
from trainer.recipe import recipe as recipes
from trainer.run_folder import clip_losses, jsonl, metrics, pointer, process_table
from trainer.run_folder import layout as run_folder_layout
from trainer.run_folder.checkpoint import retention
from trainer.run_folder.checkpoint.async_save import Saved
from trainer.training import data_position
from trainer.training.data_position import DataPosition
from trainer.training.micro_batch import StepContext
from trainer.training.optim import schedule
from trainer.training.state import StartReport, TrainState
from trainer.training.step import Computed
from vidcurate.errors import counted
from vidcurate.sampler import leave_out
from vidcurate.storage import atomic_file

NEXT_CLIPS = 8
_printed_clips: set[tuple[Path, str]] = set()  # run and clip id of the replaced clips that have a line


def print_line(world: World, text: str) -> None:
    if world.is_first:
        print(text, file=sys.stderr, flush=True)


def terminal_width() -> int:
    """Return the columns of the terminal that `print_line` writes to; 0 where it is none."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        return 0


def record_start(
    start_report: StartReport, state: TrainState, context: StepContext, stages: tuple[StageData, ...]
) -> None:
    """Print and record how the run starts: what was loaded, its checksums and the next clips."""
    run, world = context.recipe.output, context.world
    stage = stages[state.stage]
    is_over = state.stage_step >= stage.num_steps
    proof = dict(start_report.proof)
    proof["lr_after"] = (
        None if is_over else schedule.learning_rate(stage.stage.optim, state.stage_step, stage.num_steps)
    )
    proof["structure_fingerprint"] = stage.index.structure_fingerprint
    proof["next_clip_ids"] = []
    if not is_over:
        encoder_spec, patch = context.recipe.video_encoder, context.recipe.model.patch_size
        plan = data_stages.step_plan(stage, state.stage_step, encoder_spec, patch)
        proof["next_clip_ids"] = list(plan.clip_ids[:NEXT_CLIPS])
    proof["changed"] = {key: list(values) for key, values in start_report.changed.items()}
    if world.is_first:
        retention.clean_partial(run)
        proof["process_began"] = round(distributed_rank.process_start_time(), 3)
        damaged = metrics.set_aside_damaged_lines(run)
        for name, numbers in damaged.items():
            print_line(
                world, f"{name}: {counted(len(numbers), 'damaged line')}, kept in {metrics.DAMAGED_LINES}."
            )
            facts = {"file": name, "lines": numbers[:20], "kept_as": metrics.DAMAGED_LINES}
            jsonl.record_event(run, "lines_damaged", state.step, **facts)
        proof["repeated_steps"] = metrics.forget_after(run, state.step)
        clip_losses.forget_after(run, state.step)
        jsonl.record_event(
            run, start_report.kind, state.step, stage=stage.stage.name, world_size=world.size, **proof
        )
        text = json.dumps(recipes.to_json(context.recipe), indent=1) + "\n"
        atomic_file.write_text(run / "recipe.json", text)
    if start_report.kind == "start":
        return
    print_line(
        world, f"{start_report.kind}: {start_report.path}, step {state.step}, stage {stage.stage.name}"
    )
    for text in start_as_text(proof, world.size):
        print_line(world, f"  {text}")


def start_as_text(proof: Mapping[str, Any], num_ranks: int) -> list[str]:
    """Return what a start has loaded, as console lines; events.jsonl has every checksum."""
    lines = []
    if proof.get("checksums_match_the_manifest"):
        lines.append(
            f"{', '.join(proof['checksums'])} have the checksums that they were saved with; "
            f"{proof['optimizer_updates']:,} optimizer updates, {proof['ema_updates']:,} of the EMA"
        )
    if proof.get("saved_on_ranks", num_ranks) != num_ranks:
        lines.append(f"saved on {counted(proof['saved_on_ranks'], 'rank')}, resumed on {num_ranks}")
    if proof.get("lr_before") is not None and proof.get("lr_after") is not None:
        lines.append(f"learning rate {proof['lr_before']:.3g}, then {proof['lr_after']:.3g}")
    if proof.get("repeated_steps"):
        lines.append(f"made again: {counted(proof['repeated_steps'], 'step')} after the checkpoint")
    lines += [f"{key}: {before} → {after}" for key, (before, after) in proof["changed"].items()]
    if proof["next_clip_ids"]:
        lines.append(f"next clips: {', '.join(proof['next_clip_ids'])}")
    if proof.get("stray_files"):
        lines.append(f"ignored files: {', '.join(proof['stray_files'])}")
    return lines


def note_as_text(note: Mapping[str, Any]) -> str:
    """Return a note on a stage's cells as a console line."""
    match note:
        case {"event": "small_cell", "cell": cell, "clips": clips, "micro_batch_size": size}:
            asked = note["micro_batch_size_asked"]
            return f"{cell} has {counted(clips, 'clip')}, so its micro-batches have {size} instead of {asked}"
        case {"event": "merged_cell", "cell": cell, "clips": clips, "into": into}:
            return f"{cell} has too few clips for a micro-batch ({clips:,}); they are trained in {into}"
        case {"event": "phase_skipped", "phase": phase, "data_steps": [first, last]}:
            return f"{phase} is not read: all of its data steps, {first:,} to {last:,}, are skipped"
        case {"event": leave_out.UNMATCHED, "file": file, "listed": listed}:
            return f"{file} (data.leave_out) lists {counted(listed, 'clip')}, none of them in these shards"
    return facts_as_text(note)


def facts_as_text(event: Mapping[str, Any]) -> str:
    """Return an event's facts as text: kind (key value, …), without empty ones."""
    facts = [
        f"{key.replace('_', ' ')} {value}"
        for key, value in event.items()
        if key not in ("event", "stack") and value not in (None, "", [], {})
    ]
    kind = str(event["event"]).replace("_", " ")
    return f"{kind} ({', '.join(facts)})" if facts else kind


def record_damaged(path: Path, reason: str, kept_as: Path | None, resumed_from: Path, world: World) -> None:
    """Print and record a damaged checkpoint or LATEST, set aside; `kept_as`: None if it was missing."""
    kept = f"Kept as {kept_as.name}; resuming" if kept_as else "Resuming"
    print_line(world, f"{path.name} is damaged ({reason}) {kept} from {resumed_from.name}.")
    if world.is_first:
        facts = {"path": path.name, "kept_as": kept_as and kept_as.name, "resumed_from": resumed_from.name}
        is_latest = path.name == pointer.LATEST
        step = run_folder_layout.step_of(resumed_from if is_latest else path)
        kind = "latest_damaged" if is_latest else "checkpoint_damaged"
        jsonl.record_event(path.parent, kind, step, **facts, reason=reason)


def record_data_change(continued: DataPosition, state: TrainState, context: StepContext) -> None:
    """Print and record an accepted change of the data; keep the index that the run continues with."""
    run = context.recipe.output
    if context.world.is_first:
        data_position.keep_index(continued.stages[state.stage], run)
    if continued.change is None:
        return
    for text in data_position.to_text(continued.verdict, continued.change):
        print_line(context.world, f"  data changed: {text}")
    if context.world.is_first:
        jsonl.record_event(run, "data_changed", state.step, **data_position.event(continued.change))


def record_clip_losses(context: StepContext, stage: StageData, step: int, computed: Computed) -> None:
    """Append the losses of the step's clips to clip_losses.jsonl, in the steps that the recipe names.

    A clip that a fallback clip replaced has the fallback's name.
    """
    every = stage.stage.clip_losses_every
    if not context.world.is_first or every is None or step % every:
        return
    clip_losses.append(
        context.recipe.output,
        step,
        stage.stage.name,
        clip_ids=computed.delivered,
        buckets=computed.plan.buckets,
        levels=computed.plan.levels,
        losses=computed.losses.tolist(),
        timesteps=computed.timesteps.tolist(),
    )


def record_save(saved: Saved | None, context: StepContext) -> None:
    if saved is not None and context.world.is_first:
        facts = {"path": saved.path.name, "seconds": round(saved.seconds, 3), "deleted": saved.deleted}
        facts["stall_seconds"] = round(saved.stall_seconds, 3)
        jsonl.record_event(context.recipe.output, "save", saved.step, **facts)


def record_recomputation(context: StepContext, step: int) -> None:
    """Record what the `fit` mode recomputes for each new micro-batch shape, and the predicted memory."""
    recipe = context.recipe
    for work, plan in context.layout.recompute.new_plans():
        if recipe.parallel.recompute_blocks != "fit" or not context.world.is_first:
            continue
        peak = memory.peak_bytes(recipe.model, work, memory.form_of(recipe.blocks, recipe.precision), plan)
        facts = asdict(work) | asdict(plan) | {"predicted_gib": round(peak / 2**30, 2)}
        jsonl.record_event(recipe.output, "room", step, **facts)


def record_kernels(context: StepContext, step: int) -> None:
    """Record the kernels that attention uses for lengths that are new in this step.

    If attention cannot use an installed kernel, each host's first GPU also prints the reason: a broken
    installation slows every step without any other sign.
    """
    if context.recipe.blocks != "fast":
        return
    attention = importlib.import_module(
        "trainer.model.kernels.attention"
    )  # only machines with a GPU have Triton
    choices = attention.news()
    if context.world.is_first:
        for found in choices:
            jsonl.record_event(context.recipe.output, "attention_kernel", step, **found.facts())
    for name, why in attention.first_refusals(choices).items():
        if not context.world.device.index:
            text = f"attention cannot use {name}, which is installed: {why}"
            print(f"step {step}: {process_table.host_name()}: {text}", file=sys.stderr, flush=True)


def to_text(event: dict[str, Any]) -> str:
    """Return a loader event as one console line; events.jsonl has all of its fields."""
    if event["event"] == "clip_substituted":
        text = f"clip {event['clip_id']} cannot be read ({event['kind']}); "
        return f"{text}fallback clip {event['fallback']} replaces it"
    return facts_as_text(event)


def record_data_events(events: list[dict[str, Any]], step: int, world: World, run: Path) -> None:
    """Record the loader events of all ranks in a step, such as a replaced clip or a restarted worker.

    events.jsonl has every showing of a clip that cannot be read, the console only the first of this process:
    a damaged clip comes back in every epoch.
    """
    for rank, theirs in enumerate(mesh.all_gather(list(events), world)):
        for event in theirs:
            if world.is_first:
                facts = {key: value for key, value in event.items() if key not in ("event", "step")}
                jsonl.record_event(run, event["event"], step, rank=rank, **facts)
            clip = (run, event["clip_id"]) if event["event"] == "clip_substituted" else None
            if clip not in _printed_clips:
                print_line(world, f"step {step}: {to_text(event)}")
            if clip is not None:
                _printed_clips.add(clip)
    events.clear()
