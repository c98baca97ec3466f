"""CLIP (Radford et al. 2021): unit-length embeddings of frames and captions."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vidcurate.curation.model_scores.frames import Frames, Vectors, reason_of
from vidcurate.curation.model_scores.weights import need
from vidcurate.errors import InputError

# Mean and standard deviation of CLIP's training images, by colour.
MEAN = (0.48145466, 0.4578275, 0.40821073)
DEVIATION = (0.26862954, 0.26130258, 0.27577711)


def squares(frames: Frames, side: int) -> Frames:
    """Return the centre squares of `frames` (N, H, W, 3) at `side` px, as CLIP crops a wide frame."""
    height, width = frames.shape[1:3]
    short = min(height, width)
    top, left = (height - short) // 2, (width - short) // 2
    centre = frames[:, top : top + short, left : left + short]
    if short == side:
        return np.ascontiguousarray(centre)
    how = cv2.INTER_AREA if short > side else cv2.INTER_CUBIC
    return np.stack([cv2.resize(image, (side, side), interpolation=how) for image in centre])


def normalised(pictures: Frames, device: torch.device, mean: Any, deviation: Any) -> Tensor:
    """Return uint8 (N, H, W, 3) as (N, 3, H, W) with this mean and deviation, on `device`."""
    numbers = torch.from_numpy(pictures).to(device).permute(0, 3, 1, 2).to(torch.float32).div_(255)
    means, deviations = (
        torch.tensor(numbers_of, dtype=torch.float32, device=device).view(1, 3, 1, 1)
        for numbers_of in (mean, deviation)
    )
    return (numbers - means) / deviations


class Clip:
    """CLIP model from transformers; `side` is the frame size in px, `width` that of its embeddings."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        """Load model and tokenizer. Raises InputError for a folder without a CLIP."""
        transformers = need("transformers", "clip")
        try:
            config = transformers.AutoConfig.from_pretrained(folder)
            if config.model_type != "clip":
                raise ValueError(f"it is a {config.model_type}")
            model, report = transformers.CLIPModel.from_pretrained(
                folder, dtype=torch.float32, output_loading_info=True
            )
            if missing := sorted(report["missing_keys"]):
                raise ValueError(f"{len(missing)} weights are missing, such as {missing[0]}")
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        except (OSError, ValueError, KeyError, RuntimeError, TypeError) as error:
            raise InputError(
                f"models.clip is {folder}: no CLIP that transformers loads ({reason_of(error)})."
            ) from error
        self.model = model.to(device).eval()
        self.device = device
        self.side = int(config.vision_config.image_size)
        self.width = int(config.projection_dim)
        self.length = int(config.text_config.max_position_embeddings)

    @torch.inference_mode()
    def pictures(self, frames: Frames) -> Vectors:
        """Return the embeddings of `frames` (uint8, N, H, W, 3), float32 (N, width), of length 1."""
        seen = normalised(squares(frames, self.side), self.device, MEAN, DEVIATION)
        pooled = self.model.vision_model(pixel_values=seen).pooler_output
        return _unit(self.model.visual_projection(pooled))

    @torch.inference_mode()
    def texts(self, captions: list[str]) -> Vectors:
        """Return the embeddings of `captions`, truncated to CLIP's 77 tokens, float32 (N, width)."""
        given = self.tokenizer(
            captions, padding=True, truncation=True, max_length=self.length, return_tensors="pt"
        ).to(self.device)
        pooled = self.model.text_model(
            input_ids=given["input_ids"], attention_mask=given["attention_mask"]
        ).pooler_output
        return _unit(self.model.text_projection(pooled))


def _unit(vectors: Tensor) -> Vectors:
    numbers: NDArray[np.float32] = torch.nn.functional.normalize(vectors.float(), dim=-1).cpu().numpy()
    return numbers
