"""Video models: frame rate, frame rule, sizes, memory, with each row's source.

A frame count is valid when it is `frame_step` x n + `frame_offset`, from `fewest_frames` to `most_frames`.
A model without `fps` takes every frame rate: the rate is an input of the model, and no clip is retimed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction

from vidcurate.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeClass:
    """Size class: width x height px of a landscape clip.

    With `Model.is_fixed_size` that very size. Otherwise an area: a clip keeps its aspect ratio.
    """

    name: str
    width: int
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Published GPU memory, in GiB, for this many frames of a size class."""

    size: str
    frames: int
    gib: float
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Video model. `sizes` from the smallest; `pixels_per_token`, `frames_per_latent`: of VAE and patches.

    The defaults are the commonest values. `fps` is in frames/s, None where the model takes any rate. `source`
    names what each value was read from, `date` when (ISO 8601).
    """

    name: str
    title: str
    fps: float | None
    frame_step: int = 4
    frame_offset: int = 1
    fewest_frames: int = 5
    most_frames: int
    size_multiple_px: int = 16
    is_fixed_size: bool = False
    sizes: tuple[SizeClass, ...]
    pixels_per_token: int = 16
    frames_per_latent: Fraction = Fraction(4)
    memory: tuple[Memory, ...] = ()
    source: str
    date: str = "2026-11-23"

    def is_valid_frame_count(self, frames: int) -> bool:
        """Return whether the model takes a clip of so many frames."""
        return self.fewest_frames <= frames <= self.most_frames and self.most_valid(frames) == frames

    def most_valid(self, frames: int) -> int:
        """Return the largest valid frame count of at most `frames`; 0 when there is none."""
        bounded = min(frames, self.most_frames)
        valid = (bounded - self.frame_offset) // self.frame_step * self.frame_step + self.frame_offset
        return valid if valid >= self.fewest_frames else 0

    def num_tokens(self, width: int, height: int, frames: int) -> int:
        """Return the tokens of the model's sequence, which its memory and time depend on."""
        latents = int((frames - self.frame_offset) / self.frames_per_latent) + self.frame_offset
        return (width // self.pixels_per_token) * (height // self.pixels_per_token) * latents


def _size(name: str, width: int, height: int) -> SizeClass:
    return SizeClass(name=name, width=width, height=height)


_480P = _size("480p", 832, 480)
_720P = _size("720p", 1280, 720)

_ROWS = (
    Model(
        name="wan2.1",
        title="Wan 2.1 (1.3B, 14B)",
        fps=16,
        most_frames=81,
        sizes=(_480P, _720P),
        source="Wan-Video/Wan2.1 wan/configs/shared_config.py (sample_fps 16, frame_num 81), "
        "configs/__init__.py (sizes), vae_stride (4, 8, 8) x patch_size (1, 2, 2)",
    ),
    Model(
        name="wan2.2",
        title="Wan 2.2 TI2V-5B",
        fps=24,
        most_frames=121,
        size_multiple_px=32,
        sizes=(_480P, _size("720p", 1280, 704)),
        pixels_per_token=32,
        source="Wan-Video/Wan2.2 wan/configs/wan_ti2v_5B.py (sample_fps 24, frame_num 121, vae_stride "
        "(4, 16, 16), patch_size (1, 2, 2)), configs/__init__.py SUPPORTED_SIZES",
    ),
    Model(
        name="wan2.2-a14b",
        title="Wan 2.2 T2V/I2V-A14B",
        fps=16,
        most_frames=81,
        sizes=(_480P, _720P),
        memory=(Memory(size="720p", frames=81, gib=80, what="generation on one GPU, no offloading"),),
        source="Wan-Video/Wan2.2 README (80 GB), wan/configs/__init__.py SUPPORTED_SIZES; the VAE is that "
        "of Wan 2.1",
    ),
    Model(
        name="hunyuan",
        title="HunyuanVideo (13B)",
        fps=24,
        most_frames=129,
        sizes=(_size("540p", 960, 544), _720P),
        memory=(
            Memory(size="540p", frames=129, gib=45, what="generation on one GPU"),
            Memory(size="720p", frames=129, gib=60, what="generation on one GPU"),
        ),
        source="Tencent-Hunyuan/HunyuanVideo README (544x960 and 720x1280, 129 frames, memory); musubi-tuner "
        "image_video_dataset.py (24 fps)",
    ),
    Model(
        name="hunyuan1.5",
        title="HunyuanVideo 1.5 (8.3B)",
        fps=24,
        most_frames=121,
        sizes=(_size("480p", 848, 480), _720P),
        memory=(Memory(size="720p", frames=121, gib=14, what="least for generation, with offloading"),),
        source="Tencent-Hunyuan/HunyuanVideo-1.5 README (VAE 16x16x4, 480p and 720p, 14 GB); musubi-tuner "
        "image_video_dataset.py (24 fps)",
    ),
    Model(
        name="ltx2",
        title="LTX-2, LTX-2.3",
        fps=None,
        frame_step=8,
        fewest_frames=9,
        most_frames=121,
        size_multiple_px=32,
        sizes=(_size("512", 768, 448), _size("540p", 960, 544), _size("720p", 1280, 704)),
        pixels_per_token=32,
        frames_per_latent=Fraction(8),
        memory=(Memory(size="540p", frames=49, gib=80, what="training, standard configuration"),),
        source="Lightricks/LTX-2 packages/ltx-trainer/docs/dataset-preparation.md (frames 8n+1, sizes x32, "
        "the first frames are taken, the rate is kept), quick-start.md (80 GB)",
    ),
    Model(
        name="cogvideox",
        title="CogVideoX (2B, 5B)",
        fps=8,
        frame_step=8,
        fewest_frames=9,
        most_frames=49,
        is_fixed_size=True,
        sizes=(_size("480p", 720, 480),),
        source="zai-org/CogVideo README model table (720 x 480, 8N+1 with N <= 6, 8 frames/s), "
        "finetune/README.md",
    ),
    Model(
        name="cogvideox1.5",
        title="CogVideoX 1.5 (5B)",
        fps=16,
        frame_step=16,
        fewest_frames=17,
        most_frames=161,
        is_fixed_size=True,
        sizes=(_size("768p", 1360, 768),),
        frames_per_latent=Fraction(8),
        source="zai-org/CogVideo README model table (1360 x 768, 16N+1, N <= 10, 16 frames/s)",
    ),
    Model(
        name="mochi",
        title="Mochi 1",
        fps=30,
        frame_step=6,
        fewest_frames=25,
        most_frames=85,
        is_fixed_size=True,
        sizes=(_size("480p", 848, 480),),
        frames_per_latent=Fraction(6),
        memory=(
            Memory(size="480p", frames=37, gib=50, what="training a LoRA"),
            Memory(size="480p", frames=61, gib=64, what="training a LoRA"),
            Memory(size="480p", frames=79, gib=78, what="training a LoRA"),
            Memory(size="480p", frames=85, gib=80, what="training a LoRA"),
        ),
        source="genmoai/mochi demos/fine_tuner/README.md (30 frames/s, 25, 31, ... 85 frames, memory); "
        "generation goes up to 163 frames",
    ),
    Model(
        name="stdit3",
        title="STDiT3 (Open-Sora 1.2)",
        fps=None,
        frame_step=17,
        frame_offset=0,
        fewest_frames=51,
        most_frames=408,
        size_multiple_px=2,
        sizes=(
            _size("144p", 256, 144),
            _size("240p", 426, 240),
            _size("360p", 640, 360),
            _size("480p", 854, 480),
            _720P,
        ),
        frames_per_latent=Fraction(17, 5),
        source="hpcaitech/Open-Sora 1.2 opensora/datasets/aspect.py (sizes, 51 to 408 frames); 17 frames are "
        "5 latents; the rate is an input of the model",
    ),
)
MODELS: dict[str, Model] = {row.name: row for row in _ROWS}


def model_named(name: str) -> Model:
    """Return the model of this name. Raises InputError, which names the nearest one."""
    if name not in MODELS:
        near = get_close_matches(name, MODELS, n=1)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise InputError(f"--model {name}: unknown model. {hint}Models: {', '.join(MODELS)}.")
    return MODELS[name]


def models_named(names: str) -> list[Model]:
    """Return the models of a list with commas, each once. Raises InputError."""
    wanted = dict.fromkeys(name.strip() for name in names.split(",") if name.strip())
    if not wanted:
        raise InputError(f"--model {names!r}: no model is named. Models: {', '.join(MODELS)}.")
    return [model_named(name) for name in wanted]


def check_choice(models: Iterable[Model], *, size: str | None, frames: int | None) -> None:
    """Raise InputError when a model has no such size class, or does not take so many frames."""
    for model in models:
        names = [one.name for one in model.sizes]
        if size is not None and size not in names:
            raise InputError(f"--size {size}: {model.name} has no such size. Its sizes: {', '.join(names)}.")
        if frames is not None and not model.is_valid_frame_count(frames):
            nearest = model.most_valid(frames) or model.fewest_frames
            raise InputError(
                f"--frames {frames}: {model.name} takes {model.frame_step}n+{model.frame_offset} frames, "
                f"from {model.fewest_frames} to {model.most_frames}. The nearest: {nearest}."
            )
