"""Cost of each bucket alone: a micro-batch's time and memory, and an update's rest."""

import dataclasses
import gc
import json
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from trainer.data.stages import StageData
from trainer.distributed import memory, parallelize
from trainer.distributed.mesh import ALONE, World
from trainer.distributed.step_time import Work
from trainer.model.encoders.registry import video_encoder
from trainer.model.stdit import STDiT3, lengths_read
from trainer.recipe.recipe import TrainRecipe
from trainer.training.optim import adamw, schedule

MEAN_TEXT_TOKENS = 125  # of make_latents.py's captions
GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """Each bucket's seconds a micro-batch and peak memory, predicted and measured; and an update's rest."""

    hardware: str
    seconds: dict[str, float]
    predicted_gib: dict[str, float]
    peak_gib: dict[str, float]
    plans: dict[str, str]  # what its blocks do without, as text
    beside_seconds: float


def here() -> World:
    if not torch.cuda.is_available():
        return ALONE
    return World(rank=0, size=1, device=torch.device("cuda", 0))


def text_tokens_read(recipe: TrainRecipe, caption_dropout: float) -> int:
    """Return how many text tokens a clip reads in the mean: its caption's, or the null caption's."""
    own = min(MEAN_TEXT_TOKENS, recipe.model.model_max_length)
    kept, dropped = lengths_read(recipe.model, [own, own], [False, True])
    return round((1 - caption_dropout) * kept + caption_dropout * dropped)


def measure_alone(recipe: TrainRecipe, stage: StageData, repeats: int, hardware: str) -> Alone:
    """Time the parts of an update on this process's device, with the trainer's own layout and optimizer."""
    world = here()
    gpu = world.device.type == "cuda"
    model = STDiT3(recipe.model, recipe.seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():  # a fresh model's zeros would run faster
            if not name.endswith("_norm.weight"):
                weight.normal_(0, 0.02)
    dtype = recipe.dtype
    layout = parallelize.parallelize_model(
        model,
        recipe.parallel,
        world,
        dtype,
        fast=recipe.blocks == "fast",
        float8=recipe.precision == "float8",
    )
    masters = adamw.masters(model)
    form = memory.form_of(recipe.blocks, recipe.precision)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    frozen = sum(p.numel() for p in model.parameters()) - trained
    held = memory.state_bytes(trained, frozen, item_bytes=form.item_bytes)
    room = recipe.model.model_max_length
    text = text_tokens_read(recipe, stage.stage.caption_dropout)

    def mark() -> Any:
        """Return this moment of the device: as in a step nothing waits for it, so its clock is a step's."""
        if not gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end) / 1000 if gpu else end - begin)

    found = Alone(hardware=hardware, seconds={}, predicted_gib={}, peak_gib={}, plans={}, beside_seconds=0.0)
    beside: list[float] = []
    for cell in stage.plan.cells:
        bucket, clips = cell.bucket, cell.micro_batch_size
        shape = video_encoder(recipe.video_encoder).latent_shape(
            bucket.num_frames, bucket.height, bucket.width
        )
        x = torch.randn((clips, *shape), device=world.device)
        y = torch.randn(clips, 1, room, recipe.model.caption_channels, device=world.device, dtype=dtype)
        sizes = {"fps": 24.0, "height": float(bucket.height), "width": float(bucket.width)}
        reported = {name: torch.full((clips,), value, device=world.device) for name, value in sizes.items()}
        timestep = torch.full((clips,), 500.0, device=world.device)
        mask = (torch.arange(room, device=world.device) < text).expand(clips, -1)
        marks = []
        if gpu:
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        for _ in range(repeats + 3):
            began = mark()
            layout.begin_step()
            opened = mark()
            plan = layout.recompute.choose_plan(x, y)
            given = {"x": x, "timestep": timestep, "y": y, "mask": mask, **reported}
            given["text_lengths"] = (text,) * clips
            for chunk in plan.slices(clips):
                out = layout.compute(**{name: value[chunk] for name, value in given.items()})
                (out.float().square().mean() * 1e-3).backward()
            done = mark()
            layout.reduce_gradients()
            factor = adamw.clip_factor(adamw.gradient_norm(masters), 1.0)
            adamw.update(masters, schedule.OptimSpec(), lr=1e-6, ema_decay=0.99, clip_factor=factor)
            marks.append((began, opened, done, mark()))
        if gpu:
            torch.cuda.synchronize()
        times = [between(opened, done) for _, opened, done, _ in marks[3:]]
        beside += [between(began, opened) + between(done, ended) for began, opened, done, ended in marks[3:]]
        _, frames, rows, columns = shape
        patch = recipe.model.patch_size
        places = -(-rows // patch[1]) * -(-columns // patch[2])
        work = Work(clips=clips, frames=frames, places=places, text_tokens=room)
        found.seconds[cell.name] = statistics.median(times)
        found.plans[cell.name] = str(plan)
        found.predicted_gib[cell.name] = (held + memory.peak_bytes(recipe.model, work, form, plan)) / GIB
        found.peak_gib[cell.name] = torch.cuda.max_memory_allocated() / GIB if gpu else 0.0
        print(
            f"{cell.name:<28} {clips} clips, {plan}: "
            f"{1000 * found.seconds[cell.name]:.1f} ms, {found.peak_gib[cell.name]:.1f} GiB "
            f"(predicted {found.predicted_gib[cell.name]:.1f})",
            flush=True,
        )
    return dataclasses.replace(found, beside_seconds=statistics.median(beside))


def write_alone(alone: Alone, path: Path) -> None:
    """Keep what was measured, for a report of a run that was cut off."""
    path.write_text(json.dumps(dataclasses.asdict(alone), indent=1) + "\n")


def read_alone(path: Path) -> Alone:
    """Return what `write_alone` kept."""
    return Alone(**json.loads(path.read_text()))
