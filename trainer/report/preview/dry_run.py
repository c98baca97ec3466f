"""Dry run: a recipe's steps, clips, memory and time before training (`--dry-run`).

The numbers come from the plan that the loader reads, not from an estimate.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from trainer.data import data_checks, open_stage
from trainer.data import stages as data_stages
from trainer.data.latents import request as latents_request
from trainer.distributed import memory
from trainer.distributed.memory import Form
from trainer.distributed.spec import ParallelSpec
from trainer.distributed.step_time import Work
from trainer.model.encoders.registry import text_encoder, video_encoder
from trainer.model.stdit import STDiT3, STDiT3Config
from trainer.recipe.encoding import Encoding
from trainer.recipe.recipe import TrainRecipe
from trainer.report.preview import choices
from trainer.run_folder import layout as run_folder_layout
from trainer.training import data_position, resume, validation
from trainer.training import log as training_log
from trainer.training.optim import adamw, schedule
from trainer.training.state import Origin
from vidcurate.errors import counted
from vidcurate.sampler import leave_out, order, plan_stats
from vidcurate.sampler.plan import Plan
from vidcurate.sampler.plan_stats import BucketTotal

FIRST_CLIPS = 8
NAMED_BUCKETS = 6  # number of empty buckets named in the text
# Bytes of a trained parameter in float32: weight, gradient, two moments, EMA.
TRAINED_BYTES, FROZEN_BYTES = 20, 8


HOST_RANKS = 8  # that share one copy of the state, if the recipe leaves the number to the hosts


def parameters(config: STDiT3Config) -> tuple[int, int]:
    """Return the number of trained and of frozen parameters of a model."""
    with torch.device("meta"):
        model = STDiT3(config)
    trained = sum(parameter.numel() for parameter in adamw.trained(model).values())
    return trained, sum(parameter.numel() for parameter in model.parameters()) - trained


def memory_of(
    stages: Sequence[data_stages.StageData], recipe: TrainRecipe, state: tuple[int, int]
) -> list[dict[str, Any]]:
    """Return each stage's predicted memory of one GPU; `state`: number of trained and frozen parameters.

    `largest_bytes` is that of the largest micro-batch, `least_bytes` what `parallel.recompute_blocks: fit`
    can reduce all to. An encoder's bytes are those of its weights, None if unknown. Once a stage's clips or a
    round of samples have loaded the encoders, they stay in memory.
    """
    needs, are_there = [], False
    form, encoding = memory.form_of(recipe.blocks, recipe.precision), recipe.encoding
    for stage in stages:
        end = stage.first_step + stage.num_steps
        are_there |= stage.folder is None or (recipe.sample is not None and recipe.sample.every < end)
        encoders = {
            "video_encoder_bytes": video_encoder(encoding.video).predicted_bytes() if are_there else 0,
            "text_encoder_bytes": text_encoder(encoding.text).predicted_bytes() if are_there else 0,
        }
        averages = len(recipe.power_ema or ())
        found = _model_memory(stage.plan, recipe.parallel, form, encoding, state, averages)
        needs.append(found | encoders)
    return needs


def needed_bytes(found: Mapping[str, Any]) -> int:
    """Return a stage's minimum predicted memory, without encoders of unknown size."""
    encoders = (found["video_encoder_bytes"] or 0) + (found["text_encoder_bytes"] or 0)
    return int(found["state_bytes"] + found["least_bytes"] + encoders)


def unknown_encoders(found: Mapping[str, Any]) -> str:
    """Return the encoders of unknown size as text; empty if there is none."""
    names = [name for name in ("video", "text") if found[f"{name}_encoder_bytes"] is None]
    return " and ".join(f"the {name} encoder ({name}_encoder.source cannot be read here)" for name in names)


