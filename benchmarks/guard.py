"""Guard findings and false alarms, on a real run's losses with faults put into them.

    python benchmarks/guard.py [--steps 400]

It trains a small model on latents of made-up clips in four buckets whose losses differ, keeps every step's
figures, and replays them through the guard's detection: as they are (false alarms), with one step's losses
multiplied (spikes, in all of its clips or in those of one bucket), and with losses that rise slowly. The peer
is what is usually done: the step's total loss above mean + 6 σ of the last 64 steps.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import make_latents
import numpy as np
from rows import Row, as_table, keep, row

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from trainer.recipe import recipe as recipes
from trainer.recipe.guard_spec import Thresholds
from trainer.train import train
from trainer.training.guard import detect as guard_detect
from trainer.training.guard import spike_scores
from trainer.training.guard.history import StageHistory, StepStats

TINY = Path(__file__).resolve().parents[1] / "tests" / "tiny.yaml"
SIZES = (1.5, 2.0, 3.0, 10.0)
SPEC = Thresholds(divergence_window=64)
PAST, SIGMAS = 64, 6.0
WARM = 64  # steps that only teach


def record(steps: int) -> list[StepStats]:
    """Train, and return the stats of every step that the guard looked at."""
    seen: list[StepStats] = []
    find = guard_detect.find_problems

    def and_keep(memory: StageHistory, stats: StepStats, spec: Thresholds) -> Any:
        seen.append(stats)
        return find(memory, stats, spec)

    setattr(guard_detect, "find_problems", and_keep)  # noqa: B010 - the guard's own function is put back below
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
    setattr(guard_detect, "find_problems", find)  # noqa: B010
    return seen


class Guard:
    """A detector that has seen some steps and checks the next one."""

    def __init__(self) -> None:
        self.memory = StageHistory()

    def find(self, stats: StepStats) -> set[str]:
        found = guard_detect.find_problems(self.memory, stats, SPEC)
        return {each.kind for each in found if each.kind in ("spike", "divergence")}

    def remember(self, stats: StepStats) -> None:
        guard_detect.update_history(
            self.memory, stats, guard_detect.find_problems(self.memory, stats, SPEC), SPEC
        )


class Total:
    """The peer: total loss above mean + 6 σ of the last steps."""

    def __init__(self) -> None:
        self.past: list[float] = []

    def find(self, stats: StepStats) -> set[str]:
        last, loss = self.past[-PAST:], float(np.mean(stats.losses))
        is_high = len(last) >= spike_scores.LEAST_SCORES and loss > np.mean(last) + SIGMAS * np.std(last)
        return {"spike"} if is_high else set()

    def remember(self, stats: StepStats) -> None:
        self.past.append(float(np.mean(stats.losses)))


def with_spike(stats: StepStats, times: float, in_one_bucket: bool) -> StepStats:
    """Return the step with its losses multiplied, all of them or those of its rarest bucket."""
    rarest = min(sorted(set(stats.buckets)), key=list(stats.buckets).count)
    where = np.array([not in_one_bucket or name == rarest for name in stats.buckets])
    return replace(stats, losses=np.where(where, stats.losses * times, stats.losses))


def alarms(run: list[StepStats], check_: Guard | Total) -> float:
    """Return in how many steps of a thousand something is found behind the first WARM ones."""
    count = 0
    for stats in run:
        count += stats.step > WARM and bool(check_.find(stats))
        check_.remember(stats)
    return 1000 * count / (len(run) - WARM)


def recall(run: list[StepStats], check_: Guard | Total) -> dict[tuple[float, bool], float]:
    """Return (size, in one bucket) → the share of steps in which a spike of that size is found at once."""
    hits = {(times, only): 0 for only in (False, True) for times in SIZES}
    for figures in run:
        for times, only in hits if figures.step > WARM else ():
            hits[times, only] += "spike" in check_.find(with_spike(figures, times, only))
        check_.remember(figures)
    return {key: count / (len(run) - WARM) for key, count in hits.items()}


def delay(run: list[StepStats], percent_a_step: float, check_: Guard | Total) -> int:
    """Return how many steps a slow rise of the losses lasts before it is found; all steps if it is not."""
    start = len(run) // 2
    for figures in run:
        since = max(0, figures.step - start)
        risen = replace(figures, losses=figures.losses * (1 + percent_a_step / 100) ** since)
        if since and check_.find(risen):
            return since
        check_.remember(risen)
    return len(run) - start


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what the guard finds, beside a peer.")
    parser.add_argument("--steps", type=int, default=400, help="of the training run (default: 400)")
    run = record(parser.parse_args().steps)
    peer = f"total loss above mean + {SIGMAS:g} σ of {PAST} steps"
    quiet = [1000 - alarms(run, check_) for check_ in (Guard(), Total())]
    rows: list[Row] = [
        # As steps without an alarm: a ratio of no alarms at all would be none.
        row("steps of a thousand without a false alarm", quiet[0], "steps", peer=peer, peer_value=quiet[1])
    ]
    ours, theirs = recall(run, Guard()), recall(run, Total())
    for times, only in ours:
        where = "the rarest bucket of a step" if only else "all clips"
        least = 1 / (len(run) - WARM)  # where the peer has found none
        metric = f"spikes found at once, losses x {times:g} in {where}"
        rows.append(
            row(metric, ours[times, only], "share", peer=peer, peer_value=max(theirs[times, only], least))
        )
    for percent in (0.5, 1.0):
        steps, of_peer = (delay(run, percent, check_) for check_ in (Guard(), Total()))
        metric = f"steps until a rise of {percent:g} % a step is found"
        rows.append(row(metric, steps, "steps", peer=peer, peer_value=of_peer, higher_is_better=False))
    keep("guard", rows)
    print(as_table(rows))


if __name__ == "__main__":
    main()
