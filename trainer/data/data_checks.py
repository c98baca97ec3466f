"""Data checks before step 1: caption keys, and what sizes lose."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

from trainer.model.encoders.registry import VideoEncoder
from trainer.model.stdit import STDiT3Config
from trainer.recipe.data_spec import DataSpec
from vidcurate.errors import InputError
from vidcurate.sampler.plan import Plan
from vidcurate.shards.index import Index

CLIPS_READ = 16


def check_captions(index: Index, plan: Plan, spec: DataSpec) -> None:
    """Raise InputError for a name of `captions` that no clip has.

    The loader replaces a missing caption by `caption`, so a typing error would train on other texts than the
    recipe names. The index knows the names of captions and the own columns; other keys are looked for in the
    JSON of CLIPS_READ clips, and only of shards on this machine. A shard that cannot be read is left to the
    loader, which names the clip.
    """
    known = {"caption", *index.caption_names}
    known |= {name for name in index.own_columns if index.is_text(name)}
    unknown = [name for name in spec.caption_names if name not in known]
    if not unknown:
        return
    count = len(index)
    if index.remote is None:
        rows = [int(row) for cell in plan.cells for row in cell.rows[: -(-CLIPS_READ // len(plan.cells))]]
        texts = _texts(index, rows[:CLIPS_READ])
        if texts is None:
            return
        known, count = known | texts, len(rows[:CLIPS_READ])
    elif known == {"caption"}:
        return  # shards of an older version: their JSON may have the key
    for name in unknown:
        if name not in known:
            raise InputError(
                f"captions names {name!r}, which none of {count} clips of {index.place} has; they have "
                f"{', '.join(sorted(known))}."
            )


def _texts(index: Index, rows: Sequence[int]) -> set[str] | None:
    """Return the keys of texts in the JSON of these clips; None where one cannot be read."""
    seen: set[str] = set()
    try:
        for row in rows:
            with Path(index.shard_place(row)).open("rb") as file:
                file.seek(index.at("json_offset", row))
                facts = json.loads(file.read(index.at("json_size", row)))
            seen |= {key for key, value in facts.items() if isinstance(value, str) and value}
    except (OSError, ValueError, AttributeError):
        return None
    return seen


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
