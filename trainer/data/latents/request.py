"""Latent request: clips, encoders, dtypes and sizes that a recipe needs.

The training order is computed from the clips' index, and a latent folder holds a copy of the index. The same
code therefore plans a stage on clips and on their latents, with the same positions.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.latents.folder import LatentFolder, Rows, Shape, numbers, open_folder, shape_of
from trainer.data.latents.plan import Identity, difference, identity_of
from trainer.model.encoders.precision import DTYPES
from trainer.model.encoders.registry import VideoSpec, text_encoder, video_encoder
from trainer.recipe import recipe as recipes
from trainer.recipe.data_spec import DataSpec
from trainer.recipe.encoding import Encoding
from vidcurate.errors import InputError, RecipeError, ShardError
from vidcurate.sampler.bucket_shapes import Bucket
from vidcurate.sampler.plan import Plan
from vidcurate.shards.index import Index, read_index
from vidcurate.shards.index_file import INDEX_NAME

NAMED_CLIPS = 3
FREE_SETTINGS = ("posterior",)  # encoder settings that a folder may exceed


def samples_posterior(spec: VideoSpec) -> bool:
    """Return whether the model trains on samples of the video encoder's posterior."""
    return getattr(spec, "posterior", "mean") == "sample"


def identity(encoding: Encoding, index: Index, captions: Sequence[str]) -> Identity:
    """Return what all latents of these clips in this encoding share."""
    video, text = (
        {name: value for name, value in recipes.to_json(spec).items() if name not in FREE_SETTINGS}
        for spec in (encoding.video, encoding.text)
    )
    return identity_of(
        index,
        video=video,
        text=text,
        projected=encoding.model.skip_y_embedder,
        captions=tuple(captions),
        kept={
            "latent_dtype": encoding.kept.latent_dtype,
            "text_dtype": encoding.kept.text_dtype,
            "variance": samples_posterior(encoding.video),
        },
    )


# ── how large ───────────────────────────────────────────────────────────────────────────────────────────────


def latent_bytes(encoding: Encoding, bucket: Bucket) -> int:
    """Return the bytes of one view in this bucket, with its variance if stored."""
    shape = video_encoder(encoding.video).latent_shape(bucket.num_frames, bucket.height, bucket.width)
    arrays = 2 if samples_posterior(encoding.video) else 1
    return arrays * int(np.prod(shape)) * DTYPES[encoding.kept.latent_dtype].itemsize


def text_bytes(encoding: Encoding) -> int:
    """Return an upper bound of the bytes of one caption's features."""
    model, encoder = encoding.model, text_encoder(encoding.text)
    channels = model.hidden_size if model.skip_y_embedder else encoder.caption_channels
    return encoder.model_max_length * channels * DTYPES[encoding.kept.text_dtype].itemsize


def forecast(encoding: Encoding, plan: Plan, spec: DataSpec) -> dict[str, int]:
    """Return the bytes of a stage's latents, and an upper bound of its texts'."""
    views = spec.views or 1
    return {
        "latents": sum(len(cell.rows) * views * latent_bytes(encoding, cell.bucket) for cell in plan.cells),
        "texts_at_most": plan.num_clips * len(spec.caption_names) * text_bytes(encoding),
    }


def bytes_on_disk(folder: LatentFolder, plan: Plan, spec: DataSpec) -> dict[str, int]:
    """Return the bytes of a stage's latents and texts as stored in the folder."""
    sizes, text_sizes = numbers(folder.latents, "size"), numbers(folder.texts, "size")
    total = {"latents": 0, "texts": 0}
    for cell in plan.cells:
        for view in range(spec.views or 1):
            found = folder.find_latents(cell.bucket, cell.rows, view)
            total["latents"] += int(sizes[found[found >= 0]].sum()) * (1 + folder.has_variance)
        for caption in range(len(spec.caption_names)):
            found = folder.find_texts(cell.rows, caption)
            total["texts"] += int(text_sizes[found[found >= 0]].sum())
    return total


