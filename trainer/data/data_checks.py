"""Data checks before step 1: caption keys, and what sizes lose."""

import json
import math
from pathlib import Path

from trainer.model.encoders.registry import VideoEncoder
from trainer.model.stdit import STDiT3Config
from trainer.recipe.recipe import DataSpec
from vidcurate.errors import InputError
from vidcurate.sampler.plan import Plan
from vidcurate.shards.index import Index

CLIPS_READ = 16


def check_captions(index: Index, plan: Plan, spec: DataSpec) -> None:
    """Raise InputError for a key of `captions` that none of the first clips of the plan has.

    The loader replaces a missing caption by `caption`, so a typing error would train on other texts than the
    recipe names. Reads the JSON of CLIPS_READ clips, and only of shards on this machine; a shard that cannot
    be read is left to the loader, which names the clip.
    """
    if spec.captions == ("caption",) or index.remote is not None:
        return
    rows = [int(row) for cell in plan.cells for row in cell.rows[: -(-CLIPS_READ // len(plan.cells))]]
    seen: set[str] = set()
    try:
        for row in rows[:CLIPS_READ]:
            with Path(index.shard_place(row)).open("rb") as file:
                file.seek(index.at("json_offset", row))
                facts = json.loads(file.read(index.at("json_size", row)))
            seen |= {key for key, value in facts.items() if isinstance(value, str) and value}
    except (OSError, ValueError, AttributeError):
        return
    for key in spec.captions:
        if key not in seen:
            raise InputError(
                f"captions names {key!r}, which none of {len(rows[:CLIPS_READ])} clips of {index.place} has; "
                f"their texts are {', '.join(sorted(seen))}."
            )


def _kept(size: int, blocks: int, encoder: VideoEncoder, axis: int) -> int:
    """Return the largest size up to `size` that the encoder encodes whole; `axis`: 2 rows, 3 columns."""
    while (
        size > 1
        and encoder.latent_shape(1, *((size - 1, 1 << 12) if axis == 2 else (1 << 12, size - 1)))[axis]
        == blocks
    ):
        size -= 1
    return size


def losses_of_shape(plan: Plan, encoder: VideoEncoder, model: STDiT3Config) -> list[str]:
    """Return, as text, the pixels that the encoder cuts off, and a model narrower than its patches."""
    notes = []
    for bucket in dict.fromkeys(cell.bucket for cell in plan.cells):
        _, _, rows, columns = encoder.latent_shape(bucket.num_frames, bucket.height, bucket.width)
        height, width = _kept(bucket.height, rows, encoder, 2), _kept(bucket.width, columns, encoder, 3)
        if (height, width) != (bucket.height, bucket.width):
            notes.append(
                f"{bucket.name}: [{bucket.height}, {bucket.width}] is trained as [{height}, {width}]; the "
                "video encoder's blocks divide no more of it"
            )
    values = model.in_channels * math.prod(model.patch_size)
    if model.hidden_size < values:
        notes.append(
            f"model.hidden_size {model.hidden_size} is smaller than a patch's {values} values "
            f"({model.in_channels} channels x {' x '.join(map(str, model.patch_size))}), so the model cannot "
            "keep all of it"
        )
    return notes
