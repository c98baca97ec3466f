"""Clips, and what the tests of latents ask of them."""

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.shards_for_tests import smoke
from trainer.data.latents.precompute import Outcome, encode_ahead, request_of
from trainer.model.encoders.precision import EncodedSpec
from trainer.run_folder.checkpoint import checkpoint, checksum

ROOT = Path(__file__).resolve().parents[4]
# Two epochs of 12 clips in 6 steps: both views of a clip are shown.
TRAINED = ("stages.0.steps=6", "stages.0.checkpoint_every=2", "stages.0.data.views=2", "sample=null")
FEW_CLIPS_A_SHARD = 262_144  # bytes
CUT_SHORT = 5


def encode(shards: Path, out: Path, *more: str, **options: Any) -> Outcome:
    recipe = smoke(shards, out.parent / "run", *TRAINED, *more)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EncodedSpec, "shard_bytes", FEW_CLIPS_A_SHARD)
        return encode_ahead(request_of(recipe), out, **options)


def from_latents(latents: Path) -> tuple[str, str]:
    return "stages.0.data.shards=null", f"stages.0.data.latents={latents}"


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def same_weights(one: Path, other: Path) -> bool:
    parts = [checkpoint.load(run).parts for run in (one, other)]
    return all(checksum.checksum(parts[0][part]) == checksum.checksum(parts[1][part]) for part in parts[0])