# ── which ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Clips of a cell of which the folder lacks a view or a caption."""

    cell: str
    shape: Shape
    num_clips: int
    clip_ids: tuple[str, ...]  # the first of the clips

    def to_json(self) -> dict[str, Any]:
        return {"cell": self.cell, "clips": self.num_clips, "clip_ids": list(self.clip_ids)}


def missing(folder: LatentFolder, plan: Plan, spec: DataSpec) -> tuple[Missing, ...]:
    """Return the plan's cells that the folder does not hold completely."""
    found: list[Missing] = []
    for cell in plan.cells:
        lacks = np.zeros(len(cell.rows), dtype=np.bool_)
        for view in range(spec.views or 1):
            lacks |= folder.find_latents(cell.bucket, cell.rows, view) < 0
        for caption in range(len(spec.caption_names)):
            lacks |= folder.find_texts(cell.rows, caption) < 0
        rows: Rows = np.sort(cell.rows[lacks])
        if len(rows):
            ids = tuple(folder.index.word("clip_id", int(row)) for row in rows[:NAMED_CLIPS])
            found.append(
                Missing(cell=cell.name, shape=shape_of(cell.bucket), num_clips=len(rows), clip_ids=ids)
            )
    return tuple(found)


def check_complete(stage_name: str, spec: DataSpec, lacking: Sequence[Missing]) -> None:
    """Raise InputError with the cells, some clips and the command if latents are missing."""
    if not lacking:
        return
    cells = ", ".join(
        f"{part.num_clips} of {part.cell} ({', '.join(part.clip_ids)}"
        f"{', …' if part.num_clips > len(part.clip_ids) else ''})"
        for part in lacking
    )
    views = f"{spec.views} views" if spec.views != 1 else "one view"
    raise InputError(
        f"{spec.latents}: stage {stage_name} needs {views} of clips that are not encoded: {cells}. Encode "
        f"them with all stages that read this folder: python -m trainer precompute RECIPE --out "
        f"{shlex.quote(str(spec.latents))}"
    )


# ── whether they belong to the recipe ───────────────────────────────────────────────────────────────────────


def open_for(
    spec: DataSpec, number: int, encoding: Encoding, opened: dict[Path, LatentFolder]
) -> LatentFolder:
    """Open the latents of stage `number` (each folder once, in `opened`) and check them against the recipe.

    Raises ShardError for an incomplete folder or one with other clips than `data.shards`, RecipeError for
    latents of other encoders, dtypes or captions, naming the first differing setting.
    """
    assert spec.latents is not None
    if spec.latents not in opened:
        opened[spec.latents] = open_folder(spec.latents)
    folder = opened[spec.latents]
    wanted = identity(encoding, folder.index, spec.caption_names)
    if folder.has_variance:  # a folder with variances also serves training on means
        wanted["kept"]["variance"] = True
    have = {name: folder.manifest[name] for name in wanted}
    if found := difference(have, wanted):
        key, there, now = found
        raise RecipeError(
            f"stages.{number}.data.latents {spec.latents}: {_key_of(key)} is {there} there and {now} in the "
            "recipe. Set the folder's value, or encode the clips again into another folder."
        )
    # The clips are not read, so their shards may be missing; a URL is not requested.
    if isinstance(spec.shards, Path) and (spec.shards / INDEX_NAME).exists():
        clips = read_index(spec.shards, check_files=False)
        for name in ("structure_fingerprint", "content_fingerprint"):
            if getattr(clips, name) != getattr(folder.index, name):
                raise ShardError(
                    f"{spec.latents}: its latents are of other clips than those of {spec.shards} ({name} "
                    f"{getattr(folder.index, name)[:8]} and {getattr(clips, name)[:8]}); encode these into "
                    "another folder, or give the shards that belong to it."
                )
    return folder


def _key_of(key: str) -> str:
    """Return the recipe's key for a key of the manifest."""
    for ours, theirs in (
        ("encoders.video.", "video_encoder."),
        ("encoders.text.", "text_encoder."),
        ("encoders.projected", "model.skip_y_embedder"),
        ("kept.variance", "video_encoder.posterior (whether the variance is kept)"),
        ("kept.", "encoded."),
        ("captions", "data.captions"),
    ):
        if key.startswith(ours):
            return theirs + key.removeprefix(ours)
    return key
