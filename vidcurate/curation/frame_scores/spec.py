"""The settings of the stage that decodes."""

from typing import Annotated, ClassVar

from pydantic import Field

from vidcurate.recipe.recipe import Recipe


class FramesSpec(Recipe):
    """How the pictures are scored. Every score is always computed, from one decode of the clip."""

    short_side_px: ClassVar[int] = 72
    """every frame is scaled once, so that its shorter side is this; smaller ones stay as they are"""
    motion_pairs_per_second: ClassVar[float] = 4.0
    """of how many pairs of neighbouring frames the motion is measured"""
    details_per_second: ClassVar[float] = 1.0
    """on how many frames sharpness and black bars are measured, in the pixels of the display"""
    cut_threshold: ClassVar[float] = 3.5
    """how many times more than its neighbours a frame differs from the one before it at a cut"""
    cut_window_frames: ClassVar[int] = 3
    """how many neighbours on either side that is"""
    min_scene_seconds: ClassVar[float] = 0.6
    """two cuts are at least this far apart"""
    time_limit_seconds: Annotated[float, Field(gt=0)] | None = 600.0
    """s for one clip; one that takes longer is killed and recorded as timeout. null: no limit"""
