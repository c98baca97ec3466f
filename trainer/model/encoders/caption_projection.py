"""Caption projection, frozen and precomputed: T5's 4096 channels to model width.

Recipes that freeze `y_embedder` (all of Open-Sora 1.2) can store its output instead of the caption's
features, 3.6 times smaller, and train with `model.skip_y_embedder`.
"""

from collections.abc import Mapping
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.model.encoders.weights import WEIGHT_FILES, load_exactly, locate, tensors_of
from vidcurate.errors import CheckpointError

PREFIX = "y_embedder.y_proj."


class CaptionProjection(nn.Module):
    """Linear, GELU (tanh), Linear: the model's `y_embedder.y_proj`."""

    def __init__(self, caption_channels: int, hidden_size: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(caption_channels, hidden_size)
        self.fc2 = nn.Linear(hidden_size, hidden_size)

    def forward(self, features: Tensor) -> Tensor:
        """Return [..., hidden_size] of `features` [..., caption_channels], in the weights' dtype."""
        inner = self.fc1(features.to(self.fc1.weight.dtype))
        return cast(Tensor, self.fc2(F.gelu(inner, approximate="tanh")))


def projection_of(state: Mapping[str, Tensor], where: str) -> CaptionProjection:
    """Return the projection of a model's state dict. Raises CheckpointError naming a key that is missing."""
    own = {name.removeprefix(PREFIX): value for name, value in state.items() if name.startswith(PREFIX)}
    if "fc1.weight" not in own:
        raise CheckpointError(f"{where}: {PREFIX}fc1.weight is missing; weights of an STDiT3 are needed.")
    hidden_size, caption_channels = own["fc1.weight"].shape
    with torch.device("meta"):
        module = CaptionProjection(caption_channels, hidden_size)
    load_exactly(module, own, where)
    return module.eval().requires_grad_(False)


def load_projection(source: str, *, key: str = "projection") -> CaptionProjection:
    """Return the projection of an STDiT3 in safetensors: a file, a folder or a name on the hub.

    Raises InputError, StorageError or CheckpointError: see `trainer.model.encoders.weights`.
    """
    path = locate(source, key=key, patterns=WEIGHT_FILES)
    return projection_of(tensors_of(path, key=key), str(path))
