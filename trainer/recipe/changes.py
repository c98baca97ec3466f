"""Recipe changes that a resumed run accepts, and those that it refuses.

Free changes alter no number. Any other change is refused by name, unless the command confirms it.
"""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from trainer.recipe import skip_windows
from trainer.recipe.recipe import Stage, to_json
from vidcurate.recipe import removed_keys
from vidcurate.recipe.recipe import Recipe
from vidcurate.sampler.order_state import FLAGS
from vidcurate.sampler.spec import PlanSpec


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """Return nested settings as {dotted key: value}; an empty list or mapping is a value."""
    if isinstance(value, dict) and value:
        return {key: leaf for k, v in value.items() for key, leaf in flat(v, f"{name}.{k}").items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return {key: leaf for k, v in enumerate(value) for key, leaf in flat(v, f"{name}.{k}").items()}
    return {name.removeprefix("."): value}


# Stage settings that change numbers but not the order: accepted if this command's `--set` names them.
TAKEN_BY_SET = r"(optim\..*|data\.(crop|flip))$"

# Settings that may change at any resume, because they change no number.
FREE = re.compile(
    r"^(name|output|blocks|loader\..*|parallel\..*"
    r"|(sample|validation|trackers|guard|preflight|watch|environment)(\..*)?"
    r"|stages\.\d+\.(checkpoint_every|checkpoint_in_background|keep_last|keep_every|log_every"
    r"|clip_losses_every)"
    r"|stages\.\d+\.data\.(shards|latents))$"
)


def changes(saved: dict[str, Any], now: Recipe) -> dict[str, tuple[Any, Any]]:
    """Return {dotted key: (value in a saved recipe, value now)} of all settings that differ.

    A setting unknown to the saved recipe had its default. A removed setting is ignored if it changed no
    number or had its default; any other saved setting that no longer exists differs.
    """
    saved = removed_keys.upgrade(saved, type(now))
    with suppress(ValidationError):  # compared as saved if it holds a removed setting
        saved = to_json(type(now).model_validate_json(json.dumps(saved)))
    before, after = flat(saved), flat(to_json(now))
    keys = [*before, *(key for key in after if key not in before)]
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


def _is_ahead(skips: tuple[Any, Any], data_step: int) -> bool:
    """Return whether two lists of windows agree up to `data_step`; a checkpoint may have none (None)."""
    then, now = (skip_windows.before(skip_windows.merged(skip or ()), data_step + 1) for skip in skips)
    return then == now


def is_of_plan(key: str, stage: int) -> bool:
    """Return whether a setting decides the order of a stage's clips."""
    start = f"stages.{stage}.data."
    return key.startswith(start) and key.removeprefix(start).partition(".")[0] in PlanSpec.model_fields


def is_taken_by_set(key: str, stage: int) -> bool:
    """Return whether a setting may change in the middle of a stage if `--set` names it."""
    return re.match(rf"stages\.{stage}\.{TAKEN_BY_SET}", key) is not None


def refused_changes(
    changed: dict[str, tuple[Any, Any]],
    stages: Sequence[Stage],
    stage: int,
    stage_step: int,
    settings: Sequence[str],
    accept: Sequence[str] = (),
    data_step: int = 0,
) -> list[str]:
    """Return the keys of `changed` that a run at step `stage_step` of stage number `stage` refuses.

    Accepted are FREE, everything of later stages, more steps for this stage, and what `settings`, this
    command's `--set`, names: TAKEN_BY_SET of this stage, and its length if the schedule depends on it. With
    --accept-plan in `accept`, settings that decide the order of this stage's clips; the order then continues
    after the change. With `--set`, windows to skip after `data_step`, the last data step that this stage has
    read.
    """
    asked = {setting.partition("=")[0] for setting in settings}
    refused = []
    for key in changed:
        match = re.match(r"^stages\.(\d+)\.(\w+)", key)
        if FREE.match(key) or (match and int(match[1]) > stage):
            continue
        if match and int(match[1]) == stage < len(stages):
            part, spec = match[2], stages[stage]
            is_asked = any(key == name or key.startswith(f"{name}.") for name in asked)
            is_longer = part in ("steps", "epochs") and (spec.steps is None or spec.steps >= stage_step)
            by_length = spec.optim.schedule == "cosine" or spec.routing is not None  # its dense finish
            if is_longer and (not by_length or is_asked):
                continue
            if is_asked and is_taken_by_set(key, stage):
                continue
            if part == "skip" and (is_asked or not any(changed[key])) and _is_ahead(changed[key], data_step):
                continue
            if FLAGS["plan"] in accept and is_of_plan(key, stage):
                continue
        refused.append(key)
    return refused
