"""What the guard finds and what it calls out wrongly, on a real run's losses with troubles put into them.

    python benchmarks/guard.py [--steps 400]

It trains a small model on latents of made-up clips in four buckets whose losses differ, keeps every step's
figures, and replays them through the guard's judgement: as they are (false alarms), with one step's losses
multiplied (spikes, in all of its clips or in those of one bucket), and with losses that rise slowly. The peer is
what is usually done: the step's total loss above mean + 6 σ of the last 64 steps.
"""

import argparse
import json
import math
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import make_latents
import numpy as np
from rows import Row, as_table, keep, row

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from trainer import guarded
from trainer import recipe as recipes
from trainer.guard import judge
from trainer.guard.memory import Figures, Memory
from trainer.guard.spec import GuardSpec
from trainer.loop import train

TINY = Path(__file__).resolve().parents[1] / "tests" / "tiny.yaml"
SIZES = (1.5, 2.0, 3.0, 10.0)
SPEC = GuardSpec(divergence_window=64)
PAST, SIGMAS = 64, 6.0
WARM = 64  # steps that only teach


def record(steps: int) -> list[Figures]:
    """Train, and return the figures of every step that the guard looked at."""
    seen: list[Figures] = []
    find = guarded.judgement.find

    def and_keep(memory: Memory, figures: Figures, spec: GuardSpec) -> Any:
        seen.append(figures)
        return find(memory, figures, spec)

    guarded.judgement.find = and_keep
    with tempfile.TemporaryDirectory() as folder:
        buckets = {
            "sizes": {"32px": {"1.00": [32, 32]}, "64px": {"1.00": [64, 64]}},
            "table": {"32px": {"1": [1.0, 8], "8": [1.0, 4]}, "64px": {"1": [1.0, 4], "8": [1.0, 2]}},
        }
        settings = [
            f"stages.0.data.shards={folder}/made/clips",
            f"stages.0.data.buckets={json.dumps(buckets)}",
            f"stages.0.steps={steps}",
            f"stages.0.checkpoint_every={steps}",
            "stages.0.log_every=100",
            f"output={folder}/run",
            "sample=null",
        ]
        recipe = make_latents.make(recipes.load(TINY, settings), Path(folder) / "made", 4 * steps)
        train(recipe)
    return seen


def found_by_guard(run: list[Figures]) -> list[tuple[int, str]]:
    """Return (step, kind) of every finding when the guard sees these steps."""
    memory, told = Memory(), []
    for figures in run:
        found = judge.find(memory, figures, SPEC)
        told += [(figures.step, each.kind) for each in found if each.kind in ("spike", "divergence")]
        judge.remember(memory, figures, found, SPEC)
    return told


def found_by_total(run: list[Figures]) -> list[tuple[int, str]]:
    """Return the same of the peer: total loss above mean + 6 σ of the last steps."""
    past: list[float] = []
    told = []
    for figures in run:
        loss = float(np.mean(figures.losses))
        last = past[-PAST:]
        if len(last) >= judge.LEAST_SCORES and loss > np.mean(last) + SIGMAS * np.std(last):
            told.append((figures.step, "spike"))
        past.append(loss)
    return told


def with_spike(run: list[Figures], step: int, times: float, bucket: str | None) -> list[Figures]:
    hit = run[step - 1]
    where = np.array([bucket in (None, name) for name in hit.buckets])
    spiked = replace(hit, losses=np.where(where, hit.losses * times, hit.losses))
    return [*run[: step - 1], spiked]


def recall(run: list[Figures], times: float, of_bucket: bool, finds: Any) -> float:
    """Return the share of the steps tried in which a spike is found at once."""
    steps = range(WARM + 1, len(run), 8)
    hits = 0
    for step in steps:
        buckets = run[step - 1].buckets
        bucket = min(set(buckets), key=buckets.count) if of_bucket else None
        hits += any(
            at == step and kind == "spike" for at, kind in finds(with_spike(run, step, times, bucket))
        )
    return hits / len(steps)


def delay(run: list[Figures], percent_a_step: float, finds: Any) -> int:
    """Return how many steps a slow rise of the losses goes on before it is found; all steps if it is not."""
    start = len(run) // 2
    risen = [
        replace(figures, losses=figures.losses * (1 + percent_a_step / 100) ** max(0, figures.step - start))
        for figures in run
    ]
    later = [step for step, _ in finds(risen) if step > start]
    return (min(later) if later else len(run)) - start


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what the guard finds, beside a peer.")
    parser.add_argument("--steps", type=int, default=400, help="of the training run (default: 400)")
    run = record(parser.parse_args().steps)
    judged = len(run) - WARM
    alarms = [
        1000 * len([step for step, _ in finds(run) if step > WARM]) / judged
        for finds in (found_by_guard, found_by_total)
    ]
    peer = f"total loss above mean + {SIGMAS:g} σ of {PAST} steps"
    rows: list[Row] = [
        # A peer without an alarm would make the ratio 0/0; what is compared is 1000 steps without one.
        row(
            "quiet steps of a thousand",
            1000 - alarms[0],
            "steps",
            peer=peer,
            peer_value=1000 - alarms[1],
            goal="at least 999",
        )
    ]
    for of_bucket in (False, True):
        for times in SIZES:
            ours, theirs = (
                recall(run, times, of_bucket, finds) for finds in (found_by_guard, found_by_total)
            )
            where = "in the rarest bucket of the step" if of_bucket else "in all clips"
            rows.append(
                row(
                    f"found at once: losses x {times:g} {where}",
                    ours,
                    "share",
                    peer=peer,
                    peer_value=max(theirs, 1 / math.ceil(judged / 8)),  # it found none: less than one
                )
            )
    for percent in (0.5, 1.0):
        ours, theirs = (delay(run, percent, finds) for finds in (found_by_guard, found_by_total))
        rows.append(
            row(
                f"steps until a rise of {percent:g} % a step is found",
                ours,
                "steps",
                peer=peer,
                peer_value=theirs,
                higher_is_better=False,
            )
        )
    keep("guard", rows)
    print(as_table(rows))


if __name__ == "__main__":
    main()
