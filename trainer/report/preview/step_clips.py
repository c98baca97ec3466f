"""Clips of a step with their losses, a clip's showings, clips by loss.

Which clips a step read follows from the recipe and the order. Losses per clip are recorded in the steps that
`stages.N.clip_losses_every` names; of other steps metrics.jsonl has the mean by bucket and level, which is a
clip's own loss where the clip was alone in its group.
"""

import heapq
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainer.report.preview import plan as preview_plan
from trainer.report.preview.stages import RunStages, at
from trainer.run_folder import clip_losses, jsonl, metrics
from vidcurate.errors import InputError

USUAL_STEPS = 50  # before a step, for the usual loss of its buckets


def _line(run: Path, step: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the metrics of a step and those of the steps before it. Raises InputError."""
    lines = metrics.read_metrics(run / metrics.METRICS)
    found = next((line for line in lines if line["step"] == step), None)
    if found is None:
        last = lines[-1]["step"] if lines else 0
        raise InputError(
            f"--step {step}: {run / metrics.METRICS} has the steps up to {last}, and not this one."
        )
    return found, [line for line in lines if step - USUAL_STEPS <= line["step"] < step]


def _usual(before: list[dict[str, Any]], bucket: str) -> float | None:
    losses = [line["loss_by_bucket"][bucket] for line in before if bucket in line["loss_by_bucket"]]
    return statistics.median(map(float, losses)) if losses else None


def _findings(run: Path, step: int) -> list[dict[str, Any]]:
    names = ("event", "step", "action", "finding", "reason", "clip_ids", "clip_id", "fallback", "kind")
    return [
        {name: event[name] for name in names if name in event}
        for event in metrics.read_metrics(run / jsonl.EVENTS)
        if event.get("step") == step and event["event"] in ("guard", "clip_substituted")
    ]


def _recorded(run: Path, step: int) -> dict[str, list[dict[str, Any]]]:
    """Return clip_id → its recorded losses in the step; {} for a step without a line."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in clip_losses.read(run):
        if line["step"] == step:
            for clip in clip_losses.by_clip(line):
                found.setdefault(clip["clip_id"], []).append(clip)
    return found


def _alone(
    line: Mapping[str, Any], clip: Mapping[str, Any], groups: Mapping[str, Counter[str]]
) -> float | None:
    """Return the clip's loss if the clip was alone in its bucket or level, else None."""
    for group, name in (("loss_by_bucket", clip["bucket"]), ("loss_by_level", clip["level"])):
        if groups[group][name] == 1 and name in line[group]:
            return float(line[group][name])
    return None


def clips_of_step(found: RunStages, run: Path, step: int) -> dict[str, Any]:
    """Return the micro-batches and clips of update `step` (from 1), with losses as far as the run has them.

    {step, stage, loss, grad_norm, skipped, findings (guard and fallback events), buckets: {bucket,
    loss, usual (median of the 50 steps before), ratio}, clips: {clip_id, position, cell, bucket, level, loss,
    timestep, is_named (by the guard), caption}}, the clips with the highest loss first, those without a known
    loss in the order of their micro-batches. Raises InputError for a step that the run has not made.
    """
    line, before = _line(run, step)
    stage, _ = at(found, step)
    parts = list(preview_plan.micro_batches(found, step, step))
    findings = _findings(run, step)
    named = {clip_id for event in findings for clip_id in event.get("clip_ids", ())}
    level = dict(zip(stage.index.words("clip_id").to_pylist(), stage.index.level.tolist(), strict=True))
    recorded = _recorded(run, step)
    clips = [
        {
            "clip_id": clip["clip_id"],
            "position": part["position"],
            "cell": part["cell"],
            "bucket": part["bucket"],
            "level": str(level.get(clip["clip_id"], "")),
            "is_named": clip["clip_id"] in named,
            "caption": clip["caption"],
        }
        for part in parts
        for clip in part["clips"]
    ]
    groups = {
        "loss_by_bucket": Counter(clip["bucket"] for clip in clips),
        "loss_by_level": Counter(clip["level"] for clip in clips),
    }
    for clip in clips:
        own = recorded.get(clip["clip_id"])
        known = own.pop(0) if own else None
        clip["loss"] = known["loss"] if known else _alone(line, clip, groups)
        clip["timestep"] = known["timestep"] if known else None
    clips.sort(key=lambda clip: -clip["loss"] if clip["loss"] is not None else float("inf"))
    buckets = []
    for bucket, loss in line["loss_by_bucket"].items():
        usual = _usual(before, bucket)
        ratio = round(float(loss) / usual, 4) if usual else None
        buckets.append({"bucket": bucket, "loss": loss, "usual": usual, "ratio": ratio})
    return {
        "step": step,
        "stage": line["stage"],
        "loss": line["loss"],
        "grad_norm": line["grad_norm"],
        "skipped": bool(line.get("skipped")),
        "findings": findings,
        "buckets": buckets,
        "clips": clips,
    }


def showings(found: RunStages, run: Path, clip_id: str) -> list[dict[str, Any]]:
    """Return where the run has shown a clip, with its recorded losses.

    {step, stage, cell, loss, timestep}; loss and timestep are None in a step that was not recorded. Raises
    InputError for a clip that no stage has.
    """
    shown = preview_plan.showings(found, clip_id, found.done) if found.done else []
    recorded: dict[int, list[dict[str, Any]]] = {}
    for line in clip_losses.read(run):
        if clip_id in line["clip_ids"]:
            recorded[line["step"]] = [
                clip for clip in clip_losses.by_clip(line) if clip["clip_id"] == clip_id
            ]
    rows = []
    for one in shown:
        own = recorded.get(one["step"])
        known = own.pop(0) if own else {"loss": None, "timestep": None}
        rows.append({name: one[name] for name in ("step", "stage", "cell")} | _figures(known))
    return rows


def _figures(clip: Mapping[str, Any]) -> dict[str, Any]:
    return {"loss": clip["loss"], "timestep": clip["timestep"]}


def _every_clip(run: Path) -> Iterator[dict[str, Any]]:
    for line in clip_losses.read(run):
        for clip in clip_losses.by_clip(line):
            yield {"step": line["step"], **clip}


def by_loss(run: Path, count: int) -> list[dict[str, Any]]:
    """Return, per level and timestep bin, the clips with the highest and the lowest recorded loss.

    {level, bin, clips (recorded), highest, lowest}, sorted; both lists have up to `count` of {clip_id, step,
    loss, timestep}, a clip once, with its highest or lowest loss. Losses that are not finite come first.
    Raises InputError for a run that records no losses of clips.
    """
    groups: dict[tuple[str, str], tuple[Counter[str], dict[str, Any], dict[str, Any]]] = {}
    for clip in _every_clip(run):
        seen, most, least = groups.setdefault((clip["level"], clip["bin"]), (Counter(), {}, {}))
        name = clip["clip_id"]
        seen[name] += 1
        if name not in most or _rank(clip) > _rank(most[name]):
            most[name] = clip
        if name not in least or _rank(clip) < _rank(least[name]):
            least[name] = clip
    if not groups:
        raise InputError(
            f"{run}: records no losses of clips. Resume the run with --set stages.0.clip_losses_every=1."
        )
    names = ("clip_id", "step", "loss", "timestep")
    rows = []
    for (level, place), (seen, most, least) in sorted(groups.items(), key=lambda item: _order(item[0])):
        high = heapq.nlargest(count, most.values(), key=_rank)
        low = heapq.nsmallest(count, least.values(), key=_rank)
        rows.append(
            {
                "level": level,
                "bin": place,
                "clips": seen.total(),
                "highest": [{name: clip[name] for name in names} for clip in high],
                "lowest": [{name: clip[name] for name in names} for clip in low],
            }
        )
    return rows


def _rank(clip: Mapping[str, Any]) -> tuple[bool, float]:
    """Return the order by loss: a loss that is no number is above all."""
    loss = clip["loss"]
    return (True, 0.0) if loss != loss else (False, loss)


def _order(group: tuple[str, str]) -> tuple[int, str, int]:
    level, place = group
    return len(level), level, int(place.partition("-")[0])
