"""Scoring models: load those of a specification and score frames with them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from vidcurate.curation.frame_scores.scorer import aggregates
from vidcurate.curation.model_scores.aesthetic import AestheticHead
from vidcurate.curation.model_scores.clip import Clip
from vidcurate.curation.model_scores.frames import Frames, Vectors
from vidcurate.curation.model_scores.spec import ModelsSpec
from vidcurate.curation.model_scores.text_area import TextDetector
from vidcurate.curation.model_scores.watermark import Watermark
from vidcurate.curation.model_scores.weights import file_of, folder_of

_MATCH_SCALE = 100.0  # the scale of trained CLIPs, as in published scores


def device_of() -> torch.device:
    """Return the first GPU, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """Loaded models; None for those that are not enabled."""

    spec: ModelsSpec
    clip: Clip | None
    aesthetic: AestheticHead | None
    watermark: Watermark | None
    text: TextDetector | None


def load(spec: ModelsSpec) -> Models:
    """Load every model of `spec`. Raises InputError, StorageError."""
    device = device_of()
    clip = Clip(folder_of(spec.clip, "clip"), device) if spec.clip else None
    head = None
    if spec.aesthetic_head is not None and clip is not None:
        head = AestheticHead(file_of(spec.aesthetic_head, "aesthetic_head"), clip.width)
    watermark = None
    if spec.watermark:
        watermark = Watermark(folder_of(spec.watermark, "watermark"), spec.watermark_label, device)
    text = None
    if spec.text_detector is not None:
        text = TextDetector(file_of(spec.text_detector, "text_detector"), spec.text_threshold)
    return Models(spec=spec, clip=clip, aesthetic=head, watermark=watermark, text=text)


def _in_batches(see: Callable[[Frames], Vectors], clips: list[Frames], size: int) -> list[Vectors]:
    """Return the result of `see` for the frames of each clip; clips of one frame size share batches."""
    result: list[Vectors] = [np.empty(0, np.float32)] * len(clips)
    by_size: dict[tuple[int, ...], list[int]] = {}
    for number, frames in enumerate(clips):
        by_size.setdefault(frames.shape[1:], []).append(number)
    for members in by_size.values():
        every = np.concatenate([clips[number] for number in members])
        said = np.concatenate([see(every[start : start + size]) for start in range(0, len(every), size)])
        ends = np.cumsum([len(clips[number]) for number in members])[:-1]
        for number, part in zip(members, np.split(said, ends), strict=True):
            result[number] = part
    return result


def columns_of(
    models: Models, clips: list[Frames], captions: list[str | None]
) -> tuple[list[dict[str, Any]], Vectors | None]:
    """Return the columns of each clip, and their mean embeddings (clips, width) when CLIP is enabled.

    `clips` are frames uint8 (F, H, W, 3); a clip without a caption has no match.
    """
    size = models.spec.batch_frames
    columns: list[dict[str, Any]] = [{} for _ in clips]
    means = None
    if models.clip is not None:
        seen = _in_batches(models.clip.pictures, clips, size)
        read = [caption or "" for caption in captions]
        texts = [models.clip.texts(read[start : start + size]) for start in range(0, len(read), size)]
        for row, frames, text, caption in zip(columns, seen, np.concatenate(texts), captions, strict=True):
            row |= aggregates("clip_match", (_MATCH_SCALE * frames @ text).tolist() if caption else [])
        if models.aesthetic is not None:
            for row, frames in zip(columns, seen, strict=True):
                row |= aggregates("clip_aesthetic", models.aesthetic.scores(frames).tolist())
        means = np.stack([frames.mean(axis=0) for frames in seen])
        means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
    if models.watermark is not None:
        for row, chances in zip(
            columns, _in_batches(models.watermark.probabilities, clips, size), strict=True
        ):
            row |= aggregates("watermark", chances.tolist())
    if models.text is not None:
        for row, shares in zip(columns, map(models.text.shares, clips), strict=True):
            row |= aggregates("text_area", shares.tolist())
    return columns, means
