"""Sampling presets: the published ones, or the recipe's prompts, seeds, size.

low4s, high4s and low16s are the settings that evaluate the published runs: 4 s (102 frames) or 16 s (408
frames) at 360p or 720p, 9:16. Steps, guidance and frame rate are the recipe's, or as published: 30, 7, 24.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.model.encoders.registry import VideoSpec, video_encoder
from trainer.run_folder import sample_rounds
from trainer.run_folder.sample_spec import SampleSpec
from vidcurate.errors import InputError, counted
from vidcurate.sampler.resolutions import published_sizes

OWN = "own"
RATIO = "0.56"  # height / width, 9:16
# name → (frames, resolution)
PRESETS = {"low4s": (102, "360p"), "high4s": (102, "720p"), "low16s": (408, "360p")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Overrides of the recipe's sampling by the command line; None and () change nothing."""

    prompts: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    steps: int | None = None
    guidance: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One set of rounds: its name in RUN/samples, and its sampling settings."""

    name: str
    spec: SampleSpec

    @property
    def shown(self) -> str:
        return self.name or OWN


def size(preset: str) -> tuple[int, int, int]:
    """Return frames, height and width of a published preset."""
    num_frames, resolution = PRESETS[preset]
    return num_frames, *published_sizes(resolution)[RATIO]


def read_prompts(path: Path) -> tuple[str, ...]:
    """Return a file's prompts, one per line, without empty lines. Raises InputError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--prompts {path}: cannot be read ({error}).") from error
    prompts = tuple(line.strip() for line in lines if line.strip())
    if not prompts:
        raise InputError(f"--prompts {path}: holds no prompt; write one a line.")
    return prompts


def wanted(
    sample: SampleSpec | None, encoder_spec: VideoSpec, preset: str, changes: Changes, *, raw: bool, name: str
) -> Wanted:
    """Return the sampling settings of a run. Unchanged own rounds are those the training samples itself.

    `sample` is the recipe's section, `name` the recipe's name for messages. Raises InputError for a recipe
    without prompts or size, or an encoder too coarse for the size.
    """
    base = sample or SampleSpec(prompts=())
    given = {key: getattr(changes, key) for key in ("prompts", "seeds", "steps", "guidance")}
    spec = base.model_copy(update={key: value for key, value in given.items() if value not in (None, ())})
    if preset != OWN:
        sizes = zip(("num_frames", "height", "width"), size(preset), strict=True)
        spec = spec.model_copy(update=dict(sizes))
    elif sample is None:
        raise InputError(
            f"{name}: its recipe has no sample section, which would say a size; "
            f"take a preset: --preset {', '.join(PRESETS)}."
        )
    if not spec.prompts:
        raise InputError(f"{name}: its recipe has no prompts; give them with --prompts FILE.")
    check_size(encoder_spec, spec.num_frames, spec.height, spec.width)
    is_own = preset == OWN and spec == base and not raw
    return Wanted(name=sample_rounds.OWN if is_own else preset + "-raw" * raw, spec=spec)


def check_size(encoder_spec: VideoSpec, num_frames: int, height: int, width: int) -> None:
    """Raise InputError for a size that the video encoder, or mp4, cannot make."""
    asked = f"{counted(num_frames, 'frame')} of {height} x {width} px"
    if min(num_frames, height, width) < 1 or height % 2 or width % 2:
        raise InputError(f"{asked}: height and width must be even and all of them at least 1.")
    if min(video_encoder(encoder_spec).latent_shape(num_frames, height, width)) < 1:
        raise InputError(f"{asked}: is smaller than the video encoder's blocks.")


def parse_seeds(text: str | None) -> tuple[int, ...]:
    """Return the seeds of `0,1,2`. Raises InputError."""
    parts: Sequence[str] = text.split(",") if text else ()
    if not all(part.strip().isdecimal() for part in parts):
        raise InputError(f"--seeds {text}: write them as numbers with commas, such as 0,1,2.")
    seeds = tuple(int(part) for part in parts)
    if len(set(seeds)) < len(seeds):
        raise InputError(f"--seeds {text}: a seed is there twice.")
    return seeds
