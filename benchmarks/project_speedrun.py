"""Projection of the published speedrun from measured steps: GPU hours, rank balance.

    python benchmarks/project_speedrun.py [--table benchmarks/results/train_step_h200.json]

The clips are made up: as many as the published data sets have, their lengths and sizes drawn from a given
distribution (--durations, --sizes, --fps). All else is the real thing: the bucket tables of
recipes/speedrun.yaml, the assignment to buckets, the order of micro-batches. A micro-batch costs what
`trainer.distributed.step_time` fits to the measured steps; one that the memory does not hold is run as the
trainer does, in chunks, with lean blocks, or recomputed ones where a single clip does not fit
(`trainer.distributed.memory`). `speedrun_costs` has these costs, `speedrun_rows` the rows. Encoding costs its
FLOPs by torch's counter at the rates that benchmarks/encoders.py kept up (`encoder_cost`). A real run
reaches a share of what its buckets and updates alone predict, which benchmarks/mixture.py measured: all hours
of training are divided by it; which of its runs counts, `real_share` says. What was measured is printed with
its file, apart from what is assumed of data that nobody here has.

Every figure but those of `captions` counts 300 tokens to each caption, which no run needs. With captions by
their true lengths, hours are interpolated between the steps measured with 300 tokens and those measured with
READ_TOKENS, at the tokens that a clip reads: a mean of kept captions (benchmarks/caption_lengths.py), or
--more-caption-tokens for the clips that only stage 3 has, a dropped caption the null caption's 300. A mean
below READ_TOKENS counts as READ_TOKENS: nothing is extrapolated.

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
from pathlib import Path

from caption_lengths import mean_read
from cost_table import write_cost_table
from encoder_cost import Rates, clip_flops
from made_up_clips import made_up_plan
from rank_balance import imbalance, in_turn, larger
from real_share import most_gpus, share_of
from rows import RESULTS, Row, card, keep
from speedrun_costs import (
    FORMS,
    LEAN_COST,
    Machine,
    Run,
    between,
    clip_costs,
    encoder_seconds,
    latent,
    machine_of,
    measured_steps,
    run_of,
    tokens_read,
    work_of,
)
from speedrun_rows import (
    NAMES,
    PUBLISHED_HOURS,
    PUBLISHED_STEPS,
    PUBLISHED_TOTAL,
    SPREADS,
    Figures,
    as_rows,
)
from step_shapes import READ_TOKENS, TEXT_TOKENS

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from trainer.distributed import memory
from trainer.distributed.memory import Form
from trainer.distributed.step_time import TERMS, Measured, errors, fit
from trainer.model.flops import forward_flops
from trainer.recipe import recipe as recipes
from trainer.recipe.recipe import Stage, TrainRecipe
from vidcurate.sampler import order
from vidcurate.sampler.bucket_shapes import Bucket

RECIPE = Path(__file__).resolve().parents[1] / "recipes/speedrun.yaml"
TRAINED, FROZEN = 1_201_595_936, 6_048_000
RANKS = (8, 192, 1024)


# ── the report ──────────────────────────────────────────────────────────────────────────────────────────────


def print_measured(
    given: argparse.Namespace,
    machine: Machine,
    table: Sequence[Row],
    rates: Rates,
    others: dict[str, Machine],
    caption: float,
) -> None:
    """Print what was measured, with its file, then what is assumed."""
    hardware = table[0]["hardware"]
    peers = {entry["peer"] for entry in table if "ours is " in entry["peer"]}
    forms = ", ".join(sorted(peer.partition("ours is ")[2].removesuffix(")") for peer in peers))
    speeds = ", ".join(f"{rate / 1e12:.0f}" for _, rate in rates.points)
    of_forms = ", ".join(f"{form} {one.share:.3f}" for form, one in others.items()) or "none"
    pixel = clip_flops(51, 480, 848) / (51 * 480 * 848) / 1e6
    print(f"""Measured
  micro-batches         {given.table.name}: {hardware}, blocks {forms}, weights and data random
  update                {given.table.name}: {machine.update_seconds * 1e3:.0f} ms a step
  real run              {given.mixture.name}: {machine.share:.3f} of what micro-batches and updates predict
  other forms           {given.table.name}, with the share of their real run: {of_forms}
  captions              {given.captions.name}: {caption:.0f} tokens in the mean ({given.caption_name})
  VAE                   {given.encoders.name}: {speeds} TFLOP/s kept up, from the smallest frame on
  VAE's FLOPs           torch's counter, 51 x 480 x 848: {pixel:.2f} MFLOP a pixel
  T5                    {given.encoders.name}: {1 / rates.caption_seconds:.0f} captions/s
  lean blocks           {LEAN_COST:.0%} longer: one H200, 480p and 720p x 51 frames

