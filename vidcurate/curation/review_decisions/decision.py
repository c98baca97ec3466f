"""Decision models: what a reviewer decides, and its line in RUN/reviews.jsonl."""

import unicodedata
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from vidcurate.recipe.recipe import Recipe

MOST_CAPTION_CHARACTERS = 10_000
MOST_SCORES = 500

Verdict = Literal["keep", "reject", "caption", "tag"]
"""keep and reject are a reviewer's word on the clip; caption replaces its caption; tag sets its tags"""


def _is_text(value: str, allowed: str = "") -> str:
    for letter in value:
        if unicodedata.category(letter) in ("Cc", "Cs") and letter not in allowed:
            raise ValueError(f"the character {letter!r} is not allowed; use plain text")
    if not value.strip():
        raise ValueError("the text is empty")
    return value


def _is_caption(value: str) -> str:
    return _is_text(value, "\n\t")


Line = Annotated[str, Field(max_length=1000), AfterValidator(_is_text)]
Name = Annotated[str, Field(max_length=100), AfterValidator(_is_text)]
Caption = Annotated[str, Field(max_length=MOST_CAPTION_CHARACTERS), AfterValidator(_is_caption)]
Score = (
    bool | int | Annotated[float, Field(allow_inf_nan=False)] | Annotated[str, Field(max_length=1000)] | None
)


class Seen(Recipe):
    """What the reviewer saw of the clip at the time of the decision."""

    rule: Line | None = None
    """the rule that had rejected the clip; null for a kept clip, and in a blind review"""
    scores: dict[Name, Score] = Field(default_factory=dict, max_length=MOST_SCORES)
    """column → value that was on the screen"""


class Decision(Recipe):
    """One decision about one clip, as a client sends it."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,100}$")]
    """made by the client, such as a UUID: sending the same decision again adds no second line"""
    clip_id: Line
    """the clip, as in the run's table"""
    reviewer: Name
    """who decided"""
    verdict: Verdict
    """keep, reject, caption or tag"""
    reason: Line | None = None
    """why, in one line; from a list or in the reviewer's own words"""
    caption: Caption | None = None
    """the new caption; only for the verdict caption"""
    tags: tuple[Name, ...] = Field(default=(), max_length=50)
    """every tag that this reviewer gives the clip; only for the verdict tag, where none removes them"""
    seen: Seen = Seen()
    """what was on the screen"""
    blind_sample: Name | None = None
    """name of the blind sample that the clip was shown in; null elsewhere"""

    @model_validator(mode="after")
    def _has_what_its_verdict_needs(self) -> Self:
        if (self.caption is not None) != (self.verdict == "caption"):
            raise ValueError("the verdict caption has a caption, and no other verdict has one")
        if self.tags and self.verdict != "tag":
            raise ValueError("tags go with the verdict tag alone")
        if any("," in tag for tag in self.tags):
            raise ValueError("a tag has no comma: the table lists tags with commas")
        if len(set(self.tags)) < len(self.tags):
            raise ValueError("a tag is listed twice")
        return self


class Recorded(Decision):
    """A decision in RUN/reviews.jsonl."""

    number: Annotated[int, Field(ge=1)]
    """the line's number in the file; 1 is the first"""
    time_utc: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")]
    """when the line was written"""
    undone_by: int | None = Field(default=None, exclude=True)
    """number of the line that undid this decision; null while the decision stands; not in the file"""


class Undo(Recipe):
    """A line of RUN/reviews.jsonl that takes a decision back."""

    number: Annotated[int, Field(ge=1)]
    id: Annotated[str, Field(pattern=r"^undo:\d+$")]
    clip_id: Line
    reviewer: Name
    time_utc: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")]
    verdict: Literal["undo"]
    undoes: Annotated[int, Field(ge=1)]
    """number of the decision"""


def content(decision: Decision) -> dict[str, Any]:
    """Return what the client sent, as plain JSON values."""
    names = set(Decision.model_fields)
    return decision.model_dump(mode="json", include=names)
