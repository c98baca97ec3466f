"""List what a run computes with, for `--dry-run`: precision, optimizer, routing."""

import math
from collections.abc import Mapping
from typing import Any

from trainer.data import stages as data_stages
from trainer.model.encoders.registry import loss_of_sample
from trainer.recipe.recipe import TrainRecipe


def of_run(recipe: TrainRecipe) -> dict[str, Any]:
    """Return what holds for all stages, as JSON values; `sample_note` says what a sample loses."""
    sample, video = recipe.sample, recipe.video_encoder
    return {
        "precision": recipe.precision,
        "blocks": recipe.blocks,
        "ema_decay": recipe.ema_decay,
        "power_ema": None if recipe.power_ema is None else list(recipe.power_ema),
        "sample_note": sample and loss_of_sample(video, sample.height, sample.width),
    }


def of_stage(stage: data_stages.StageData) -> dict[str, Any]:
    """Return what holds for a stage, as JSON values; `dense_from` is the first step that routes nothing."""
    routing, spec = stage.stage.routing, stage.stage.data
    dense_from = routing and math.ceil(stage.num_steps * (1 - routing.dense_finish)) + 1
    return {
        "muon": stage.stage.optim.muon,
        "routing": routing and routing.model_dump(mode="json") | {"dense_from": dense_from},
        "captions": dict(spec.captions) if isinstance(spec.captions, dict) else list(spec.captions),
        "captions_from": {str(step): dict(spec.captions_from[step]) for step in sorted(spec.captions_from)},
    }


def run_lines(report: Mapping[str, Any]) -> list[str]:
    """Return the lines about precision, averages and the pixels that a sample loses."""
    widths = report["power_ema"]
    more = f", and power_ema's {' and '.join(f'{width:g}' for width in widths)}" if widths else ""
    lines = [
        f"computes in {report['precision']} with {report['blocks']} blocks; averages of the weights: "
        f"ema_decay {report['ema_decay']:g}{more}"
    ]
    return [*lines, f"note: {report['sample_note']}"] if report["sample_note"] else lines


def stage_lines(stage: Mapping[str, Any]) -> list[str]:
    """Return the lines about a stage's optimizer, routing and captions, where they are not the usual ones."""
    lines = []
    if stage["muon"] is not None:
        lines.append(
            f"  optimizer: Muon for the matrices of blocks, at {stage['muon']:g} × lr; AdamW for the rest"
        )
    if routing := stage["routing"]:
        first, last = routing["pairs"]
        finish = f"dense from step {routing['dense_from']:,} on"
        if routing["dense_from"] > stage["steps"]:
            finish = "never dense"
        lines.append(
            f"  routing: {routing['share']:.0%} of a clip's tubes skip the pairs {first} to {last} of blocks"
            f"; {finish}"
        )
    if stage["captions_from"]:
        changes = []
        for step, weights in stage["captions_from"].items():
            end = stage["steps"] + sum(last - first + 1 for first, last in stage["skip"])
            beyond = " (beyond the stage's last)" if int(step) > end else ""
            changes.append(f"from data step {int(step):,}{beyond} {_weights(weights)}")
        lines.append(f"  captions: {_weights(stage['captions'])}; {'; '.join(changes)}")
    return lines


def _weights(weights: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
