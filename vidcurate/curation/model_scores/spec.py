"""Which models score, as a recipe model."""

from pathlib import Path
from typing import ClassVar, Self

from pydantic import model_validator

from vidcurate.recipe.recipe import Recipe


class ModelsSpec(Recipe):
    """Which models score. A model that is not named is not run, and its columns are not there.

    A source is a folder, or a name on the Hugging Face hub.
    """

    clip: str | None = None
    """CLIP, for the match of frames and caption, aesthetic_head and embeddings; the published scores are made
    with openai/clip-vit-large-patch14"""
    aesthetic_head: Path | None = None
    """MLP on CLIP's embedding (.pth or .safetensors), such as LAION's sac+logos+ava1-l14-linearMSE.pth"""
    embeddings: bool = False
    """write RUN/embeddings.parquet, the mean CLIP embedding of each clip, for dedup.semantic"""
    watermark: str | None = None
    """an image classifier that transformers loads, one of whose labels says watermark"""
    watermark_label: str | None = None
    """the label that means a watermark; null: the only one that holds the word and no denial of it"""
    text_detector: Path | None = None
    """DBNet as ONNX, such as PP-OCR's detection model"""
    text_short_side_px: ClassVar[int] = 448
    """the shorter side of the frames in which text is looked for"""
    text_threshold: ClassVar[float] = 0.3
    """probability from which a pixel is text"""
    positions: ClassVar[tuple[float, ...]] = (0.1, 0.3, 0.5, 0.7, 0.9)
    """places of the frames in the clip, rising; Open-Sora takes 0.1, 0.5, 0.9"""
    batch_frames: ClassVar[int] = 64
    """frames that a model sees at once"""

    @model_validator(mode="after")
    def _has_work(self) -> Self:
        needs_clip = {"aesthetic_head": self.aesthetic_head is not None, "embeddings": self.embeddings}
        for name, wanted in needs_clip.items():
            if wanted and self.clip is None:
                raise ValueError(f"{name} needs clip: name the CLIP that it stands on")
        return self
