"""Costs of the projected speedrun, in seconds: micro-batches from measured steps, encoding."""

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from encoder_cost import Rates
from rows import Row
from step_shapes import READ_TOKENS, SHAPES, TEXT_TOKENS, in_parts

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from trainer.distributed import memory
from trainer.distributed.memory import Form
from trainer.distributed.step_time import Cost, Measured, Work, fit
from trainer.model.encoders.registry import video_encoder
from trainer.model.flops import Shape
from trainer.recipe.recipe import TrainRecipe
from vidcurate.sampler import buckets
from vidcurate.sampler import plan as sampler_plan
from vidcurate.sampler.bucket_shapes import Bucket

FORMS = {  # train_step.py's form: the projection's name, whether it is of READ_TOKENS
    "float8": ("float8", False),
    "packed": ("captions", True),
    "float8_packed": ("float8_captions", True),
}
LEAN_COST = 0.02  # of a block's time, what one takes longer that is lean; one H200, 480p and 720p x 51 frames


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a GPU does and holds: `seconds` of a micro-batch, of an update, and bytes beside the weights.

    `share` is what a real run reaches of the two; `text_tokens` those that each clip of `cost` reads.
    """

    cost: Cost
    update_seconds: float
    share: float
    limit_bytes: float
    form: Form
    text_tokens: int = TEXT_TOKENS


def measured_steps(table: Sequence[Row], form: str = "") -> list[Measured]:
    """Return the measured steps with their micro-batches, as benchmarks/train_step.py made them.

    `form`: one of FORMS for its rows; "": those of the fastest form in the model's precision. Nothing unless
    every video shape was measured.
    """
    found = {entry["metric"]: entry for entry in table}
    steps = []
    text_tokens = READ_TOKENS if form in FORMS and FORMS[form][1] else TEXT_TOKENS
    for name, shape in SHAPES.items():
        prefix = f"{name}_{form}_" if form else f"{name}_"
        forward, backward = found.get(f"{prefix}forward_ms"), found.get(f"{prefix}backward_ms")
        if not forward or not backward:
            continue
        is_fast = bool(form) or "ours is fast" in forward["peer"]
        size = shape.fast_micro_batch or shape.micro_batch if is_fast else shape.micro_batch
        is_lean = is_fast and shape.fast_lean
        factor = 1 / (1 + LEAN_COST) / 1e3 if is_lean else 1e-3  # as if no block were lean
        places = shape.tokens // shape.frames
        steps.append(
            Measured(
                name=name,
                works=tuple(
                    Work(clips=count, frames=shape.frames, places=places, text_tokens=text_tokens)
                    for count in in_parts(shape.batch, size)
                ),
                forward=forward["value"] * factor,
                backward=backward["value"] * factor,
                recomputed=0 if is_lean else shape.recomputed_blocks / 56,
            )
        )
    videos = {name for name, shape in SHAPES.items() if shape.frames > 1}
    return steps if videos <= {step.name for step in steps} else []


def machine_of(plain: Machine, table: Sequence[Row], form: str, share: float) -> Machine | None:
    """Return `plain` in one of FORMS, with what a real run reaches in it; None where it was not measured."""
    steps = measured_steps(table, form)
    if not steps:
        return None
    is_float8, text_tokens = form.startswith("float8"), READ_TOKENS if FORMS[form][1] else TEXT_TOKENS
    return dataclasses.replace(
        plain, cost=fit(steps), form=Form(fast=True, float8=is_float8), share=share, text_tokens=text_tokens
    )


def tokens_read(caption: float, dropout: float, more: float, more_share: float) -> float:
    """Return the caption tokens that a clip reads in the mean, no fewer than the measured steps read.

    `caption`: of a caption; `dropout`: the share of clips that read the null caption; `more`: of the captions
    of `more_share` of the clips.
    """
    mean = (1 - more_share) * caption + more_share * more
    return max(READ_TOKENS, (1 - dropout) * mean + dropout * TEXT_TOKENS)


def between(whole: float, packed: float, tokens: float) -> float:
    """Return the hours at `tokens` read of each caption: a micro-batch's time is linear in them."""
    return packed + (whole - packed) * (tokens - READ_TOKENS) / (TEXT_TOKENS - READ_TOKENS)


def clip_costs(recipe: TrainRecipe, machine: Machine) -> tuple[list[tuple[str, int, float]], float]:
    """Return resolution, frames and seconds of a clip of each bucket of a recipe, and of a micro-batch."""
    of_all = {bucket for stage in recipe.stages for bucket in buckets.all_buckets(stage.data.buckets)}
    found = [(bucket, machine.cost.of_clips(work_of(recipe, bucket, 1))) for bucket in of_all]
    clips = [(bucket.resolution, bucket.num_frames, seconds) for bucket, (seconds, _) in found]
    return clips, found[0][1][1]


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
    """How a published micro-batch is run: clips of each chunk, shares of blocks lean, recomputed."""

    chunks: tuple[int, ...]
    lean: float
    recomputed: float
    seconds: float


def run_of(recipe: TrainRecipe, machine: Machine, bucket: Bucket) -> Run:
    """Return how the trainer runs a micro-batch of a bucket so that it fits."""
    whole = work_of(recipe, bucket, bucket.micro_batch_size)
    plan = memory.least_plan(recipe.model, whole, machine.form, machine.limit_bytes)
    if plan is None:
        raise SystemExit(f"{bucket.name}: one clip does not fit with its blocks recomputed; raise --gib.")
    blocks = 2 * recipe.model.depth
    lean, again = plan.lean_blocks / blocks, plan.recompute_blocks / blocks
    chunks = tuple(chunk.stop - chunk.start for chunk in plan.slices(whole.clips))
    works = [dataclasses.replace(whole, clips=size, text_tokens=machine.text_tokens) for size in chunks]
    seconds = sum(
        machine.cost.seconds(work, again) + LEAN_COST * lean * machine.cost.seconds(work) for work in works
    )
    return Run(chunks=chunks, lean=lean, recomputed=again, seconds=seconds)


def encoder_seconds(plan: sampler_plan.Plan, rates: Rates) -> list[float]:
    """Return the seconds that both encoders take for a clip of each cell."""
    shapes = [(cell.bucket.num_frames, cell.bucket.height, cell.bucket.width) for cell in plan.cells]
    return [rates.clip_seconds(*shape) for shape in shapes]
