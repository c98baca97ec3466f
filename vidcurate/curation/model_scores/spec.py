"""Which models score, as a recipe model."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from vidcurate.recipe.recipe import Recipe


class ModelsSpec(Recipe):
    """Which models score. A model that is not named is not run, and its columns are not there.

    A source is a folder, or a name on the Hugging Face hub.
    """

    clip: str | None = None
    """CLIP, for match, aesthetic_head and embeddings: openai/clip-vit-large-patch14 is what the published
    scores are made with"""
    match: bool = True
    """how well frames and caption match by CLIP; false: not scored"""
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
    positions: Annotated[tuple[Annotated[float, Field(ge=0, le=1)], ...], Field(min_length=1)] = (
        0.1,
        0.3,
        0.5,
        0.7,
        0.9,
    )
    """places of the frames in the clip, rising; Open-Sora takes 0.1, 0.5, 0.9"""
    batch_frames: ClassVar[int] = 64
    """frames that a model sees at once"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: the first GPU when there is one"""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """arithmetic of CLIP and the classifier; half precision is for GPUs"""

    @model_validator(mode="after")
    def _has_work(self) -> Self:
        needs_clip = {"aesthetic_head": self.aesthetic_head is not None, "embeddings": self.embeddings}
        for name, wanted in needs_clip.items():
            if wanted and self.clip is None:
                raise ValueError(f"{name} needs clip: name the CLIP that it stands on")
        if self.clip is not None and not (self.match or any(needs_clip.values())):
            raise ValueError("clip is named, and nothing uses it: set match, aesthetic_head or embeddings")
        if list(self.positions) != sorted(self.positions):
            raise ValueError("positions must rise")
        return self
