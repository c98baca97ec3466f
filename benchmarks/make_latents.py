"""Latent shards of made-up clips, without a video, an encoder or a decoder, and a recipe to train on them.

    python benchmarks/make_latents.py OUT [--clips 240] [--recipe RECIPE.json] [--seed 0] [--poison 41:43]
    python -m trainer OUT/recipe.json

OUT/latents is a folder as `trainer.data.latents.command` writes it, for the buckets of the recipe's first
stage,
with as many clips in each. Without --recipe: STDiT3-XL/2 in bfloat16 on latents of the published VAE and
features of T5-XXL, mixed over images of 256 pixels, 144p x 51, 240p x 51 and x 102, and 360p x 51 frames.
Captions have the lengths of long generated ones (log-normal, 110 tokens in the middle, at most 300). It
imports what training itself does: torch, numpy, pyarrow and pydantic.

What the clips show can be learnt. Each has one of sixteen patterns, smooth in time and space, with noise of a
third of its size; the pattern's number is a direction of the text features. With --poison the latents of the
clips that the first stage's data steps 41 to 43 read are too large by --poison-scale: a fault for the guard.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from trainer.data import stages as data_stages
from trainer.data.latents import build
from trainer.data.latents import request as latents_request
from trainer.data.latents.precompute import request_of
from trainer.data.latents.samples import View, latent_sample, text_sample
from trainer.data.latents.write import write_shard
from trainer.model import rng
from trainer.model.encoders.precision import DTYPES
from trainer.model.encoders.registry import text_encoder, video_encoder
from trainer.recipe import recipe as recipes
from trainer.recipe.recipe import TrainRecipe
from vidcurate.errors import InputError, VidcurateError
from vidcurate.sampler import order
from vidcurate.sampler.bucket_shapes import Bucket
from vidcurate.sampler.buckets import all_buckets
from vidcurate.shards.index import Index
from vidcurate.shards.index_file import write_index

CLIPS = 240  # so that each bucket of XL_2 has a micro-batch
NUM_PATTERNS = 16
NOISE = 0.3
FPS = 24.0
ASPECT = 9 / 16
# T5's tokens of a caption as a language model writes it: the median, and the spread of the logarithm.
MEDIAN_TOKENS, LOG_SPREAD, LEAST_TOKENS = 110, 0.5, 4

XL_2: dict[str, Any] = {
    "name": "latents-xl2",
    "model": {"freeze_y_embedder": True},
    "video_encoder": {"kind": "vae"},
    "text_encoder": {"kind": "t5"},
    "encoded": {"latent_dtype": "bfloat16", "text_dtype": "bfloat16"},
    "precision": "bfloat16",
    "ema_decay": 0.99,
    "stages": [
        {
            "name": "mixed",
            "data": {
                "micro_batches_per_step": 2,
                "buckets": {
                    "table": {
                        "144p": {"51": [1.0, 8]},
                        "256": {"1": [1.0, 32]},
                        "240p": {"51": [1.0, 4], "102": [1.0, 2]},
                        "360p": {"51": [1.0, 2]},
                    }
                },
            },
            "steps": 200,
            "optim": {"lr": 1e-4, "warmup_steps": 20, "weight_decay": 0.01, "eps": 1e-15},
            "mask_ratios": {"image_head": 0.1, "random": 0.1},
            "checkpoint_every": 100,
            "log_every": 10,
        }
    ],
    "parallel": {"recompute_blocks": 56},
}


def buckets_of(recipe: TrainRecipe) -> list[Bucket]:
    """Return one bucket for each resolution and length of the first stage: with the aspect nearest 9:16."""
    chosen: dict[tuple[str, int], Bucket] = {}
    for bucket in all_buckets(recipe.stages[0].data.buckets):
        key = (bucket.resolution, bucket.num_frames)
        apart = [abs(one.height / one.width - ASPECT) for one in (bucket, chosen.get(key, bucket))]
        if key not in chosen or apart[0] < apart[1]:
            chosen[key] = bucket
    return list(chosen.values())


def write_clips(folder: Path, buckets: list[Bucket], count: int) -> None:
    """Write the index of `count` clips, an equal share of the size of each bucket; there are no videos.

    Raises InputError for a folder that is there.
    """
    if folder.exists():
        raise InputError(f"{folder} is there already; name another OUT, or delete it.")
    rows: dict[str, list[Any]] = {}
    for number in range(count):
        bucket = buckets[number % len(buckets)]
        key = f"made-{number:06d}"
        row = {
            "sample_key": key,
            "clip_id": key,
            "source_id": key,
            "source_dataset": f"made-{bucket.resolution}",
            "fold": "train",
            "level": 1,
            "caption": f"pattern {number % NUM_PATTERNS}",
            "shard": "none.tar",
            "json_offset": number,
            "json_size": 0,
            "video_offset": number,
            "video_size": 1,
            "video_extension": "none",
            "video_crc32c": 0,
            "json_crc32c": 0,
            "width": bucket.width,
            "height": bucket.height,
            "fps": FPS,
            "num_frames": bucket.num_source_frames,
            "duration_seconds": bucket.num_source_frames / FPS,
            "noun_count": None,
        }
        for column, value in row.items():
            rows.setdefault(column, []).append(value)
    folder.mkdir(parents=True)
    (folder / "none.tar").write_bytes(bytes(count))  # the clips' bytes by the index, which nothing reads
    write_index(folder, rows)


def pattern(number: int, shape: tuple[int, int, int, int], seed: int) -> Tensor:
    """Return pattern `number` [C, T, H, W] of unit size: a few numbers, drawn out over time and space."""
    coarse = rng.generator(seed, "init", clip_id=f"pattern {number}").standard_normal(
        (shape[0], 4, 6, 8), dtype=np.float32
    )
    size = shape[1:]
    drawn = torch.nn.functional.interpolate(
        torch.from_numpy(coarse)[None], size=size, mode="trilinear", align_corners=True
    )
    return drawn[0] / drawn.std()


def latent(number: int, clip_id: str, view: int, shape: tuple[int, int, int, int], seed: int) -> Tensor:
    """Return the latent of a view of a clip with this pattern."""
    draws = rng.normal(seed, "init", view, [clip_id], shape)[0]
    return (1 - NOISE**2) ** 0.5 * pattern(number, shape, seed) + NOISE * draws


def features(number: int, clip_id: str, most: int, channels: int, seed: int) -> Tensor:
    """Return the features [L, C] of a caption that names the pattern, L as captions are long."""
    source = rng.generator(seed, "init", clip_id=f"text {clip_id}")
    length = int(np.exp(np.log(MEDIAN_TOKENS) + LOG_SPREAD * source.standard_normal()))
    length = min(most, max(min(LEAST_TOKENS, most), length))
    topic = rng.generator(seed, "init", clip_id=f"topic {number}").standard_normal(channels, dtype=np.float32)
    return torch.from_numpy(0.2 * topic + 0.1 * source.standard_normal((length, channels), dtype=np.float32))


def clips_of_steps(recipe: TrainRecipe, index: Index, first: int, last: int) -> set[str]:
    """Return the clips that data steps `first` to `last` of the first stage read, counted from 1."""
    plan = data_stages.stage_plan(index, recipe.stages[0].data, recipe.seed)
    parts = [part for step in range(first, last + 1) for part in order.step_micro_batches(plan, step - 1)]
    return {index.word("clip_id", row) for part in parts for row in part.rows.tolist()}


def make(
    recipe: TrainRecipe,
    out: Path,
    count: int,
    seed: int = 0,
    poison: tuple[int, int] | None = None,
    poison_scale: float = 30.0,
) -> TrainRecipe:
    """Write OUT/latents for `count` clips and return the recipe that trains on them.

    The latents of the clips of the data steps `poison` are multiplied with `poison_scale`.
    Raises what writing latents raises; InputError when a clip fits none of the buckets.
    """
    clips = out / "clips"
    write_clips(clips, buckets_of(recipe), count)
    first = recipe.stages[0]
    spec = first.data.model_copy(update={"shards": clips, "latents": None, "views": first.data.views or 1})
    stage = first.model_copy(update={"data": spec})
    request = request_of(recipe.model_copy(update={"stages": (stage,), "validation": None}))
    video, text = video_encoder(recipe.video_encoder), text_encoder(recipe.text_encoder)
    channels = recipe.model.hidden_size if recipe.model.skip_y_embedder else text.caption_channels
    kept = recipe.encoded
    index, folder = request.index, out / "latents"
    digests = {"video": "made", "text": "made", "projection": None}
    build.begin(folder, index, request.shards, request.identity, digests)
    bad = clips_of_steps(recipe, index, *poison) if poison else set()
    for shard in request.shards:
        samples = []
        for row in shard.rows.tolist():
            clip_id = index.word("clip_id", row)
            number = int(clip_id.removeprefix("made-")) % NUM_PATTERNS
            if shard.bucket is None:
                array = features(number, clip_id, text.model_max_length, channels, seed)
                array = array.to(DTYPES[kept.text_dtype])
                names = request.captions
                captions = [index.word("caption", row)] * len(names)
                samples.append(text_sample(index, row, names, captions, [array] * len(names)))
                continue
            bucket = shard.bucket
            shape = video.latent_shape(bucket.num_frames, bucket.height, bucket.width)
            dtype, scale = DTYPES[kept.latent_dtype], poison_scale if clip_id in bad else 1.0
            views = [
                View(
                    0,
                    (scale * latent(number, clip_id, view, shape, seed)).to(dtype),
                    torch.full(shape, 1e-3, dtype=dtype)
                    if latents_request.samples_posterior(recipe.video_encoder)
                    else None,
                )
                for view in range(shard.num_views)
            ]
            samples.append(latent_sample(index, row, bucket, shape, views))
        write_shard(folder, shard.name, shard.table, samples, {"digest": shard.digest})
    build.finish(folder, request.shards)
    trained = spec.model_copy(update={"shards": None, "latents": folder})
    return recipe.model_copy(
        update={"stages": (first.model_copy(update={"data": trained}), *recipe.stages[1:])}
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Write latent shards of made-up clips, and a recipe for them."
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="a folder that is not there yet")
    parser.add_argument(
        "--clips", type=int, default=CLIPS, help=f"of all buckets together (default: {CLIPS})"
    )
    parser.add_argument("--recipe", type=Path, help="a training recipe, instead of XL/2 in mixed buckets")
    parser.add_argument("--seed", type=int, default=0, help="of what the clips show")
    parser.add_argument("--poison", metavar="A:B", help="data steps, from 1, whose clips are made too large")
    parser.add_argument("--poison-scale", type=float, default=30.0, help="by this (default: 30)")
    given = parser.parse_args()
    if given.recipe:
        recipe = recipes.load(given.recipe)
    else:
        # The stage names its data so that the recipe is one; `make` sets where they are.
        made = json.loads(json.dumps(XL_2)) | {"output": str(given.out / "run")}
        made["stages"][0]["data"]["shards"] = str(given.out / "clips")
        recipe = TrainRecipe.model_validate_json(json.dumps(made))
    window = tuple(int(word) for word in given.poison.split(":")) if given.poison else None
    poison = (window[0], window[-1]) if window else None
    recipe = make(recipe, given.out, given.clips, given.seed, poison, given.poison_scale)
    path = given.out / "recipe.json"
    path.write_text(json.dumps(recipes.to_json(recipe), indent=1) + "\n", encoding="utf-8")
    (stage, *_) = data_stages.open_stages(recipe)
    size = latents_request.bytes_on_disk(stage.folder, stage.plan, stage.stage.data) if stage.folder else {}
    for cell in stage.plan.cells:
        print(f"{cell.name:<32} {len(cell.rows):>6} clips, {cell.micro_batch_size} a micro-batch")
    print(f"{sum(size.values()) / 1e9:.3g} GB; train with: python -m trainer {path}")


if __name__ == "__main__":
    try:
        main()
    except VidcurateError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
