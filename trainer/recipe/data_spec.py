"""Recipe section `data` of a stage: its clips, and what of a clip is shown."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from vidcurate.errors import InputError
from vidcurate.recipe import removed_keys
from vidcurate.sampler.spec import PlanSpec
from vidcurate.storage import object_store

CaptionNames = Annotated[tuple[str, ...], Field(min_length=1)]
Weights = dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]]


class DataSpec(PlanSpec):
    """Which clips a stage trains on, in what shapes and in what mixture, and what of a clip is shown.

    `levels` null: all of them. `weights`: level → its share of the clips shown ({"1": 3, "2": 1}); without
    weights every clip is shown equally often.
    """

    shards: str | Path | None = None
    """the folder that build-shards wrote, or its URL (s3://, gs://, az://, https://); need not be there when
    latents are given"""
    latents: Path | None = None
    """a folder that trainer.data.latents.command wrote: read these instead of the clips"""
    views: Annotated[int, Field(ge=1, le=4096)] | None = None
    """start frames of a clip that take turns from epoch to epoch; null: a new one at every showing, which
    only decoding on line can give"""
    captions: CaptionNames | Weights = ("caption",)
    """which captions are shown: names of a clip's captions, or keys of its JSON. A list takes turns from
    epoch to epoch; a map gives each a weight, and every showing draws one"""
    captions_from: dict[Annotated[int, Field(ge=2)], Weights] = Field(default_factory=dict)
    """step of the stage's data → weights of captions from there on, such as {20000: {long: 1, short: 1}}; a
    name that is not among them is not shown. With weights in captions, which are those of the first steps"""

    crop: Literal["center", "random"] = "center"
    """where a picture is cut to its bucket's shape: in the middle, or at a place drawn for each showing"""
    flip: Annotated[float, Field(ge=0, le=1)] = 0.0
    """share of the showings that are mirrored left to right; never a clip with a caption that names a side"""

    @property
    def caption_names(self) -> tuple[str, ...]:
        later = (name for weights in self.captions_from.values() for name in weights)
        return tuple(dict.fromkeys((*self.captions, *later)))

    @property
    def caption_weights(self) -> tuple[float, ...] | None:
        """Weights of `caption_names` in the first steps; None: they take turns."""
        return self._weights(self.captions) if isinstance(self.captions, dict) else None

    @property
    def caption_weights_from(self) -> dict[int, tuple[float, ...]]:
        """Step of the stage's data, from 0 → weights of `caption_names` from there on."""
        return {step - 1: self._weights(self.captions_from[step]) for step in sorted(self.captions_from)}

    def _weights(self, given: dict[str, float]) -> tuple[float, ...]:
        return tuple(given.get(name, 0.0) for name in self.caption_names)

    @field_validator("captions")
    @classmethod
    def _names_a_caption(
        cls, captions: tuple[str, ...] | dict[str, float]
    ) -> tuple[str, ...] | dict[str, float]:
        if not captions or not all(captions):
            raise ValueError("captions need names, as in [caption] or {short: 1, dense: 3}")
        return captions

    @field_validator("shards")
    @classmethod
    def _is_a_place(cls, shards: Path | str | None) -> Path | str | None:
        try:
            return None if shards is None else object_store.place(shards)
        except InputError as error:
            raise ValueError(str(error).rstrip(".")) from error

    @model_validator(mode="after")
    def _can_be_read(self) -> Self:
        if self.captions_from and not isinstance(self.captions, dict):
            raise ValueError(
                "captions_from changes weights and captions has none; write it as captions: {NAME: 1}"
            )
        if any(not weights or not all(weights) for weights in self.captions_from.values()):
            raise ValueError("captions_from needs names with weights at each step, as in {20000: {short: 1}}")
        if self.shards is None and self.latents is None:
            raise ValueError("data needs shards (clips) or latents (clips encoded ahead); neither is given")
        if self.latents is not None and self.views is None:
            raise ValueError("latents hold fixed views of a clip; set views to how many, as in views: 1")
        plain = {"crop": "center", "flip": 0.0}
        other = [f"{key}: {getattr(self, key)}" for key in plain if getattr(self, key) != plain[key]]
        if self.views is not None and other:
            raise ValueError(
                f"{other[0]} is not for views: {self.views}, as latents have none; leave out one"
            )
        return self


def from_saved(saved: Mapping[str, Any]) -> DataSpec:
    """Return the section that a checkpoint's recipe holds as JSON, its former keys upgraded."""
    upgraded = removed_keys.upgrade(saved, DataSpec)
    return DataSpec.model_validate_json(json.dumps(upgraded))