def _model_memory(
    plan: Plan,
    spec: ParallelSpec,
    form: Form,
    encoding: Encoding,
    state: tuple[int, int],
    averages: int,
) -> dict[str, Any]:
    model, encoder = encoding.model, video_encoder(encoding.video)
    wanted = spec.recompute_blocks
    first = memory.KEEP_ALL if wanted == "fit" else memory.plan_of(model, wanted)
    works: dict[str, Work] = {}
    for cell in plan.cells:
        bucket = cell.bucket
        _, frames, rows, columns = encoder.latent_shape(bucket.num_frames, bucket.height, bucket.width)
        works[cell.name] = Work(
            clips=cell.micro_batch_size,
            frames=frames,
            places=-(-rows // model.patch_size[1]) * -(-columns // model.patch_size[2]),
            text_tokens=model.model_max_length,
        )
    ranks = spec.shard_size or HOST_RANKS
    peaks = {name: memory.peak_bytes(model, work, form, first) for name, work in works.items()}
    largest = max(peaks, key=peaks.__getitem__)
    least = max(memory.least_bytes(model, work, form) for work in works.values())
    return {
        "state_bytes": memory.state_bytes(
            *state, item_bytes=form.item_bytes, sharding=spec.form, ranks=ranks, power_averages=averages
        ),
        "ranks_that_share": 1 if spec.sharding == "none" else ranks,
        "largest_cell": largest,
        "largest_bytes": peaks[largest],
        "least_bytes": least if wanted == "fit" else peaks[largest],
        "lean_blocks": "fit" if wanted == "fit" and form.fast else 0,
        "recompute_blocks": "fit" if wanted == "fit" else first.recompute_blocks,
    }


def _stage(stage: data_stages.StageData, encoding: Encoding, needs: dict[str, Any]) -> dict[str, Any]:
    first = data_stages.step_plan(stage, 0, encoding.video, encoding.model.patch_size)
    counts = open_stage.micro_batches(stage)
    end = data_stages.data_step(stage, stage.num_steps)
    exposures = order.exposures(stage.plan, end, data_stages.unread(stage, end))
    cells: list[dict[str, Any]] = [
        {
            "name": cell.name,
            "clips": len(cell.rows),
            "clips_per_micro_batch": cell.micro_batch_size,
            "micro_batches": count,
            "epochs": count * cell.micro_batch_size / len(cell.rows),
            "exposures": exposure,
        }
        for cell, count, exposure in zip(stage.plan.cells, counts, exposures, strict=True)
    ]
    trained = sum(cell["micro_batches"] * cell["clips_per_micro_batch"] for cell in cells)
    return {
        "name": stage.stage.name,
        "shards": str(stage.stage.data.latents or stage.stage.data.shards),
        "views": stage.stage.data.views,
        "structure_fingerprint": stage.index.structure_fingerprint,
        "plan_fingerprint": stage.plan.fingerprint,
        "first_step": stage.first_step,
        "steps": stage.num_steps,
        "skip": [list(window) for window in stage.skip],
        **choices.of_stage(stage),
        "micro_batches_per_step": stage.plan.micro_batches_per_step,
        **data_stages.summary(stage),
        "shape_notes": data_checks.losses_of_shape(stage.plan, video_encoder(encoding.video), encoding.model),
        "latents": _latents(stage, encoding),
        "memory": needs,
        "compute_seconds_per_step": _compute_seconds(stage, counts),
        "clips_read": trained,
        "epochs": trained / stage.plan.num_clips,
        "steps_per_epoch": plan_stats.steps_per_epoch(stage.plan),
        "buckets": [asdict(total) for total in _buckets(stage, counts, end)],
        "empty_buckets": list(plan_stats.empty_buckets(stage.plan, stage.stage.data.buckets)),
        "tokens_of_first_step": first.num_tokens,
        "lr_first": schedule.learning_rate(stage.stage.optim, 0, stage.num_steps),
        "lr_last": schedule.learning_rate(stage.stage.optim, stage.num_steps - 1, stage.num_steps),
        "cells": cells,
        "first_clip_ids": list(first.clip_ids[:FIRST_CLIPS]),
    }


def _compute_seconds(stage: data_stages.StageData, counts: Sequence[int]) -> float | None:
    """Return one GPU's seconds for the micro-batches of a mean step, by the recipe's cost table."""
    plan = order.at_step(stage.plan, data_stages.data_step(stage, stage.num_steps))
    unit, scale = data_stages.cost_unit(stage, plan)
    if unit != "s" or plan.costs is None:
        return None
    return scale * sum(count * cost for count, cost in zip(counts, plan.costs, strict=True)) / stage.num_steps


def _buckets(stage: data_stages.StageData, counts: Sequence[int], end: int) -> list[BucketTotal]:
    """Return the buckets' totals over the micro-batches that are read: `counts`, per cell."""
    read: Counter[str] = Counter()
    clips: Counter[str] = Counter()
    for cell, count in zip(order.at_step(stage.plan, end).cells, counts, strict=True):
        read[cell.bucket.name] += count
        clips[cell.bucket.name] += count * cell.micro_batch_size
    return [
        replace(total, micro_batches=read[total.name], clips_read=clips[total.name])
        for total in plan_stats.bucket_totals(stage.plan, end)
    ]


def _latents(stage: data_stages.StageData, encoding: Encoding) -> dict[str, Any]:
    """Return the size of a stage's latents and the missing ones; for clips, the size they would have."""
    spec = stage.stage.data
    if stage.folder is None:
        return {"forecast_bytes": latents_request.forecast(encoding, stage.plan, spec)}
    return {
        "bytes": latents_request.bytes_on_disk(stage.folder, stage.plan, spec),
        "missing_clips": sum(part.num_clips for part in stage.missing),
        "missing": [part.to_json() for part in stage.missing],
    }


def _validation(rounds: Sequence[validation.Round]) -> dict[str, dict[str, int]]:
    """Return stage → bucket → clips that a round of validation reads."""
    return {part.data.stage.name: dict(sorted(Counter(part.buckets).items())) for part in rounds}


def dry_run(
    recipe: TrainRecipe, origin: Origin | None = None, settings: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the plan of a run as JSON values. Reads the indexes; writes and trains nothing.

    If the run would resume from a checkpoint, `resume` says whether it can, and what has changed. Clips
    without latents are counted. Raises InputError where `output` is a file, and what `open_stages` raises.
    """
    resume.check_origin(origin or Origin())
    run_folder_layout.check_output(recipe.output)
    stages = data_stages.open_stages(recipe, complete=False)
    stages, continuing = data_position.preview_resume(stages, recipe, origin or Origin(), settings)
    trained, frozen = parameters(recipe.model)
    needs = memory_of(stages, recipe, (trained, frozen))
    encoding, averages = recipe.encoding, 4 * len(recipe.power_ema or ())
    return {
        "name": recipe.name,
        "output": str(recipe.output),
        "resume": continuing,
        **choices.of_run(recipe),
        "parameters": trained + frozen,
        "trained_parameters": trained,
        "weights_and_optimizer_bytes": trained * (TRAINED_BYTES + averages) + frozen * FROZEN_BYTES,
        "steps": stages[-1].first_step + stages[-1].num_steps,
        "stages": [_stage(stage, encoding, found) for stage, found in zip(stages, needs, strict=True)],
        "validation": _validation(
            validation.plan_rounds(recipe.validation, stages, recipe.seed, complete=False)
        ),
    }


def _latents_as_text(latents: dict[str, Any]) -> str:
    if forecast := latents.get("forecast_bytes"):
        return (
            f"  precomputed, one view a clip unless views says more: {forecast['latents'] / 1e9:.3g} GB of "
            f"latents, at most {forecast['texts_at_most'] / 1e9:.3g} GB of text features"
        )
    size = latents["bytes"]
    words = f"  latents {size['latents'] / 1e9:.3g} GB, text features {size['texts'] / 1e9:.3g} GB"
    for part in latents["missing"]:
        some = ", ".join(part["clip_ids"])
        words += f"\n  missing in {part['cell']}: {part['clips']:,} clips ({some}, …); encode them first"
    return words


def _memory_as_text(found: dict[str, Any]) -> str:
    shared = f", shared by {found['ranks_that_share']} ranks" if found["ranks_that_share"] > 1 else ""
    count = found["recompute_blocks"]
    again = f" with {count} blocks recomputed" if count else ""
    if count == "fit":
        how = "recomputed" if found["lean_blocks"] == 0 else "lean or recomputed"
        again = f", down to {found['least_bytes'] / 1e9:.3g} GB clip by clip, with blocks {how}"
    encoders = (found["video_encoder_bytes"] or 0) + (found["text_encoder_bytes"] or 0)
    known = f"{encoders / 1e9:.3g} GB of the encoders' weights, " if encoders else ""
    unknown = unknown_encoders(found)
    return (
        f"  memory of a GPU: {found['state_bytes'] / 1e9:.3g} GB of weights and training state{shared}, "
        f"{known}{found['largest_bytes'] / 1e9:.3g} GB of a micro-batch of {found['largest_cell']}{again}"
        f"{f'; not counted: {unknown}' if unknown else ''}"
    )


def _continuing_as_text(continuing: dict[str, Any]) -> list[str]:
    can = "refused" if continuing["error"] else "resumes"
    lines = [f"{can} from {continuing['checkpoint']}, step {continuing['step']:,}"]
    lines += [f"  damaged, will be set aside: {reason}" for reason in continuing["damaged"]]
    for change in continuing["changes"]:
        accepted = "accepted" if change["accepted"] else "not accepted"
        flag = f"{accepted}: {change['flag']}" if change["flag"] else "nothing accepts this"
        lines.append(f"  {change['text']} ({flag})")
    return lines


def _clips(number: int) -> str:
    return f"{number:>9,} clip{' ' if number == 1 else 's'}"


def to_text(report: dict[str, Any]) -> str:
    """Return the report as text."""
    lines = [
        f"{report['name']} → {report['output']}: {counted(report['steps'], 'step')}, stages: "
        f"{', '.join(stage['name'] for stage in report['stages'])}",
        f"model: {report['parameters']:,} parameters, {report['trained_parameters']:,} trained; with "
        f"gradients, optimizer and average {report['weights_and_optimizer_bytes'] / 1e9:.3g} GB",
        *choices.run_lines(report),
    ]
    if continuing := report["resume"]:
        lines += _continuing_as_text(continuing)
    for stage in report["stages"]:
        lines.append("")
        lines.append(
            f"{stage['name']}: {counted(stage['steps'], 'step')} of "
            f"{counted(stage['micro_batches_per_step'], 'micro-batch', 'es')}, "
            f"{stage['epochs']:.2f} epochs of {counted(stage['clips'], 'clip')} of {stage['shards']}, "
            f"lr {stage['lr_first']:.3g} → {stage['lr_last']:.3g}; one epoch is "
            f"{counted(stage['steps_per_epoch'], 'step')}"
        )
        if seconds := stage["compute_seconds_per_step"]:
            lines.append(
                f"  by the cost table a step's micro-batches take {seconds:.3g} s of one GPU, the stage's "
                f"{seconds * stage['steps'] / 3600:.3g} h"
            )
        if len(stage["phases"]) > 1:
            first = ", ".join(f"{step:,}" for step in stage["phases"])
            lines.append(f"  the phases of its curriculum begin with the steps {first}")
        for note in stage["notes"]:
            if note["event"] in (leave_out.UNMATCHED, "phase_skipped"):
                lines.append(f"  note: {training_log.note_as_text(note)}")
        lines += choices.stage_lines(stage)
        if stage["skip"]:
            windows = ", ".join(f"{first:,} to {last:,}" for first, last in stage["skip"])
            lines.append(f"  not read: the data steps {windows}")
        for cell in stage["cells"]:
            least, most = cell["exposures"]
            lines.append(
                f"  {cell['name']:<32} {_clips(cell['clips'])}  {cell['micro_batches']:>9,} micro-batches "
                f"of {cell['clips_per_micro_batch']}, {cell['epochs']:.2f} epochs, each clip shown "
                f"{least:,}{f' to {most:,}' if most > least else ''} times"
            )
        if len(stage["buckets"]) < len(stage["cells"]):
            for bucket in stage["buckets"]:
                read = f"{bucket['micro_batches']:>9,} micro-batches, {counted(bucket['clips_read'], 'clip')}"
                lines.append(f"  all of {bucket['name']:<25} {_clips(bucket['clips'])}  {read} read")
        if empty := stage["empty_buckets"]:
            more = f", … {len(empty) - NAMED_BUCKETS} more" if len(empty) > NAMED_BUCKETS else ""
            named = ", ".join(empty[:NAMED_BUCKETS])
            lines.append(f"  no clip in {counted(len(empty), 'bucket')}: {named}{more}")
        lines += [f"  note: {note}" for note in stage["shape_notes"]]
        lines.append(_memory_as_text(stage["memory"]))
        lines.append(_latents_as_text(stage["latents"]))
        for reason, count in stage["clips_left_out"].items():
            lines.append(f"  {f'({reason})':<32} {_clips(count)}  in no bucket")
        if buckets := report["validation"].get(stage["name"]):
            counts = ", ".join(f"{count} of {name}" for name, count in buckets.items())
            lines.append(f"  a round of validation: {counted(sum(buckets.values()), 'clip')} ({counts})")
        lines.append(f"  first clips: {', '.join(stage['first_clip_ids'])}")
    return "\n".join(lines)
