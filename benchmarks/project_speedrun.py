"""Projection of the published speedrun from measured steps: GPU hours, rank balance.

    python benchmarks/project_speedrun.py [--table benchmarks/results/train_step_h200.json]

The clips are made up: as many as the published data sets have, their lengths and sizes drawn from a given
distribution (--durations, --sizes, --fps). All else is the real thing: the bucket tables of
recipes/speedrun.yaml, the assignment to buckets, the order of micro-batches. A micro-batch costs what
`trainer.distributed.step_time` fits to the measured steps; one that the memory does not hold is run in
pieces, and where a
single clip does not fit, some blocks are lean or recomputed (`trainer.distributed.memory`). Encoding costs
its FLOPs by torch's counter at the rates that benchmarks/encoders.py kept up (`encoder_cost`). A real run
reaches a share of what its buckets and updates alone predict, which benchmarks/mixture.py measured: all hours
of training are divided by it. What was measured is printed with its file, apart from what is assumed of data
that nobody here has.

Encoding is counted twice: precomputed (each clip of a stage once) and online (at every showing). Ranks are
simulated on the real order: the slowest rank's time over the mean, step by step, for micro-batches assigned
round-robin, as published, and by cost. Published: 18,000 hours of H100 for 24,087 steps in three stages, the
encoders online; the projection is for the GPU of the measured table.
"""

import argparse
import dataclasses
import functools
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cost_table import write_cost_table
from encoder_cost import Rates, clip_flops
from made_up_clips import made_up_plan
from rank_balance import imbalance, in_turn, larger
from rows import RESULTS, Row, keep, row

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from trainer.distributed import memory
from trainer.distributed.memory import Form
from trainer.distributed.step_time import TERMS, Cost, Measured, Work, errors, fit
from trainer.model.encoders.registry import video_encoder
from trainer.model.flops import Shape, forward_flops
from trainer.recipe import recipe as recipes
from trainer.recipe.recipe import Stage, TrainRecipe
from vidcurate.sampler import buckets, order
from vidcurate.sampler import plan as sampler_plan
from vidcurate.sampler.bucket_shapes import Bucket

