"""Training run over mixed buckets, beside the rate predicted from each bucket alone.

    python benchmarks/mixture.py OUT [--steps 300] [--set KEY=VALUE] [--keep]
    python benchmarks/mixture.py OUT --ranks 2 4 --per-rank 8 --steps 27 --warm-up 5 --keep
    OMP_NUM_THREADS=1 python benchmarks/mixture.py OUT --recipe tests/tiny.yaml --ranks 2 --steps 30
    python benchmarks/mixture.py OUT --set precision=float8 --keep    # beside bfloat16's of the same OUT
    python benchmarks/mixture.py OUT --report        # again, with the same words: nothing is trained

It makes the latents (make_latents.py), measures a micro-batch of each bucket alone, with random weights,
latents and captions of the mean length, and what an update costs beside its micro-batches; then it trains
with `python -m trainer` and adds up what the updates should have taken. The prediction over the wall time,
after a warm-up, is the figure: it holds the loader, the logging and the checkpoints. Missing time is printed
by part. The prediction is of the run's own precision: buckets, run and kept file of float8 have its name.
Triton kernels that are built after the warm-up are counted, and the memory that
`trainer.distributed.memory` predicts for each bucket is printed beside what it took.

With `--ranks N …` (GPUs of this host) it trains on one rank and on each N, with `--per-rank` micro-batches of
each rank in an update, balanced by a cost table of the buckets measured alone; the figures of each N are
kept, one rank's with `--ranks 1 2`. Then it tells a GPU's tokens/s against one GPU's alone in the same
mixture, between warm-up and save; what a save costs, stall and slower updates together; what ranks wait for
the slowest against what the costs say; and how far each bucket is from its cost.
"""

import argparse
import gc
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from alone import Alone, measure_alone, read_alone, write_alone
from cost_table import write_cost_table
from make_latents import CLIPS
from rows import Row, as_table, card, cpu, keep, row

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from trainer.data import stages as data_stages
from trainer.data.stages import StageData
from trainer.distributed import environment
from trainer.recipe import recipe as recipes
from trainer.report.balance import Balance, balance
from trainer.run_folder import jsonl, metrics
from vidcurate.sampler import order

HERE = Path(__file__).resolve().parent


