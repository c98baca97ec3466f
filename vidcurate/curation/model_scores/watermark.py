"""Watermark score: any image classifier of transformers with a watermark label."""

import json
import re
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from vidcurate.curation.model_scores.clip import normalised
from vidcurate.curation.model_scores.frames import Frames, Vectors, reason_of
from vidcurate.curation.model_scores.weights import need
from vidcurate.errors import InputError

_DENIAL = re.compile(r"\b(?:no|not|non|without|clean|free)\b")


def label_of(labels: dict[int, str], wanted: str | None, where: str) -> int:
    """Return the index of the watermark label. Raises InputError when none or several match."""
    if wanted is not None:
        found = [number for number, label in labels.items() if label == wanted]
    else:
        words = {number: re.sub(r"[^a-z]+", " ", label.lower()) for number, label in labels.items()}
        found = [
            number for number, label in words.items() if "watermark" in label and not _DENIAL.search(label)
        ]
    if len(found) != 1:
        raise InputError(
            f"models.watermark is {where}: {'no label' if not found else 'more than one label'} means a "
            f"watermark. Labels: {', '.join(labels.values())}. Set watermark_label to one of them."
        )
    return found[0]


def read_settings(folder: Path) -> dict[str, Any]:
    """Read the input size and normalisation from preprocessor_config.json."""
    settings: dict[str, Any] = json.loads((folder / "preprocessor_config.json").read_text(encoding="utf-8"))
    return settings


class Watermark:
    """Watermark classifier from transformers."""

    def __init__(self, folder: Path, label: str | None, device: torch.device) -> None:
        """Load the model and its preprocessing. Raises InputError for a folder without a classifier."""
        transformers = need("transformers", "watermark")
        try:
            model, report = transformers.AutoModelForImageClassification.from_pretrained(
                folder, dtype=torch.float32, output_loading_info=True
            )
            if missing := sorted(report["missing_keys"]):
                raise ValueError(f"{len(missing)} weights are missing, such as {missing[0]}")
            wanted = read_settings(folder)
        except (OSError, ValueError, KeyError, RuntimeError, TypeError, ImportError) as error:
            raise InputError(
                f"models.watermark is {folder}: no image classifier that transformers loads "
                f"({reason_of(error)})."
            ) from error
        self.model = model.to(device).eval()
        self.device = device
        labels = {int(number): str(name) for number, name in model.config.id2label.items()}
        self.label = label_of(labels, label, str(folder))
        size = wanted.get("size", 224)
        sides = size if isinstance(size, dict) else {"height": size}
        self.side = int(sides.get("height") or sides.get("shortest_edge") or 224)
        self.mean = wanted.get("image_mean") or (0.5, 0.5, 0.5)
        self.deviation = wanted.get("image_std") or (0.5, 0.5, 0.5)

    @torch.inference_mode()
    def probabilities(self, frames: Frames) -> Vectors:
        """Return the probability of a watermark in each of `frames` (uint8, N, H, W, 3), float32 (N,).

        The whole frame is resized to the classifier's square, not cropped: watermarks are at the edges.
        """
        side = (self.side, self.side)
        small = np.stack([cv2.resize(image, side, interpolation=cv2.INTER_AREA) for image in frames])
        seen = normalised(small, self.device, self.mean, self.deviation)
        chances = self.model(pixel_values=seen).logits.float().softmax(-1)[:, self.label]
        result: Vectors = chances.cpu().numpy().astype(np.float32)
        return result
