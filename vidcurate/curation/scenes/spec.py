"""The settings of scene detection and of clip extraction."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from vidcurate.curation.frame_scores.spec import FramesSpec
from vidcurate.media.transcode import TranscodeSpec
from vidcurate.recipe.recipe import Recipe

_FRAMES = FramesSpec()


class SceneSpec(Recipe):
    """Where long videos are cut. A scene is what lies between two cuts, to the frame."""

    min_seconds: Annotated[float, Field(ge=0)] = 2.0
    """shorter scenes are left out"""
    max_seconds: Annotated[float, Field(gt=0)] | None = 15.0
    """no clip is longer; null: a scene may be of any length"""
    longer: Literal["divide", "truncate"] = "divide"
    """a scene that is longer becomes several clips of one length, or one clip of its beginning"""
    margin_seconds: Annotated[float, Field(ge=0)] = 0.0
    """taken off either side of a cut, for videos that dissolve rather than cut"""
    cut_threshold: Annotated[float, Field(gt=1)] = _FRAMES.cut_threshold
    """how many times more than its neighbours a frame differs from the one before it at a cut"""
    cut_window_frames: Annotated[int, Field(ge=1)] = _FRAMES.cut_window_frames
    """how many neighbours on either side that is"""
    min_scene_seconds: Annotated[float, Field(ge=0)] = _FRAMES.min_scene_seconds
    """two cuts are at least this far apart"""
    time_limit_seconds: Annotated[float, Field(gt=0)] | None = 3600.0
    """s for one video; one that takes longer is killed and listed as timeout. null: no limit"""

    @model_validator(mode="after")
    def _some_length_is_left(self) -> "SceneSpec":
        if self.max_seconds is not None and self.max_seconds < self.min_seconds:
            raise ValueError(f"max_seconds is {self.max_seconds:g}, below min_seconds {self.min_seconds:g}")
        return self


class ExtractSpec(Recipe):
    """How clips are cut out of their files."""

    mode: Literal["transcode", "trim"] = "transcode"
    """transcode: decoded and encoded anew, exact to the frame; trim: packets are copied from the first key
    frame on, so that a clip may begin later than asked"""
    transcode: TranscodeSpec = TranscodeSpec(gop_frames=12)
    """how mode: transcode encodes; a short group of pictures makes any frame quick to reach"""
    min_seconds: Annotated[float, Field(ge=0)] = 0.5
    """a clip that comes out shorter (trim: its key frame is near its end) is not written"""
    max_first_frame_difference: Annotated[float, Field(gt=0, le=255)] = 8.0
    """levels that a clip's first frame may differ on average from the source's frame at that time"""
    time_limit_seconds: Annotated[float, Field(gt=0)] | None = 600.0
    """s for one clip; one that takes longer is killed and recorded as timeout. null: no limit"""
