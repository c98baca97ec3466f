"""Data checks before step 1: what sizes lose."""

import math

from trainer.model.encoders.registry import VideoEncoder, encoded_size
from trainer.model.stdit import STDiT3Config
from vidcurate.sampler.plan import Plan


def losses_of_shape(plan: Plan, encoder: VideoEncoder, model: STDiT3Config) -> list[str]:
    """Return, as text, the pixels that the encoder cuts off, and a model narrower than its patches."""
    notes = []
    for bucket in dict.fromkeys(cell.bucket for cell in plan.cells):
        height, width = encoded_size(encoder, bucket.height, bucket.width)
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
