"""What a search for duplicates may ask for, as recipe models."""

from typing import Annotated, ClassVar

from pydantic import Field

from vidcurate.recipe.recipe import Recipe

Similarity = Annotated[float, Field(gt=0, le=1)]


class PerceptualSpec(Recipe):
    """Twins by look: hashes of five frames, from the stage `frames`."""

    max_bits: Annotated[int, Field(ge=0, le=20)] = 8
    """bits of 63 in which the hashes of two frames of the same picture may differ"""
    min_frames: ClassVar[int] = 3
    """frames of five that must be alike"""
    min_set_bits: ClassVar[int] = 5
    """a hash with fewer bits set, or fewer not set, says nothing: black, or one colour"""
    max_thumbnail_distance: Annotated[float, Field(ge=0)] = 8.0
    """levels of 255 by which the thumbnails may differ once brightness and contrast are made equal"""


class DedupSpec(Recipe):
    """Which kinds of duplicates to look for, and which copy to prefer. A kind that is null is left out."""

    exact: bool = True
    """files with the same bytes (only files of equal size are read)"""
    perceptual: PerceptualSpec | None = PerceptualSpec()
    """twins by look"""
    captions: Similarity | None = None
    """twins by words: the share of their runs of three words that two captions have in common (Jaccard by
    MinHash), such as 0.8; captions that thousands of clips rightly share make twins of them, so it is off"""
    semantic: Similarity | None = None
    """twins by meaning: the cosine from which two clips are twins, such as 0.97, of the embeddings in
    RUN/embeddings.parquet, within k-means clusters (SemDeDup, Abbas et al. 2023)"""
    within_source: bool = True
    """twins by look, words or meaning may come from one source video; false: two clips of a source are never
    twins (neighbouring clips of a still camera look alike)"""
    prefer: tuple[str, ...] = (
        "pixels",
        "fewer_cuts",
        "duration_seconds",
        "bit_rate",
        "file_size_bytes",
        "sharpness_median",
    )
    """which copy is kept: one without a problem first, then the larger value of these columns in order
    (pixels is width x height inside black bars, less 2 % where there are bars; fewer_cuts prefers the smaller
    num_cuts; durations are compared in steps of 0.5 s), then the smaller clip_id"""