Assumed
  data                  {given.clips:,} clips in stages 1 and 2, {given.more_clips:,} more in stage 3
  seconds of a clip     {given.durations} (from-to:percent, even within a class), {given.fps:g} frames/s
  pixels of a clip      {given.sizes}
  caption               {TEXT_TOKENS} tokens for every clip, as measured; fast blocks compute the true ones
  captions' form        those of stages 1 and 2 are as long as the ones counted, the clips that are more in
                        stage 3 have {given.more_caption_tokens} tokens; a clip reads {READ_TOKENS} or more
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
    others: dict[str, Machine],
    rates: Rates,
    caption: float,
    given: argparse.Namespace,
) -> Figures:
    """Print what a stage costs and return it; `others`: the forms of the step, by their names in FORMS."""
    more = given.more_clips if stage.name == "stage-3" else 0
    clips = given.clips + more
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
    read = tokens_read(caption, stage.caption_dropout, given.more_caption_tokens, more / clips)
    forms: dict[str, tuple[float, float]] = {}
    for form, one in others.items():
        costs = (run_of(recipe, one, cell.bucket).seconds for cell in plan.cells)
        hours = sum(count * seconds for count, seconds in zip(counts, costs, strict=True)) / 3600
        name, is_packed = FORMS[form]
        if is_packed:
            whole = forms["float8"][0] if form.startswith("float8") else training
            hours = between(whole, hours, read)
        forms[name] = hours, one.share
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
            f"clips in {len(run.chunks)} chunks, {run.seconds:6.2f} s{again}"
        )
    figures = Figures(
        steps=num_steps,
        training=training,
        update=update,
        ahead=ahead,
        online=online,
        imbalance=simulate(stage, clips, recipe, runs, given),
        share=machine.share,
        read=read,
        forms=forms,
    )
    waiting = ", ".join(
        f"{training * (figures.imbalance[case][1] - 1):,.0f} on {spread.replace('_', ' ')}"
        for spread, case in SPREADS.items()
    )
    print(
        f"  GPU hours: {training:,.0f} of micro-batches, "
        f"{update:,.0f} of updates, {figures.lost:,.0f} lost "
        f"in a real run; of waiting {waiting}; of encoding {ahead:,.0f} ahead, {online:,.0f} online"
    )
    for name, (hours, _) in forms.items():
        tokens = f", {read:.0f} tokens read" if name.endswith("captions") else ""
        print(f"    of micro-batches, {NAMES[name][0]}{tokens}: {hours:,.0f}")
    print(flush=True)
    return figures


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
    parser.add_argument("--mixture", type=Path, help="instead of the kept one that counts, for all forms")
    parser.add_argument("--captions", type=Path, default=RESULTS / "caption_lengths.json")
    parser.add_argument("--caption-name", default="dense", help="whose mean counts")
    parser.add_argument("--more-caption-tokens", type=float, default=TEXT_TOKENS)
    parser.add_argument("--simulated-steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--out", default="project_speedrun")
    parser.add_argument(
        "--cost-table", type=Path, help="write what a clip of each bucket takes, for a recipe"
    )
    given = parser.parse_args()
    table: list[Row] = json.loads(given.table.read_text())
    model = card(table[0]["hardware"])
    given_mixture, given.mixture = given.mixture, given.mixture or most_gpus("bfloat16", model)
    steps = measured_steps(table)
    recipe = recipes.load(given.recipe)
    updates = [entry["value"] for entry in table if entry["metric"].endswith("_optimizer_ms")]
    state = memory.state_bytes(TRAINED, FROZEN, item_bytes=2, sharding="hybrid", ranks=8)
    machine = Machine(
        cost=fit(steps),
        update_seconds=statistics.median(updates) / 1e3,
        share=share_of(given.mixture)[1],
        limit_bytes=given.gib * 2**30 - state,
        form=Form(fast=given.form == "fast"),
    )
    rates = Rates(json.loads(given.encoders.read_text()))
    caption = mean_read(json.loads(given.captions.read_text()), given.caption_name)
    shares = {
        precision: share_of(given_mixture or most_gpus(precision, model))[1]
        for precision in ("bfloat16", "float8")
    }
    made = {
        form: machine_of(machine, table, form, shares["float8" if form.startswith("float8") else "bfloat16"])
        for form in FORMS
    }
    others = {form: one for form, one in made.items() if one}
    print_measured(given, machine, table, rates, others, caption)
    print_fit(machine, steps)

    if given.cost_table:
        blocks = "fast" if machine.form.fast else "eager"
        measured_on = f"{table[0]['hardware']}, {blocks} blocks"
        write_cost_table(given.cost_table, measured_on, *clip_costs(recipe, machine))

    found = {
        stage.name: project(stage, recipe, machine, others, rates, caption, given) for stage in recipe.stages
    }
    keep(given.out, as_rows(found, f"{table[0]['hardware']}, projected"))


if __name__ == "__main__":
    main()