def predicted(alone: Alone, stage: StageData, step: int, ranks: int) -> float:
    """Return the seconds that the update after `step` others of the stage should take: its slowest rank's."""
    cells = stage.plan.cells
    shares = [
        sum(alone.seconds[cells[order.cell_at(stage.plan, position)[0]].name] for position in own)
        for own in order.shares(stage.plan, step, ranks)
    ]
    return alone.beside_seconds + max(shares)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A run of `ranks` ranks whose kernels were built into `cache`."""

    run: Path
    ranks: int
    stage: StageData
    warm_up: int
    cache: Path

    @property
    def lines(self) -> list[dict[str, Any]]:
        return metrics.read_metrics(self.run / metrics.METRICS)

    @property
    def events(self) -> list[dict[str, Any]]:
        return metrics.read_metrics(self.run / jsonl.EVENTS)

    @property
    def steady(self) -> list[dict[str, Any]]:
        """The updates between the warm-up and the first save."""
        saved = [event["step"] for event in self.events if event["event"] == "save"]
        return [line for line in self.lines[self.warm_up :] if line["step"] <= saved[0]]

    def wall(self, lines: list[dict[str, Any]]) -> float:
        """Seconds of updates that follow each other, and of the time between them."""
        return float(lines[-1]["time"] - self.lines[lines[0]["step"] - 2]["time"])

    @property
    def rate(self) -> float:
        """Tokens/s of a rank in the steady updates, by the wall clock."""
        tokens: int = sum(line["tokens"] for line in self.steady)
        return tokens / self.wall(self.steady) / self.ranks

    def save_costs(self, alone: Alone) -> float:
        """Return how many seconds longer than the steady ones the updates beside and after the save took."""
        after = self.lines[self.steady[-1]["step"] :]
        ideal = [
            sum(predicted(alone, self.stage, line["step"] - 1, self.ranks) for line in lines)
            for lines in (self.steady, after)
        ]
        return self.wall(after) - self.wall(self.steady) * ideal[1] / ideal[0]

    @property
    def stalls(self) -> list[float]:
        """The seconds that saves held the training up."""
        return [event["stall_seconds"] for event in self.events if event["event"] == "save"]


def report(ran: Ran, alone: Alone, hardware: str) -> list[Row]:
    """Return the figures of a run against those of each bucket alone."""
    updates, stage, warm_up, cache = ran.lines, ran.stage, ran.warm_up, ran.cache
    if len(updates) <= warm_up:
        sys.exit(
            f"{ran.run} has {len(updates)} updates, of which {warm_up} warm up: train it without --report."
        )
    warm, counted = updates[warm_up - 1], updates[warm_up:]
    wall = counted[-1]["time"] - warm["time"]
    of_updates = [predicted(alone, stage, line["step"] - 1, ran.ranks) for line in counted]
    ideal = sum(of_updates)
    in_steps = sum(line["seconds"] for line in counted)
    data_wait = sum(line["data_seconds"] for line in counted)
    tokens = sum(line["tokens"] for line in counted)
    kernels = list(cache.rglob("*.cubin"))
    late = [path for path in kernels if path.stat().st_mtime > warm["time"]]
    parts = {
        "waiting for data": data_wait,
        "in updates, beyond what is predicted": in_steps - data_wait - ideal,
        "between updates (saves, log, console)": wall - in_steps,
    }
    of_ranks = f", {ran.ranks} ranks" if ran.ranks > 1 else ""
    rows = [
        row(f"tokens/s, real run{of_ranks}", tokens / wall, "tokens/s", peer="predicted by buckets alone",
            peer_value=tokens / ideal, goal=">= 0.95" if ran.ranks == 1 else "", hardware=hardware),
        *(row(f"share of the wall time{of_ranks} {name}", seconds / wall, "share", peer="wall time",
              peer_value=1.0, higher_is_better=False, hardware=hardware)
          for name, seconds in parts.items() if seconds > 0),
    ]  # fmt: skip
    if kernels:
        rows.append(
            row("kernels built after the warm-up", len(late), "kernels", peer="all kernels built",
                peer_value=len(kernels), goal="0", hardware=hardware)
        )  # fmt: skip
    if len(counted) > 20:
        halves = [
            seconds / (line["seconds"] - line["data_seconds"])
            for seconds, line in zip(of_updates, counted, strict=True)
        ]
        rows.append(
            row("an update, predicted by measured, least of 100", statistics.quantiles(halves, n=100)[0], "",
                peer="median", peer_value=statistics.median(halves), hardware=hardware)
        )  # fmt: skip
    for name, gib in alone.peak_gib.items():
        if gib and ran.ranks == 1:
            rows.append(
                row(f"peak memory of {name}, {alone.plans[name]}", gib, "GiB",
                    peer="predicted", peer_value=alone.predicted_gib[name], higher_is_better=False,
                    hardware=hardware)
            )  # fmt: skip
    print(f"{len(counted)} updates in {wall:.1f} s, predicted {ideal:.1f} s; stalls of saves {ran.stalls}")
    for name, seconds in parts.items():
        print(f"  {name}: {seconds:.2f} s ({seconds / wall:.2%})")
    return rows


def of_several(ran: Ran, one: Ran, alone: Alone, hardware: str) -> list[Row]:
    """Return what several ranks show against one: rates, predicted against actual time, stalls."""
    found = balance(ran.steady, ran.events)
    assert isinstance(found, Balance)
    waits, predicted = max(found.waste_measured or 0.0, 1e-6), found.waste_predicted or 0.0
    rows = [
        row(f"tokens/s of a GPU, {ran.ranks} ranks", ran.rate, "tokens/s", peer="one GPU in the same mixture",
            peer_value=one.rate, goal=">= 0.97", hardware=hardware),
        row("share of the ranks' time waiting for the slowest", waits, "share", peer="by the cost table",
            peer_value=predicted, higher_is_better=False, hardware=hardware),
        row("stall of a save, the longest", max(1e-3, *ran.stalls), "s", peer="one rank's",
            peer_value=max(one.stalls), goal="<= 1 s", higher_is_better=False, hardware=hardware),
        row("what a save costs, stall and slower updates", max(1e-3, ran.save_costs(alone)), "s",
            peer="one rank's", peer_value=max(1e-3, one.save_costs(alone)), higher_is_better=False,
            hardware=hardware),
    ]  # fmt: skip
    if found.correlation is not None:
        rows.append(
            row("correlation of a rank's seconds in an update, predicted and actual", found.correlation, "",
                peer="as predicted", peer_value=1.0, hardware=hardware)
        )  # fmt: skip
    for bucket in found.of_buckets:
        rows.append(
            row(f"a micro-batch of {bucket.bucket} among {ran.ranks} ranks", bucket.measured, "s",
                peer="by the cost table", peer_value=bucket.predicted, higher_is_better=False,
                hardware=hardware)
        )  # fmt: skip
    for rank in found.of_ranks:
        print(
            f"rank {rank.rank}: {rank.predicted:.2%} of the work by the costs, "
            f"{rank.measured:.2%} by the clock"
        )
    return rows


def named(what: str, precision: str, mark: str = "-") -> str:
    """Return the name of a file or folder of a precision; float8's lies beside that of the others."""
    return f"{what}{mark}{precision}" if precision == "float8" else what


