"""Filter rules of a recipe.

Thresholds are inclusive; keeping nothing is an error.
"""

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from vidcurate.curation.clip_table.schema import COLUMNS
from vidcurate.curation.filter.presets import PRESETS
from vidcurate.errors import RecipeError
from vidcurate.recipe.recipe import Recipe

NAMED = (
    "height", "width", "short_side", "aspect_ratio", "duration_seconds", "num_frames", "fps",
    "file_size_bytes", "caption_num_words", "noun_count",
)  # fmt: skip
"""Columns and measures whose limits come first, in this order, and have a short form on the command line."""


class Limit(Recipe):
    """What a column may hold: a range of numbers, or a set of words. An empty limit asks for nothing."""

    min: float | None = None
    """the smallest value that is kept"""
    max: float | None = None
    """the largest value that is kept"""
    allowed: tuple[str | bool, ...] | None = None
    """the only values that are kept, such as [en]"""
    forbidden: tuple[str | bool, ...] | None = None
    """values that are rejected"""
    missing: Literal["reject", "keep"] = "reject"
    """what becomes of a clip whose value nobody knows"""

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min:g} is above max {self.max:g}: nothing could be kept")
        is_range = self.min is not None or self.max is not None
        if is_range and (self.allowed is not None or self.forbidden is not None):
            raise ValueError("min and max are for numbers, allowed and forbidden for words; give one kind")
        if self.allowed is not None and not set(self.allowed) - set(self.forbidden or ()):
            raise ValueError(f"allowed is {list(self.allowed)}: nothing could be kept")
        return self


class OutlierRule(Recipe):
    """Removal of values far from the rest.

    `tail_quantile`: the share `value` at the end (0.0001 takes the hardest 0.01 %); ties at the cut stay
    together, on the kept side. `iqr`: further than `value` interquartile ranges from the quartiles. `mad`:
    further than `value` robust standard deviations (1.4826 x median absolute deviation) from the median; with
    a deviation of 0 nothing is removed. `z_score`: further than `value` standard deviations from the mean.
    `absolute`: beyond `value` itself. Limits are found among the clips that passed every rule before.
    """

    column: str
    """a numeric column of the table"""
    method: Literal["tail_quantile", "iqr", "mad", "z_score", "absolute"] = "tail_quantile"
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
            raise ValueError(
                f"method tail_quantile needs a value between 0 and 0.5, a share, not {self.value:g}"
            )
        if self.method in ("iqr", "mad", "z_score") and self.value <= 0:
            raise ValueError(f"method {self.method} needs a value above 0, not {self.value:g}")
        if self.method == "absolute" and self.side == "both":
            raise ValueError("method absolute has one side, not side both; give two rules, upper and lower")
        return self


class FilterSpec(Recipe):
    """Which clips are kept. A rule that is not set does not apply; thresholds are inclusive.

    Clips with an ingest problem, or that the probe found broken, are always rejected. A clip whose value is
    not known is rejected, except where a limit says `missing: keep`. Of the copies that dedup found,
    the best one that passes every other rule is kept. A setting beside `preset` replaces the preset's; null
    takes an end of a limit away, and an empty limit the whole.
    """

    preset: str | None = None
    """published thresholds to start from: `vidcurate presets` lists them"""
    allow_probe_status: tuple[str, ...] = ()
    """probe statuses besides `ok` that are kept, such as frame_count_mismatch"""
    limits: dict[str, Limit] = Field(default_factory=dict)
    """column → what it may hold: any column of the table, also short_side (px, the smaller of width and
    height) and aspect_ratio (height / width)"""
    leave_out: Path | tuple[str, ...] | None = None
    """clip ids that are rejected: a file of them, one a line, such as a training run's bad_clips.jsonl, or
    a list; null: none"""
    outliers: tuple[OutlierRule, ...] = ()
    """removal of extreme values, in order, after every other rule"""

    @field_validator("preset")
    @classmethod
    def _preset_exists(cls, value: str | None) -> str | None:
        if value is not None and value not in PRESETS:
            near = difflib.get_close_matches(value, PRESETS, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(PRESETS)}"
            raise ValueError(f"no preset has this name; {hint}")
        return value

    @field_validator("allow_probe_status")
    @classmethod
    def _statuses_exist(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        known = COLUMNS["probe_status"].meaning
        for status in value:
            if status not in known:
                raise ValueError(f"{status!r} is no probe status; {known}")
        return value

    @model_validator(mode="after")
    def _limits_can_be_met(self) -> Self:
        for column, limit in self.limits.items():
            for word in ("min", "max"):
                bound = getattr(limit, word)
                if column in NAMED and bound is not None and bound < 0:
                    raise ValueError(
                        f"limits.{column}.{word} is {bound:g}, and no clip has a {column} below 0"
                    )
        return self


def as_limit(setting: str) -> str:
    """Return `min_COLUMN=VALUE`, as the command line may write it, as `limits.COLUMN.min=VALUE`.

    Only the NAMED columns have this short form; other settings stay. Raises RecipeError for a misspelled one.
    """
    name, equals, value = setting.partition("=")
    word, _, column = name.partition("_")
    if word not in ("min", "max") or name in FilterSpec.model_fields or "." in name:
        return setting
    if column not in NAMED:
        near = difflib.get_close_matches(column, NAMED, n=1, cutoff=0.5)
        hint = f"Did you mean {word}_{near[0]}?" if near else f"Write limits.{column}.{word}."
        raise RecipeError(f"--set {setting}: {name} is not a setting. {hint}")
    return f"limits.{column}.{word}{equals}{value}"


def from_table(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a table was filtered with; an older one has other keys, min_COLUMN for one."""
    known = FilterSpec.model_fields
    kept = {name: value for name, value in settings.items() if name in known}
    limits = {name: dict(limit) for name, limit in (settings.get("limits") or {}).items()}
    for name in settings.keys() - kept.keys():
        word, _, column = name.partition("_")
        if column in NAMED and settings[name] is not None:
            limits.setdefault(column, {})[word] = settings[name]
    if rules := settings.get("outliers"):
        known = OutlierRule.model_fields
        kept["outliers"] = [{key: rule[key] for key in known if key in rule} for rule in rules]
    return {**kept, "limits": limits}


def left_out_of(spec: FilterSpec) -> tuple[str, ...]:
    """Return the clip ids that `spec`, written out, leaves out."""
    assert not isinstance(spec.leave_out, Path), "written_out reads the file"
    return spec.leave_out or ()


def written_out(spec: FilterSpec) -> FilterSpec:
    """Return `spec` with the rules of its preset, where `spec` sets none, and the clip ids of its file.

    Raises MissingError or InputError for a file of clip ids that cannot be read.
    """
    if isinstance(spec.leave_out, Path):
        from vidcurate.sampler.leave_out import read_clip_ids  # with pyarrow

        spec = spec.model_copy(update={"leave_out": read_clip_ids(spec.leave_out)})
    if spec.preset is None:
        return spec
    given = json.loads(spec.model_dump_json(exclude_unset=True))
    published = PRESETS[spec.preset].settings
    limits = {**published.get("limits", {})}
    for column, limit in given.pop("limits", {}).items():
        limits[column] = {**limits.get(column, {}), **limit} if limit else {}
    return FilterSpec.model_validate_json(json.dumps({**published, **given, "limits": limits}))