RECIPE = Path(__file__).resolve().parents[1] / "recipes/speedrun.yaml"
PUBLISHED_STEPS = {"stage-1": 2_210, "stage-2": 7_100, "stage-3": 14_780}
PUBLISHED_TOTAL = sum(PUBLISHED_STEPS.values())
PUBLISHED_HOURS = 18_000.0
TEXT_TOKENS = 300
TRAINED, FROZEN = 1_201_595_936, 6_048_000
REAL_RUN = "tokens/s, real run"  # of benchmarks/mixture.py, over what was predicted
LEAN_COST = 0.02  # of a block's time, what one takes longer that is lean; one H200, 720p x 51 frames
RANKS = (8, 192, 1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a GPU does and holds: `seconds` of a micro-batch, of an update, and bytes beside the weights.

    `share` is what a real run reaches of the two.
    """

    cost: Cost
    update_seconds: float
    share: float
    limit_bytes: float
    form: Form


# ── the measured table ──────────────────────────────────────────────────────────────────────────────────────


def measured_steps(table: Sequence[Row], form: str = "") -> list[Measured]:
    """Return the measured steps with their micro-batches, as benchmarks/train_step.py made them.

    `form`: "float8" for the rows of that form; "": those of the fastest form in the model's precision.
    """
    from train_step import SHAPES, in_parts  # it needs Triton

    found = {entry["metric"]: entry for entry in table}
    steps = []
    for name, shape in SHAPES.items():
        prefix = f"{name}_{form}_" if form else f"{name}_"
        forward, backward = found.get(f"{prefix}forward_ms"), found.get(f"{prefix}backward_ms")
        if not forward or not backward:
            continue
        is_fast = form == "float8" or "ours is fast" in forward["peer"]
        size = shape.fast_micro_batch or shape.micro_batch if is_fast else shape.micro_batch
        is_lean = is_fast and shape.fast_lean  # what lean blocks cost is in what was measured
        places = shape.tokens // shape.frames
        steps.append(
            Measured(
                name=name,
                works=tuple(
                    Work(clips=count, frames=shape.frames, places=places, text_tokens=TEXT_TOKENS)
                    for count in in_parts(shape.batch, size)
                ),
                forward=forward["value"] / 1e3,
                backward=backward["value"] / 1e3,
                recomputed=0 if is_lean else shape.recomputed_blocks / 56,
            )
        )
    return steps


def real_share(table: Sequence[Row]) -> float:
    """Return what a real run over mixed buckets reached of what its micro-batches and updates predict."""
    return next(float(entry["ratio"]) for entry in table if entry["metric"].startswith(REAL_RUN))


def clip_costs(recipe: TrainRecipe, machine: Machine) -> tuple[list[tuple[str, int, float]], float]:
    """Return resolution, frames and seconds of a clip of each bucket of a recipe, and of a micro-batch."""
    of_all = {bucket for stage in recipe.stages for bucket in buckets.all_buckets(stage.data.buckets)}
    found = [(bucket, machine.cost.of_clips(work_of(recipe, bucket, 1))) for bucket in of_all]
    clips = [(bucket.resolution, bucket.num_frames, seconds) for bucket, (seconds, _) in found]
    return clips, found[0][1][1]


# ── what things cost ────────────────────────────────────────────────────────────────────────────────────────


def latent(recipe: TrainRecipe, bucket: Bucket) -> Shape:
    """Return frames, rows and columns of a bucket's latents."""
    _, *shape = video_encoder(recipe.video_encoder).latent_shape(
        bucket.num_frames, bucket.height, bucket.width
    )
    frames, rows, columns = shape
    return frames, rows, columns


def work_of(recipe: TrainRecipe, bucket: Bucket, clips: int) -> Work:
    """Return the work of `clips` of a bucket."""
    frames, rows, columns = latent(recipe, bucket)
    places = -(-rows // recipe.model.patch_size[1]) * -(-columns // recipe.model.patch_size[2])
    return Work(clips=clips, frames=frames, places=places, text_tokens=TEXT_TOKENS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How a published micro-batch is run: `pieces` of clips in turn, shares of blocks lean, recomputed."""

    pieces: tuple[int, ...]
    lean: float
    recomputed: float
    seconds: float


def run_of(recipe: TrainRecipe, machine: Machine, bucket: Bucket) -> Run:
    """Return how a micro-batch of a bucket is run so that it fits, in as even pieces as can be."""
    clips, one = bucket.micro_batch_size, work_of(recipe, bucket, 1)
    found = memory.fit(recipe.model, one, machine.form, machine.limit_bytes, clips)
    if found is None:
        raise SystemExit(f"{bucket.name}: one clip does not fit with its blocks recomputed; raise --gib.")
    blocks = 2 * recipe.model.depth
    lean, again = found.plan.lean_blocks / blocks, found.plan.recompute_blocks / blocks
    number = -(-clips // found.clips)
    pieces = tuple(clips // number + (piece < clips % number) for piece in range(number))
    works = [dataclasses.replace(one, clips=size) for size in pieces]
    seconds = sum(
        machine.cost.seconds(work, again) + LEAN_COST * lean * machine.cost.seconds(work) for work in works
    )
    return Run(pieces=pieces, lean=lean, recomputed=again, seconds=seconds)


def encoder_seconds(plan: sampler_plan.Plan, rates: Rates) -> list[float]:
    """Return the seconds that both encoders take for a clip of each cell."""
    shapes = [(cell.bucket.num_frames, cell.bucket.height, cell.bucket.width) for cell in plan.cells]
    return [rates.clip_seconds(*shape) for shape in shapes]


# ── the report ──────────────────────────────────────────────────────────────────────────────────────────────


def print_measured(given: argparse.Namespace, machine: Machine, table: Sequence[Row], rates: Rates) -> None:
    """Print what was measured, with its file, then what is assumed."""
    hardware = table[0]["hardware"]
    peers = {entry["peer"] for entry in table if "ours is " in entry["peer"]}
    forms = ", ".join(sorted(peer.partition("ours is ")[2].removesuffix(")") for peer in peers))
    speeds = ", ".join(f"{rate / 1e12:.0f}" for _, rate in rates.points)
    pixel = clip_flops(51, 480, 848) / (51 * 480 * 848) / 1e6
    print(f"""Measured
  micro-batches         {given.table.name}: {hardware}, blocks {forms}, weights and data random
  update                {given.table.name}: {machine.update_seconds * 1e3:.0f} ms a step
  real run              {given.mixture.name}: {machine.share:.3f} of what micro-batches and updates predict
  VAE                   {given.encoders.name}: {speeds} TFLOP/s kept up, from the smallest frame on
  VAE's FLOPs           torch's counter, 51 x 480 x 848: {pixel:.2f} MFLOP a pixel
  T5                    {given.encoders.name}: {1 / rates.caption_seconds:.0f} captions/s
  lean blocks           {LEAN_COST:.0%} longer: one H200, 720p x 51 frames

Assumed
  data                  {given.clips:,} clips in stages 1 and 2, {given.more_clips:,} more in stage 3
  seconds of a clip     {given.durations} (from-to:percent, even within a class), {given.fps:g} frames/s
  pixels of a clip      {given.sizes}
  caption               {TEXT_TOKENS} tokens for every clip, as measured; fast blocks compute the true ones
  memory                {given.gib:g} GiB of a GPU may be used by {given.form} blocks, \
{machine.limit_bytes / 2**30:.1f} beside the state cut over 8
  precomputed           each clip of a stage is encoded once for the stage's epochs (one view)
  not in it             starts, stops, validation, samples, and what networks between hosts cost
  published             {PUBLISHED_HOURS:,.0f} H100 hours on 192 GPUs, {PUBLISHED_TOTAL:,} steps, online
""")


def print_fit(machine: Machine, steps: Sequence[Measured]) -> None:
    print("Cost of a micro-batch, seconds for each")
    for name, forward, backward in zip(TERMS, machine.cost.forward, machine.cost.backward, strict=True):
        print(f"  {name:<16} forward {forward:9.3g}  backward {backward:9.3g}")
    print("  measured step     seconds   fit's error   predicted from the others")
    for step in steps:
        error, left_out = errors(steps)[step.name]
        print(f"  {step.name:<14} {step.seconds:10.3f}   {error:+10.1%}   {left_out:+10.1%}")
    print()


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """GPU hours of a stage, and each case's imbalance, assigned round-robin and by time.

    `share` is what a real run reaches of training and update; `float8` is training in float8.
    """

    steps: int
    training: float
    float8: float | None
    update: float
    ahead: float
    online: float
    imbalance: dict[str, tuple[float, float]]
    share: float

    def hours(self, case: str) -> float:
        """Return all but encoding, with the waiting of a case assigned by time, as a real run takes it."""
        return (self.training * self.imbalance[case][1] + self.update) / self.share

    @property
    def lost(self) -> float:
        """Return the hours that a real run takes beyond its micro-batches and updates."""
        return (self.training + self.update) * (1 / self.share - 1)


# How the run is spread → the simulated case: 48 ranks share the published step of 192 four by four.
SPREADS = {"8_ranks": "8_ranks", "48_ranks": "192_ranks_four_each", "192_ranks": "192_ranks"}


def simulate(
    stage: Stage, clips: int, recipe: TrainRecipe, runs: Callable[[Bucket], Run], given: argparse.Namespace
) -> dict[str, tuple[float, float]]:
    """Print a stage's imbalance by each assignment; return those of round-robin and by time.

    A step has the published 192 micro-batches, or one for each rank where there are more ranks: whole; in
    quarters, with as many clips; or four whole ones for each rank.
    """
    print("  slowest rank over the mean      micro-batches of a step  in turn  by pixels  by FLOPs  by time")
    plans = {pieces: made_up_plan(stage, clips, given, pieces) for pieces in (1, 4)}
    published = plans[1].micro_batches_per_step
    found = {}
    for ranks in RANKS:
        grown = max(1.0, ranks / published)
        cases = {"": (1, grown), "_quarters": (4, grown), "_four_each": (1, 4 * ranks / published)}
        for case, (pieces, times) in cases.items():
            if times < 1:
                continue
            plan = larger(plans[pieces], times)
            seconds = [runs(cell.bucket).seconds for cell in plan.cells]
            work = tuple(
                cell.micro_batch_size * forward_flops(recipe.model, *latent(recipe, cell.bucket), TEXT_TOKENS)
                for cell in plan.cells
            )
            timed = tuple(round(s * 1e6) for s in seconds)
            steps = max(5, given.simulated_steps * published // plan.micro_batches_per_step)
            assigned = [
                imbalance(dataclasses.replace(plan, costs=costs), seconds, ranks, assign, steps)
                for costs, assign in (
                    (None, in_turn),
                    (None, order.shares),
                    (work, order.shares),
                    (timed, order.shares),
                )
            ]
            name = f"{ranks}_ranks{case}"
            found[name] = assigned[0], assigned[3]
            print(
                f"    {name.replace('_', ' '):<23} {plan.micro_batches_per_step:>27,} {assigned[0]:>8.3f} "
                f"{assigned[1]:>10.3f} {assigned[2]:>9.3f} {assigned[3]:>8.3f}"
            )
    return found


def project(
    stage: Stage,
    recipe: TrainRecipe,
    machine: Machine,
    in_float8: Machine | None,
    rates: Rates,
    given: argparse.Namespace,
) -> Figures:
    """Print what a stage costs and return it."""
    clips = given.clips + (given.more_clips if stage.name == "stage-3" else 0)
    plan = made_up_plan(stage, clips, given)
    runs = functools.cache(functools.partial(run_of, recipe, machine))
    num_steps = stage.steps or order.steps_for_epochs(plan, stage.epochs or 0.0)
    counts = order.micro_batches_before(plan, num_steps)
    encoding = encoder_seconds(plan, rates)
    tokens = work = training = online = ahead = 0.0
    for cell, count, encoder in zip(plan.cells, counts, encoding, strict=True):
        shown = count * cell.micro_batch_size
        tokens += shown * work_of(recipe, cell.bucket, 1).tokens
        work += shown * 3 * forward_flops(recipe.model, *latent(recipe, cell.bucket), TEXT_TOKENS)
        training += count * runs(cell.bucket).seconds / 3600
        online += shown * encoder / 3600
        ahead += len(cell.rows) * encoder / 3600
    float8 = None
    if in_float8:
        costs = (run_of(recipe, in_float8, cell.bucket).seconds for cell in plan.cells)
        float8 = sum(count * seconds for count, seconds in zip(counts, costs, strict=True)) / 3600
    update = num_steps * plan.micro_batches_per_step * machine.update_seconds / 3600
    print(
        f"{stage.name}: {plan.num_clips:,} of {clips:,} clips in {len(plan.cells)} buckets, {num_steps:,} "
        f"steps of {plan.micro_batches_per_step} (published {PUBLISHED_STEPS[stage.name]:,}), "
        f"{tokens / 1e9:.0f} G tokens, {tokens / training / 3600:,.0f} tokens/s of a GPU, "
        f"{work / training / 3600 / 1e12:.0f} TFLOP/s"
    )
    for cell, count in sorted(zip(plan.cells, counts, strict=True), key=lambda part: -part[1]):
        run = runs(cell.bucket)
        again = f", {run.recomputed:.0%} of blocks recomputed" if run.recomputed else ""
        again += f", {run.lean:.0%} lean" if run.lean else ""
        print(
            f"    {cell.name:<16} {count / sum(counts):6.1%} of micro-batches, {cell.micro_batch_size:>3} "
            f"clips in {len(run.pieces)} pieces, {run.seconds:6.2f} s{again}"
        )
    figures = Figures(
        steps=num_steps,
        training=training,
        float8=float8,
        update=update,
        ahead=ahead,
        online=online,
        imbalance=simulate(stage, clips, recipe, runs, given),
        share=machine.share,
    )
    waiting = ", ".join(
        f"{training * (figures.imbalance[case][1] - 1):,.0f} on {spread.replace('_', ' ')}"
        for spread, case in SPREADS.items()
    )
    alternative = "" if float8 is None else f" ({float8:,.0f} in float8)"
    print(
        f"  GPU hours: {training:,.0f} of micro-batches{alternative}, "
        f"{update:,.0f} of updates, {figures.lost:,.0f} lost "
        f"in a real run; of waiting {waiting}; of encoding {ahead:,.0f} ahead, {online:,.0f} online\n",
        flush=True,
    )
    return figures


def as_rows(found: dict[str, Figures], hardware: str) -> list[Row]:
    """Return the rows to keep, the published run or the published assignment beside each."""
    less_is_better = functools.partial(row, hardware=hardware, higher_is_better=False)
    rows = []
    for way in ("ahead", "online"):
        for spread, case in SPREADS.items():
            rows.append(
                less_is_better(
                    f"gpu_hours_{way}_{spread}",
                    sum(figures.hours(case) + getattr(figures, way) for figures in found.values()),
                    "GPU hours",
                    peer="published run (H100, 192 ranks, on line)",
                    peer_value=PUBLISHED_HOURS,
                    goal="<= 2,300" if (way, spread) == ("ahead", "48_ranks") else "",
                )
            )
    in_float8 = [dataclasses.replace(one, training=one.float8) for one in found.values() if one.float8]
    if len(in_float8) == len(found):
        case = SPREADS["48_ranks"]
        rows.append(
            less_is_better(
                "gpu_hours_ahead_48_ranks_float8",
                sum(figures.hours(case) + figures.ahead for figures in in_float8),
                "GPU hours",
                peer="the same in bfloat16",
                peer_value=sum(figures.hours(case) + figures.ahead for figures in found.values()),
                goal="<= 2,300",
            )
        )
    for name, figures in found.items():
        steps = PUBLISHED_STEPS[name]
        if figures.float8:
            rows.append(
                less_is_better(f"{name}_gpu_hours_training_float8", figures.float8, "GPU hours",
                               peer="the same in bfloat16", peer_value=figures.training)
            )  # fmt: skip
        rows.append(
            less_is_better(f"{name}_steps", figures.steps, "steps", peer="published run", peer_value=steps)
        )
        pace = PUBLISHED_HOURS * steps / PUBLISHED_TOTAL
        for part in ("training", "update", "lost", "ahead", "online"):
            rows.append(
                less_is_better(
                    f"{name}_gpu_hours_{part}",
                    getattr(figures, part),
                    "GPU hours",
                    peer="published run, all of it (H100, by its share of the steps)",
                    peer_value=pace,
                )
            )
        for case, (turn, balanced) in figures.imbalance.items():
            metric = f"{name}_imbalance_{case}"
            rows.append(less_is_better(metric, balanced, "max/mean", peer="round-robin", peer_value=turn))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", type=Path, default=RECIPE)
    parser.add_argument("--table", type=Path, default=RESULTS / "train_step_h200.json")
    parser.add_argument("--clips", type=int, default=1_019_957)
    parser.add_argument("--more-clips", type=int, default=330_000)
    parser.add_argument("--durations", default="2-5:43.1,5-10:27.2,10-15.1:21.9,15.1-30:7.8")
    parser.add_argument("--sizes", default="1280x720:71.1,1920x1080:27.9,854x480:1.0")
    parser.add_argument("--fps", type=float, default=24.0)
    parser.add_argument("--gib", type=float, default=130.0, help="of a GPU's memory that may be used")
    parser.add_argument("--form", choices=("fast", "eager"), default="fast")
    parser.add_argument("--encoders", type=Path, default=RESULTS / "encoders_h200.json")
    parser.add_argument("--mixture", type=Path, default=RESULTS / "mixture_2xh200.json")
    parser.add_argument("--simulated-steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--out", default="project_speedrun")
    parser.add_argument(
        "--cost-table", type=Path, help="write what a clip of each bucket takes, for a recipe"
    )
    given = parser.parse_args()

    table: list[Row] = json.loads(given.table.read_text())
    steps = measured_steps(table)
    recipe = recipes.load(given.recipe)
    updates = [entry["value"] for entry in table if entry["metric"].endswith("_optimizer_ms")]
    state = memory.state_bytes(TRAINED, FROZEN, item_bytes=2, sharding="hybrid", ranks=8)
    machine = Machine(
        cost=fit(steps),
        update_seconds=statistics.median(updates) / 1e3,
        share=real_share(json.loads(given.mixture.read_text())),
        limit_bytes=given.gib * 2**30 - state,
        form=Form(fast=given.form == "fast"),
    )
    rates = Rates(json.loads(given.encoders.read_text()))
    print_measured(given, machine, table, rates)
    print_fit(machine, steps)

    if given.cost_table:
        blocks = "fast" if machine.form.fast else "eager"
        measured_on = f"{table[0]['hardware']}, {blocks} blocks"
        write_cost_table(given.cost_table, measured_on, *clip_costs(recipe, machine))

    float8_steps = measured_steps(table, "float8")
    in_float8 = dataclasses.replace(machine, cost=fit(float8_steps)) if float8_steps else None
    found = {stage.name: project(stage, recipe, machine, in_float8, rates, given) for stage in recipe.stages}
    keep(given.out, as_rows(found, f"{table[0]['hardware']}, projected"))


if __name__ == "__main__":
    main()