def train(source: Path, settings: list[str], ranks: int, cache: Path) -> None:
    """Train with the command that users have; stop unless it ends well."""
    command = [sys.executable, "-u", "-m", "trainer"]
    if ranks > 1:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        command += ["-m", "trainer"]
    command += [str(source), *(word for setting in settings for word in ("--set", setting))]
    print("$", " ".join(command[1:]), flush=True)
    subprocess.run(command, check=True, cwd=HERE.parent, env=os.environ | {"TRITON_CACHE_DIR": str(cache)})


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("out", type=Path, metavar="OUT")
    arguments.add_argument("--recipe", type=Path, help="another recipe than XL/2 in mixed buckets")
    arguments.add_argument("--clips", type=int, default=CLIPS)
    arguments.add_argument("--steps", type=int, default=300)
    arguments.add_argument("--warm-up", type=int, default=20, help="updates that do not count")
    arguments.add_argument(
        "--ranks", type=int, nargs="+", default=[1], help="train on one rank, then on so many, in turn"
    )
    arguments.add_argument("--per-rank", type=int, default=2, help="micro-batches of a rank in an update")
    arguments.add_argument("--repeats", type=int, default=8, help="timed updates of each bucket alone")
    arguments.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    arguments.add_argument("--keep", action="store_true", help="keep the figures in benchmarks/results")
    arguments.add_argument("--report", action="store_true", help="only report the runs that OUT holds")
    given = arguments.parse_args()
    source = given.out / "recipe.json"
    if not source.exists():
        command = [sys.executable, str(HERE / "make_latents.py"), str(given.out), "--clips", str(given.clips)]
        made = subprocess.run([*command, *(["--recipe", str(given.recipe)] if given.recipe else [])])
        if made.returncode:
            sys.exit(made.returncode)  # the command printed why
    gpu = torch.cuda.is_available()
    settings = [
        f"stages.0.steps={given.steps}",
        f"stages.0.checkpoint_every={given.steps // 2 if given.ranks == [1] else 2 * given.steps // 3}",
        "stages.0.checkpoint_in_background=true",
        "stages.0.keep_last=1",
        "parallel.recompute_blocks=fit",
        f"blocks={'fast' if gpu else 'eager'}",
        "sample=null",
        *given.settings,
    ]
    recipe = recipes.load(source, settings)
    environment.apply(recipe.environment)  # the buckets are measured in this process
    (stage,) = data_stages.open_stages(recipe)
    of_buckets = given.out / f"{named('alone', recipe.precision)}.json"
    if not given.report:
        hardware = torch.cuda.get_device_name() if gpu else cpu()
        write_alone(measure_alone(recipe, stage, given.repeats, hardware), of_buckets)
        gc.collect()
        if gpu:
            torch.cuda.empty_cache()
    alone = read_alone(of_buckets)
    hardware = alone.hardware
    costs = given.out / f"{named('costs', recipe.precision)}.json"
    of_clips = [
        (cell.bucket.resolution, cell.bucket.num_frames, alone.seconds[cell.name] / cell.micro_batch_size)
        for cell in stage.plan.cells
    ]
    write_cost_table(costs, hardware, of_clips)
    kind = card(hardware) if hardware.startswith("NVIDIA") else "cpu"
    one: Ran | None = None
    for ranks in sorted({1, *given.ranks}):
        run = given.out / named(f"mixture-{ranks}", recipe.precision)
        cache = given.out / named("kernels", recipe.precision)
        own = [
            *settings,
            f"output={run}",
            f"stages.0.data.micro_batches_per_step={given.per_rank * ranks}",
            f"stages.0.data.buckets.cost_table={costs}",
        ]
        (laid,) = data_stages.open_stages(recipes.load(source, own))
        if not given.report:
            train(source, own, ranks, cache)
        ran = Ran(run=run, ranks=ranks, stage=laid, warm_up=given.warm_up, cache=cache)
        one = one or ran
        rows = report(ran, alone, hardware if ranks == 1 else f"{ranks} x {hardware}")
        if ranks > 1:
            rows += of_several(ran, one, alone, f"{ranks} x {hardware}")
        if given.keep and ranks in given.ranks:
            keep(named(f"mixture_{kind if ranks == 1 else f'{ranks}x{kind}'}", recipe.precision, "_"), rows)
        else:
            print(as_table(rows))


if __name__ == "__main__":
    main()
