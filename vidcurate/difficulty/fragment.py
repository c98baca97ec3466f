"""The levels as stages of a training recipe, ramps among them."""

import json

from vidcurate.difficulty.advice import Ramp
from vidcurate.difficulty.spec import SplitSpec

FRAGMENT = "levels.yaml"


def _stage(name: str, data: str, length: str) -> list[str]:
    return [f"  - name: {name}", f"    data: {{{data}}}", f"    {length}"]


def recipe_fragment(levels: int, ramps: tuple[Ramp, ...], spec: SplitSpec) -> str:
    """Return RUN/levels.yaml: the `stages` of a training recipe, level after level with the advised ramps.

    A ramp of m increments is m - 1 stages whose `weights` move from one level to the next. Without
    `spec.buckets` each stage still needs its `buckets`.
    """
    table = (
        "" if spec.buckets is None else json.dumps(spec.buckets.model_dump(mode="json", exclude_unset=True))
    )
    lines = [
        "# Stages for a training recipe, made by `vidcurate split-by-difficulty`: its levels in turn, with",
        "# the advised ramps between them. `shards` is relative to the folder of this file.",
    ]
    if spec.buckets is None:
        lines.append("# Add `buckets` to the data of each stage (or set `buckets` in the split).")
    lines.append("stages:")
    first = True

    def buckets() -> str:
        nonlocal first
        if not table:
            return ""
        text = f", buckets: &buckets {table}" if first else ", buckets: *buckets"
        first = False
        return text

    into = {ramp.to_level: ramp for ramp in ramps}
    for level in range(1, levels + 1):
        ramp = into.get(level)
        if ramp is not None and ramp.increments > 1 and ramp.steps > 0:
            mixed = ramp.increments - 1
            for number in range(1, mixed + 1):
                steps = ramp.steps * number // mixed - ramp.steps * (number - 1) // mixed
                if not steps:
                    continue
                weights = f'{{"{level - 1}": {ramp.increments - number}, "{level}": {number}}}'
                data = f"shards: shards, levels: [{level - 1}, {level}], weights: {weights}{buckets()}"
                lines += _stage(f"ramp-{level - 1}-{level}-{number}", data, f"steps: {steps}")
        data = f"shards: shards, levels: [{level}]{buckets()}"
        lines += _stage(f"level-{level}", data, f"passes: {spec.passes:g}")
    return "\n".join(lines) + "\n"
