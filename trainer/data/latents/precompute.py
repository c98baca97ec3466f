"""Precompute latents and text features of a recipe's clips, into shards.

Clips, shapes and views come from the same plan as in online training. Each clip is encoded alone, as online,
so its bytes depend on nothing else. Any number of processes may share the work, one shard each at a time.
"""

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import vidcurate.loader.torch
from trainer.data import stages as data_stages
from trainer.data.latents import build, decode_clips
from trainer.data.latents import request as latents_request
from trainer.data.latents.folder import Shape, numbers, open_folder, shape_name, shape_of
from trainer.data.latents.plan import Identity, PlannedShard, Wanted, plan_shards
from trainer.data.latents.samples import View, latent_sample, text_sample
from trainer.data.latents.write import BUILD, Sample, write_shard
from trainer.data.model_inputs import Encoders, weights_digest
from trainer.model.encoders.caption_projection import load_projection
from trainer.model.encoders.registry import text_encoder, video_encoder
from trainer.model.encoders.t5 import T5
from trainer.model.encoders.vae import VideoVae
from trainer.recipe.encoding import Encoding
from trainer.recipe.recipe import TrainRecipe
from vidcurate.errors import InputError, MediaError, RecipeError
from vidcurate.loader import clip_view
from vidcurate.loader.decode.decode_clip import DecodeTask, caption_of
from vidcurate.loader.decode.worker_pool import DecodePool
from vidcurate.loader.decode_tasks import decode_task, num_starts
from vidcurate.loader.fallback_clips import Failures
from vidcurate.loader.remote_clips import FetchingPool
from vidcurate.loader.spec import LoaderSpec
from vidcurate.shards.index import Index, read_index
from vidcurate.shards.read_clip import read_clip_facts

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True)
class Request:
    """The clips of these stages to encode, in shards."""

    encoding: Encoding
    loader: LoaderSpec
    stages: tuple[str, ...]
    index: Index
    captions: tuple[str, ...]
    wanted: dict[Shape, Wanted]
    identity: Identity
    shards: tuple[PlannedShard, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of an encoding. `is_finished`: the folder is complete; otherwise other parts are missing."""

    out: str
    clips: int
    latents: int
    failed: int
    tokens: int
    shards: int
    shards_written: int
    size_bytes: int
    is_finished: bool
    up_to_date: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def request_of(recipe: TrainRecipe, names: Sequence[str] = ()) -> Request:
    """Return what these stages (none: all) need encoded.

    Raises InputError for an unknown stage or stages with different shards, RecipeError for a stage without a
    fixed number of views, ShardError and InputError as the loader does.
    """
    known = [stage.name for stage in recipe.stages]
    for name in names:
        if name not in known:
            raise InputError(f"--stage {name}: the recipe's stages are {', '.join(known)}.")
    chosen = [(number, stage) for number, stage in enumerate(recipe.stages) if stage.name in (names or known)]
    for number, stage in chosen:
        if stage.data.shards is None:
            raise RecipeError(
                f"stages.{number}.data.shards is not set, but encoding reads the clips. Set it."
            )
        if stage.data.views is None:
            raise RecipeError(
                f"stages.{number}.data.views is null: a new start frame in every epoch cannot be "
                f"precomputed. Set views, for encoding and for training: --set stages.{number}.data.views=1"
            )
    specs = [stage.data for _, stage in chosen]
    if recipe.validation:
        specs += [data_stages.validation_spec(recipe.validation, stage.data) for _, stage in chosen]
    for key, kinds in (
        ("shards", {str(spec.shards) for spec in specs}),
        ("captions", {", ".join(spec.caption_names) for spec in specs}),
    ):
        if len(kinds) > 1:
            raise InputError(
                f"the stages have different {key} ({'; '.join(sorted(kinds))}); encode each group into a "
                "separate folder: --stage NAME."
            )
    assert specs[0].shards is not None
    index = read_index(specs[0].shards, remote=recipe.loader)
    wanted: dict[Shape, Wanted] = {}
    for spec in specs:
        for cell in data_stages.stage_plan(index, spec, recipe.seed).cells:
            shape = shape_of(cell.bucket)
            before = wanted.get(shape)
            rows = np.union1d(before.rows, cell.rows) if before else np.sort(cell.rows)
            count = max(spec.views or 1, before.num_views if before else 1)
            bucket = before.bucket if before else cell.bucket
            wanted[shape] = Wanted(bucket=bucket, rows=rows, num_views=count)
    encoding = recipe.encoding
    identity = latents_request.identity(encoding, index, specs[0].caption_names)
    return Request(
        encoding=encoding,
        loader=recipe.loader,
        stages=tuple(stage.name for _, stage in chosen),
        index=index,
        captions=specs[0].caption_names,
        wanted=wanted,
        identity=identity,
        shards=plan_shards(
            wanted,
            identity,
            latent_bytes={
                shape: latents_request.latent_bytes(encoding, part.bucket) for shape, part in wanted.items()
            },
            text_bytes=latents_request.text_bytes(encoding),
            shard_bytes=recipe.encoded.shard_bytes,
        ),
    )


def forecast(request: Request) -> dict[str, Any]:
    """Return what encoding will write: clips and bytes per shape, and of texts.

    The bytes of latents are exact; those of texts are an upper bound.
    """
    encoding = request.encoding
    shapes = [
        {
            "shape": shape_name(shape),
            "clips": len(part.rows),
            "views": part.num_views,
            "bytes_per_view": latents_request.latent_bytes(encoding, part.bucket),
            "bytes": len(part.rows) * part.num_views * latents_request.latent_bytes(encoding, part.bucket),
        }
        for shape, part in sorted(request.wanted.items())
    ]
    texts = sum(shard.num_units for shard in request.shards if shard.bucket is None)
    return {
        "stages": list(request.stages),
        "clips": texts // len(request.captions),
        "shapes": shapes,
        "latent_bytes": sum(line["bytes"] for line in shapes),
        "texts": texts,
        "text_bytes_at_most": texts * latents_request.text_bytes(encoding),
        "shards": len(request.shards),
    }


# ── what is encoded ─────────────────────────────────────────────────────────────────────────────────────────


def _latent_samples(
    request: Request,
    shard: PlannedShard,
    encoders: Encoders,
    pool: DecodePool | FetchingPool | None,
    failures: Failures,
) -> Iterator[Sample]:
    index, bucket, spec = request.index, shard.bucket, request.loader
    assert bucket is not None
    device = _device()
    shape = video_encoder(request.encoding.video).latent_shape(bucket.num_frames, bucket.height, bucket.width)

    def tasks() -> Iterator[DecodeTask]:
        for row, view in itertools.product(shard.rows.tolist(), range(shard.num_views)):
            starts = num_starts(index, row, bucket)
            first = clip_view.first_frame(index.word("clip_id", row), view, starts)
            yield decode_task(index, row, bucket, first_frame=first)

    clip_bytes = 3 * bucket.num_frames * bucket.height * bucket.width
    most_ahead = max(2 * spec.num_workers, min(64, spec.prefetch_bytes // clip_bytes))
    found = zip(tasks(), decode_clips.frames(index, tasks(), pool, most_ahead), strict=True)
    for row in shard.rows.tolist():
        seen: list[View] = []
        for task, frames in itertools.islice(found, shard.num_views):
            failures.add_read(1)
            if isinstance(frames, MediaError):
                failures.add_failed(task.clip_id, frames.kind)
                seen.append(View(task.first_frame, failure=frames))
                continue
            mean, variance = encoders.latent(vidcurate.loader.torch.as_pixels(frames, device))
            seen.append(View(task.first_frame, mean[0], variance[0] if variance is not None else None))
        yield latent_sample(index, row, bucket, shape, seen)


def _text_samples(request: Request, shard: PlannedShard, encoders: Encoders) -> Iterator[Sample]:
    for row in shard.rows.tolist():
        said = read_clip_facts(request.index, row)
        captions = [caption_of(said, name) for name in request.captions]
        features = [encoders.features(caption) for caption in captions]
        yield text_sample(request.index, row, request.captions, captions, features)


# ── the act ─────────────────────────────────────────────────────────────────────────────────────────────────


def _device() -> torch.device:
    """Return this process's GPU (LOCAL_RANK), or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    local = os.environ.get("LOCAL_RANK", "0")
    return torch.device("cuda", int(local) % torch.cuda.device_count() if local.isdigit() else 0)


def _encoders(encoding: Encoding, weights: str | None) -> tuple[Encoders, dict[str, str | None]]:
    """Return the encoders, and the digests of their weights by name (None without weights)."""
    device = _device()
    projection = None
    if encoding.model.skip_y_embedder:
        if weights is None:
            raise InputError(
                "model.skip_y_embedder is true: the folder stores projected captions. Give "
                "the weights that training starts from: --ckpt-path PATH."
            )
        projection = load_projection(weights, key="--ckpt-path").float().to(device)
    video, text = video_encoder(encoding.video), text_encoder(encoding.text, device)
    encoders = Encoders(
        video=video,
        text=text,
        kept=encoding.kept,
        samples=latents_request.samples_posterior(encoding.video),
        projection=projection,
    )
    return encoders, {
        "video": weights_digest(video.vae(device)) if isinstance(video, VideoVae) else None,
        "text": weights_digest(text.loaded()[1]) if isinstance(text, T5) else None,
        "projection": weights_digest(projection) if projection is not None else None,
    }


def encode_ahead(
    request: Request,
    out: Path,
    *,
    part: tuple[int, int] = (1, 1),
    weights: str | None = None,
    progress: Progress = lambda done, total, unit: None,
) -> Outcome:
    """Write the request's latents and texts into `out`; part i of n (from 1) writes every n-th shard.

    The bytes do not depend on the parts, nor on kills and restarts. The last part writes the tables.
    `weights`: source of a frozen caption projection. Raises StageError if the folder holds something else or
    another process encodes this part, InputError, StorageError, ShardError, and VidcurateError if too many
    clips fail.
    """
    number, count = part
    if not 1 <= number <= count:
        raise InputError(f"--part {number}/{count}: it must lie in 1/{count} to {count}/{count}.")
    if build.is_finished(out, request.shards, request.identity):
        return _outcome(out, written=0, is_finished=True, up_to_date=True)
    encoders, digests = _encoders(request.encoding, weights)
    build.begin(out, request.index, request.shards, request.identity, digests)
    mine = request.shards[number - 1 :: count]
    with ExitStack() as stack:
        if not (out / BUILD).is_dir():  # another process has just finished the same part
            return _outcome(out, written=0, is_finished=True, up_to_date=True)
        stack.enter_context(build.holding(out / BUILD / f"part-{number}-of-{count}.lock"))
        done = build.finished(out, mine)
        todo = [shard for shard in mine if shard.name not in done]
        pool = decode_clips.decode_pool(stack, request.index, request.loader)
        failures = Failures(request.loader.max_failure_share)
        units = sum(shard.num_units for shard in mine)
        at = units - sum(shard.num_units for shard in todo)
        progress(at, units, "views and texts")

        def reported(samples: Iterator[Sample]) -> Iterator[Sample]:
            nonlocal at
            for sample in samples:
                yield sample
                at += len(sample.rows)
                progress(at, units, "views and texts")

        for shard in todo:
            samples = (
                _latent_samples(request, shard, encoders, pool, failures)
                if shard.bucket
                else _text_samples(request, shard, encoders)
            )
            write_shard(out, shard.name, shard.table, reported(samples), {"digest": shard.digest})
        is_finished = build.finish(out, request.shards)
    return _outcome(out, written=len(todo), is_finished=is_finished, up_to_date=False)


def _outcome(out: Path, *, written: int, is_finished: bool, up_to_date: bool) -> Outcome:
    if not is_finished:
        return Outcome(
            out=str(out), clips=0, latents=0, failed=0, tokens=0, shards=0, shards_written=written,
            size_bytes=0, is_finished=False, up_to_date=False,
        )  # fmt: skip
    folder = open_folder(out)
    totals = folder.manifest["totals"]
    return Outcome(
        out=str(out),
        clips=len(np.unique(numbers(folder.texts, "clip_row"))),
        latents=totals["latents"] - totals["failed"],
        failed=totals["failed"],
        tokens=totals["tokens"],
        shards=totals["shards"],
        shards_written=written,
        size_bytes=totals["bytes"],
        is_finished=True,
        up_to_date=up_to_date,
    )
