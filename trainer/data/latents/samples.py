"""Latent sample of one clip: its arrays, its JSON, and its rows of the tables."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from trainer.data.latents.write import Row, Sample
from vidcurate.errors import MediaError
from vidcurate.sampler.bucket_shapes import Bucket
from vidcurate.shards.index import Index


@dataclass(frozen=True, slots=True)
class View:
    """One view of a clip: `latent` and `variance` [C, T, H, W] in the stored dtype, or the decode error."""

    first_frame: int
    latent: Tensor | None = None
    variance: Tensor | None = None
    failure: MediaError | None = None


def latent_sample(
    index: Index, row: int, bucket: Bucket, shape: tuple[int, int, int, int], views: Sequence[View]
) -> Sample:
    """Return the views of the clip at `row` in a bucket, whose latents have this `shape` (C, T, H, W)."""
    channels, frames, height, width = shape
    arrays: dict[str, Tensor] = {}
    rows: list[Row] = []
    for number, view in enumerate(views):
        line: Row = {
            "clip_row": row,
            "clip_id": index.word("clip_id", row),
            "source_dataset": index.word("source_dataset", row),
            "level": int(index.level[row]),
            "bucket": bucket.name,
            "num_frames": bucket.num_frames,
            "height": bucket.height,
            "width": bucket.width,
            "frame_stride": bucket.frame_stride,
            "view": number,
            "first_frame": view.first_frame,
            "channels": channels,
            "latent_frames": frames,
            "latent_height": height,
            "latent_width": width,
        }
        if view.failure is not None:
            line |= {"failure_kind": view.failure.kind, "failure_reason": str(view.failure)}
        for name, array in (("latent", view.latent), ("variance", view.variance)):
            if array is not None:
                arrays[f"v{number}.{name}"] = array.cpu()
                line["array" if name == "latent" else "variance"] = f"v{number}.{name}"
        rows.append(line)
    fps = index.fps[row]
    facts = {
        "bucket": bucket.name,
        "fps": None if np.isnan(fps) else float(fps),
        "views": [view.first_frame for view in views],
    }
    return _sample(index, row, facts, arrays, rows)


def text_sample(
    index: Index, row: int, names: Sequence[str], captions: Sequence[str], features: Sequence[Tensor]
) -> Sample:
    """Return the captions of the clip at `row`: their names, texts, and features [L, C] of their tokens."""
    arrays = {f"c{number}.text": array.cpu() for number, array in enumerate(features)}
    rows: list[Row] = [
        {
            "clip_row": row,
            "clip_id": index.word("clip_id", row),
            "caption_number": number,
            "caption_name": name,
            "caption_hash": hashlib.blake2b(captions[number].encode(), digest_size=16).digest(),
            "array": f"c{number}.text",
            "num_tokens": len(features[number]),
            "channels": features[number].shape[1],
        }
        for number, name in enumerate(names)
    ]
    return _sample(index, row, {"captions": list(captions)}, arrays, rows)


def _sample(
    index: Index, row: int, facts: dict[str, Any], arrays: dict[str, Tensor], rows: list[Row]
) -> Sample:
    dtypes = {str(array.dtype).removeprefix("torch.") for array in arrays.values()}
    facts |= {"clip_id": index.word("clip_id", row), "dtype": "".join(dtypes)}
    return Sample(key=index.word("sample_key", row), facts=facts, arrays=arrays, rows=tuple(rows))
