"""What a filter may ask for, as recipe models. Thresholds are inclusive; keeping nothing is an error."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from vidcurate.recipe import Recipe
from vidcurate.schema import COLUMNS

Limit = Annotated[float, Field(ge=0)] | None
Whole = Annotated[int, Field(ge=0)] | None


class Range(Recipe):
    """What a score may be. Either end may be left open."""

    min: float | None = None
    """the smallest value that is kept"""
    max: float | None = None
    """the largest value that is kept"""

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min:g} is above max {self.max:g}: nothing could be kept")
        return self


class OutlierRule(Recipe):
    """Removal of values far from the rest.

    `tail_quantile`: the share `value` at the end (0.0001 takes the hardest 0.01 %); ties at the cut stay
    together, on the kept side. `iqr`: further than `value` interquartile ranges from the quartiles. `mad`:
    further than `value` robust standard deviations (1.4826 x median absolute deviation) from the median; with
    a deviation of 0 nothing is removed. `absolute`: beyond `value` itself.
    """

    column: str
    """a numeric column of the table"""
    method: Literal["tail_quantile", "iqr", "mad", "absolute"] = "tail_quantile"
    """how the limit is found"""
    value: float = 0.0001
    """the method's number"""
    side: Literal["upper", "lower", "both"] = "upper"
    """which end is cut"""
    per_source_dataset: bool = False
    """find the limits in each source data set by itself"""

    @model_validator(mode="after")
    def _value_fits(self) -> Self:
        if self.method == "tail_quantile" and not 0 < self.value < 0.5:
            raise ValueError(f"a tail quantile is a share between 0 and 0.5, not {self.value:g}")
        if self.method in ("iqr", "mad") and self.value <= 0:
            raise ValueError(f"{self.method} needs a value above 0, not {self.value:g}")
        if self.method == "absolute" and self.side == "both":
            raise ValueError("an absolute limit has one side; give two rules, upper and lower")
        return self


class FilterSpec(Recipe):
    """Which clips are kept. A rule that is not set does not apply; thresholds are inclusive.

    Clips with an ingest problem, or that the probe found broken, are always rejected.
    """

    allow_probe_status: tuple[str, ...] = ()
    """probe statuses besides `ok` that are kept, such as frame_count_mismatch"""
    min_height: Whole = None
    """px, as displayed"""
    max_height: Whole = None
    """px, as displayed"""
    min_width: Whole = None
    """px, as displayed"""
    max_width: Whole = None
    """px, as displayed"""
    min_short_side: Whole = None
    """px, the smaller of width and height"""
    min_aspect_ratio: Limit = None
    """height / width"""
    max_aspect_ratio: Limit = None
    """height / width"""
    min_duration_seconds: Limit = None
    """s"""
    max_duration_seconds: Limit = None
    """s"""
    min_num_frames: Whole = None
    """frames"""
    max_num_frames: Whole = None
    """frames"""
    min_fps: Limit = None
    """frames/s"""
    max_fps: Limit = None
    """frames/s"""
    max_file_size_bytes: Whole = None
    """B; the published speed run took files under 50 MiB"""
    min_caption_num_words: Whole = None
    """words"""
    max_caption_num_words: Whole = None
    """words"""
    min_noun_count: Whole = None
    """nouns"""
    max_noun_count: Whole = None
    """nouns"""
    scores: dict[str, Range] = Field(default_factory=dict)
    """any other numeric column: its range"""
    outliers: tuple[OutlierRule, ...] = ()
    """removal of extreme values, in order, after every other rule"""

    @field_validator("allow_probe_status")
    @classmethod
    def _statuses_exist(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        known = COLUMNS["probe_status"].meaning
        for status in value:
            if status not in known:
                raise ValueError(f"{status!r} is no probe status; {known}")
        return value

    @model_validator(mode="after")
    def _ranges_are_ranges(self) -> Self:
        for name in type(self).model_fields:
            if name.startswith("min_") and hasattr(self, f"max_{name[4:]}"):
                low, high = getattr(self, name), getattr(self, f"max_{name[4:]}")
                if low is not None and high is not None and low > high:
                    raise ValueError(
                        f"{name} {low:g} is above max_{name[4:]} {high:g}: nothing could be kept"
                    )
        return self
