"""Latent plan: which clips to encode into which shards, a pure function.

Clips are split into shards by number, and each shard has a digest of its inputs. Its bytes therefore do not
depend on the process that writes it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.data.latents.folder import LATENTS_NAME, TEXTS_NAME, Rows, Shape, shape_name
from trainer.data.latents.manifest import FORMAT
from vidcurate.sampler.bucket_shapes import Bucket
from vidcurate.shards.index import Index

Identity = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The clips wanted in one shape: their rows of the index, ascending, and their number of views."""

    bucket: Bucket
    rows: Rows
    num_views: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedShard:
    """One shard to write. `bucket` is None for texts. `num_bytes` is an estimate."""

    name: str
    bucket: Bucket | None
    rows: Rows
    num_views: int
    num_bytes: int
    digest: str

    @property
    def table(self) -> str:
        return LATENTS_NAME if self.bucket else TEXTS_NAME

    @property
    def num_units(self) -> int:
        """Number of views or captions, for the progress line."""
        return len(self.rows) * self.num_views


def identity_of(
    index: Index,
    *,
    video: Mapping[str, Any],
    text: Mapping[str, Any],
    projected: bool,
    captions: tuple[str, ...],
    kept: Mapping[str, Any],
) -> Identity:
    """Return what all latents of a folder share, as JSON values.

    `video` and `text` are the encoders' specifications, `captions` the keys of a clip's captions, `kept` the
    dtypes and whether the variance is kept.
    """
    return {
        "clips": {
            "num_clips": len(index),
            "structure_fingerprint": index.structure_fingerprint,
            "content_fingerprint": index.content_fingerprint,
        },
        "encoders": {"video": dict(video), "text": dict(text), "projected": projected},
        "captions": list(captions),
        "kept": dict(kept),
    }


def plan_shards(
    wanted: Mapping[Shape, Wanted],
    identity: Identity,
    *,
    latent_bytes: Mapping[Shape, int],
    text_bytes: int,
    shard_bytes: int,
) -> tuple[PlannedShard, ...]:
    """Return the shards of these clips: one series per shape, then the texts of all clips.

    `latent_bytes`: bytes of a view with its variance. `text_bytes`: upper bound per caption.
    """
    shards: list[PlannedShard] = []
    num_captions = len(identity["captions"])
    groups: list[tuple[str, Bucket | None, Rows, int, int]] = [
        (shape_name(shape), part.bucket, part.rows, part.num_views, latent_bytes[shape])
        for shape, part in sorted(wanted.items())
    ]
    every = np.unique(np.concatenate([part.rows for part in wanted.values()]))
    groups.append(("text", None, every, num_captions, text_bytes))
    common = json.dumps([FORMAT, identity], sort_keys=True).encode()
    for name, bucket, rows, count, unit_bytes in groups:
        per_shard = max(1, shard_bytes // (unit_bytes * count))
        for number, first in enumerate(range(0, len(rows), per_shard)):
            part = rows[first : first + per_shard]
            facts = json.dumps([name, count]).encode()
            shards.append(
                PlannedShard(
                    name=f"{name}-{number:06d}.tar",
                    bucket=bucket,
                    rows=part,
                    num_views=count,
                    num_bytes=len(part) * count * unit_bytes,
                    digest=hashlib.sha256(common + facts + part.astype("<i8").tobytes()).hexdigest(),
                )
            )
    return tuple(shards)


def plan_digest(shards: tuple[PlannedShard, ...]) -> str:
    text = "\n".join(f"{shard.name} {shard.digest}" for shard in shards)
    return hashlib.sha256(text.encode()).hexdigest()


def difference(
    have: Mapping[str, Any], want: Mapping[str, Any], name: str = ""
) -> tuple[str, str, str] | None:
    """Return the first dotted key in which two nested mappings differ, and both values as JSON."""
    for key in [*want, *(key for key in have if key not in want)]:
        one, other = have.get(key), want.get(key)
        if isinstance(one, dict) and isinstance(other, dict):
            if found := difference(one, other, f"{name}{key}."):
                return found
        elif one != other:
            return f"{name}{key}", json.dumps(one), json.dumps(other)
    return None
