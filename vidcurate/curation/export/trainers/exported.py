"""Exported folder as a trainer's manifest sees it: clips, folds, common values."""

import json
import math
import re
import shlex
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from vidcurate.curation.model_fit.models import Model

_NOT_PLAIN = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class Link:
    """Symbolic link to write; `target` is relative to the folder that holds the link."""

    target: str


Files = dict[str, str | bytes | Link]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedClip:
    """Clip in an exported folder: FOLD/KEY.mp4 with `num_frames` at `rate` frames/s, and FOLD/KEY.txt.

    `captions`, the main one first, have the names `caption_names`; `own`: own columns that are not null.
    """

    key: str
    clip_id: str
    fold: str
    captions: tuple[str, ...]
    caption_names: tuple[str, ...]
    own: dict[str, Any]
    width: int
    height: int
    num_frames: int
    rate: Fraction

    @property
    def caption(self) -> str:
        """The main caption, as it came with the data (KEY.txt has it on one line)."""
        return self.captions[0]

    @property
    def name(self) -> str:
        return f"{self.key}.mp4"

    @property
    def path(self) -> str:
        """The video, relative to the exported folder."""
        return f"{self.fold}/{self.name}"

    @property
    def fps(self) -> float:
        return float(self.rate)

    @property
    def seconds(self) -> float:
        """Duration in s, such that ceil(fps x duration) is the frame count and no more.

        FastVideo counts frames so (preprocessing_datasets.py, FrameSamplingStage): 121 / 24 x 24 must not
        become 122 by rounding.
        """
        value = self.num_frames / self.fps
        while math.ceil(self.fps * value) > self.num_frames:
            value = math.nextafter(value, 0)
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """Exported folder at `root` (absolute).

    `model`: the one that the clips were fitted to, None without. `own_dtypes`: own column → polars' type.
    """

    root: Path
    clips: tuple[ExportedClip, ...]
    model: Model | None
    own_dtypes: dict[str, str]

    @property
    def folds(self) -> list[str]:
        """The folds with clips, train first."""
        have = {clip.fold for clip in self.clips}
        return [fold for fold in ("train", "validation") if fold in have]

    def of(self, fold: str) -> list[ExportedClip]:
        return [clip for clip in self.clips if clip.fold == fold]

    def path(self, name: str) -> str:
        """Return the absolute path of a file in the folder."""
        return str(self.root / name)

    @property
    def fewest_frames(self) -> int:
        """The frame count that every clip has; for the model a valid one, since each clip's is."""
        return min(clip.num_frames for clip in self.clips)

    @property
    def most_frames(self) -> int:
        return max(clip.num_frames for clip in self.clips)

    @property
    def common_size(self) -> tuple[int, int]:
        """Width and height of most clips (px); of equally many, the larger area."""
        counts = Counter((clip.width, clip.height) for clip in self.clips)
        return max(counts, key=lambda size: (counts[size], size[0] * size[1], size))

    @property
    def buckets(self) -> list[tuple[int, int, int]]:
        """The different (width, height, frames), sorted."""
        return sorted({(clip.width, clip.height, clip.num_frames) for clip in self.clips})

    @property
    def rate(self) -> float | None:
        """The frame rate of all clips; None when they differ."""
        rates = {clip.rate for clip in self.clips}
        return float(next(iter(rates))) if len(rates) == 1 else None


def as_json(value: Any) -> str:
    """Return a manifest as JSON text, one item of a list a line."""
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(quoted(item) for item in value) + "\n]\n"
    return quoted(value, indent=1) + "\n"


def as_jsonl(items: list[dict[str, Any]]) -> str:
    return "".join(quoted(item) + "\n" for item in items)


def quoted(value: object, indent: int | None = None) -> str:
    """Return a value as JSON, and but for dicts as TOML or YAML, text: each takes the other's strings.

    Escaped are characters that JSON takes as they are, and that TOML forbids (delete), YAML 1.1 forbids or
    takes for the end of a line (C1 controls, U+2028, U+2029, U+FEFF), and readers of lines split at.
    """
    value = str(value) if isinstance(value, Path) else value
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return _NOT_PLAIN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def script(lines: list[str]) -> str:
    """Return shell lines as a file."""
    return "#!/bin/sh\nset -e\n" + "\n".join(lines) + "\n"


def command(*words: object) -> str:
    """Return a shell command; each word is quoted where the shell needs it, `$NAME` stays a variable."""
    return " ".join(
        f'"{word}"' if str(word).startswith("$") else shlex.quote(str(word)) for word in words if word != ""
    )
