"""Settings of the captions that a model writes."""

import hashlib
import json
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from vidcurate.curation.captioning.prompts import PROMPTS
from vidcurate.recipe.recipe import Recipe

_RESERVED = frozenset({"model", "messages", "stream", "n"})


class PromptSpec(Recipe):
    """What the model is asked for one caption."""

    text: Annotated[str, Field(min_length=1, max_length=20_000)]
    """the question; the frames follow it"""
    max_tokens: Annotated[int, Field(ge=1)] = 400
    """longest answer; an answer that reaches it is cut and becomes no caption"""


class CaptionSpec(Recipe):
    """Which model is asked what, with which frames, and what becomes a caption."""

    endpoint: str
    """address of the server up to and with its version, such as http://127.0.0.1:8000/v1"""
    model: Annotated[str, Field(min_length=1, max_length=300)]
    """name of the model, as the server lists it"""
    prompts: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,40}$")], PromptSpec] = Field(
        default_factory=lambda: {name: PromptSpec(**prompt) for name, prompt in PROMPTS.items()},
        min_length=1,
    )
    """name of the caption → what the model is asked for it"""
    num_frames: Annotated[int, Field(ge=1, le=256)] = 8
    """frames of a clip that the model sees: the middles of so many equal parts of the clip"""
    short_side_px: Annotated[int, Field(ge=16, le=4096)] = 448
    """the shorter side of these frames; smaller frames are not scaled up"""
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] = 0.0
    """temperature of sampling; 0: the likeliest text"""
    body: dict[str, Any] = Field(default_factory=dict)
    """more fields of each request, such as {max_tokens: null, max_completion_tokens: 400}; null removes a
    field"""
    concurrency: Annotated[int, Field(ge=1, le=1024)] = 8
    """clips about which the server is asked at once"""
    timeout_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 120.0
    """time that one request may take"""
    tries: Annotated[int, Field(ge=1, le=100)] = 6
    """requests for one answer, when the server is busy, fails or gives half an answer"""
    retry_seconds: Annotated[float, Field(ge=0, le=60, allow_inf_nan=False)] = 1.0
    """pause before the second try; further pauses are twice as long each, up to 60 s; Retry-After
    overrides"""
    main: str | None = None
    """name of the caption that becomes `caption` of a clip that has it; null: the one that the clip has, else
    the first prompt with an answer"""
    allow_boilerplate: bool = False
    """take answers that begin with words such as The video shows"""
    replace: bool = False
    """ask for captions that a clip has already, and replace them"""

    @field_validator("endpoint")
    @classmethod
    def _is_address(cls, value: str) -> str:
        try:
            parts = urlsplit(value)
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_address = False
        if not is_address or value != value.strip():
            raise ValueError("an address begins with http:// or https:// and names a host")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if wrong := sorted(_RESERVED & set(self.body)):
            raise ValueError(f"body cannot hold {', '.join(wrong)}: the other settings say these")
        return self


def request_hash(spec: CaptionSpec, name: str) -> str:
    """Return 16 hex digits of all that decides an answer but the clip: model, prompt, frames, sampling."""
    prompt = spec.prompts[name]
    parts = [
        spec.model,
        prompt.text,
        prompt.max_tokens,
        spec.temperature,
        spec.body,
        spec.num_frames,
        spec.short_side_px,
    ]
    return short_hash(json.dumps(parts, sort_keys=True))


def short_hash(text: str) -> str:
    """Return the first 16 hex digits of the text's SHA-256."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
