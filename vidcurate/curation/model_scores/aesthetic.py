"""Aesthetic score: LAION's predictor on CLIP embeddings, 1 (ugly) to 10.

The published head (improved-aesthetic-predictor, C. Schuhmann 2022) is 768-1024-128-64-16-1 with dropouts
between and no other non-linearity; its file names the layers layers.0, 2, 4, 6 and 7. Here the sizes come
from the file, so that a head on another CLIP loads as well.
"""

import re
from pathlib import Path

import numpy as np
import torch

from vidcurate.curation.model_scores.frames import Vectors, reason_of
from vidcurate.errors import InputError
from vidcurate.storage.stored_zip import require_stored_file

SIZES = (768, 1024, 128, 64, 16, 1)
_WEIGHT = re.compile(r"(?:.*\.)?(\d+)\.weight$")


class AestheticHead:
    """Aesthetic head loaded from a file, for embeddings of `width`."""

    def __init__(self, path: Path, width: int) -> None:
        """Load the layers (without executing code). Raises InputError for another kind of file."""
        try:
            if path.suffix == ".safetensors":
                from safetensors.torch import load_file

                tensors = load_file(path)
            else:
                require_stored_file(path)
                tensors = torch.load(path, map_location="cpu", weights_only=True)
            tensors = {name: value.float() for name, value in tensors.items()}
        except Exception as error:  # torch raises many kinds for a file that is none of its own
            raise InputError(
                f"models.aesthetic_head is {path}: cannot be read ({reason_of(error)})."
            ) from error
        found = {match[1]: name for name in tensors if (match := _WEIGHT.match(name))}
        self.layers = []
        size = width
        for number in sorted(found, key=int):
            name = found[number]
            weight, bias = tensors[name], tensors.get(name.removesuffix("weight") + "bias")
            if weight.ndim != 2 or weight.shape[1] != size or bias is None or bias.shape != weight.shape[:1]:
                raise InputError(
                    f"models.aesthetic_head is {path}: {name} has the shape {tuple(weight.shape)}, but must "
                    f"take {size} inputs and have a bias; CLIP's embedding is {width} wide. Use the head "
                    "that was trained on this CLIP."
                )
            self.layers.append((weight, bias))
            size = int(weight.shape[0])
        if not self.layers or size != 1:
            raise InputError(
                f"models.aesthetic_head is {path}: it ends {size} wide; an aesthetic head ends in one number "
                f"({'-'.join(map(str, SIZES))} as published)."
            )

    @torch.inference_mode()
    def scores(self, embeddings: Vectors) -> Vectors:
        """Return the score of each embedding (N, width), float32 (N,)."""
        numbers = torch.from_numpy(embeddings)
        for weight, bias in self.layers:
            numbers = torch.nn.functional.linear(numbers, weight, bias)
        result: Vectors = numbers[:, 0].numpy().astype(np.float32)
        return result
