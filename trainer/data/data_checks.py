"""Data checks before step 1: what sizes lose."""

import math

from trainer.model.encoders.registry import VideoEncoder
from trainer.model.stdit import STDiT3Config
from vidcurate.sampler.plan import Plan


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
