"""Clip sampling: from prompts and seeds to mp4 files, with a checkpoint's weights.

A clip's noise belongs to (seed, prompt number), so clip k has the same noise at every step of a run and on
any machine. Clips are generated one at a time, so a clip does not depend on its round. A round of samples is
a folder that is complete or absent (`trainer.run_folder.sample_rounds`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from trainer.model import rectified_flow, rng
from trainer.model.encoders.registry import TextEncoder, VideoEncoder, text_encoder, video_encoder
from trainer.model.rectified_flow import FlowSpec
from trainer.model.stdit import STDiT3, STDiT3Config
from trainer.recipe.encoding import Encoding
from trainer.recipe.recipe import TrainRecipe, from_saved
from trainer.report import gallery
from trainer.run_folder import sample_rounds
from trainer.run_folder.checkpoint import checkpoint, parts
from trainer.run_folder.sample_spec import SampleSpec
from vidcurate.errors import CheckpointError, StorageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A model with its encoders and settings, as sampling uses them.

    `weights` replace the model's own (None: keep them); the model may then be on the meta device.
    """

    model: nn.Module
    weights: Mapping[str, Tensor] | None
    video: VideoEncoder
    text: TextEncoder
    flow: FlowSpec
    dtype: torch.dtype
    cut_null_caption: bool


def pipeline_of(
    encoding: Encoding,
    flow: FlowSpec,
    dtype: torch.dtype,
    model: nn.Module,
    weights: Mapping[str, Tensor] | None = None,
) -> Pipeline:
    """Return the pipeline of a model with its encoders."""
    return Pipeline(
        model=model,
        weights=weights,
        video=video_encoder(encoding.video),
        text=text_encoder(encoding.text),
        flow=flow,
        dtype=dtype,
        cut_null_caption="cut_null_caption" in encoding.model.reproduce,
    )


@torch.no_grad()
def sample_clips(
    pipeline: Pipeline,
    spec: SampleSpec,
    prompts: Sequence[str],
    *,
    seed: int,
    first_number: int = 0,
    between: Callable[[], None] | None = None,
) -> NDArray[np.uint8]:
    """Return one clip per prompt, uint8 [n, T, H, W, 3].

    The noise depends on `seed` and the prompts' numbers, counted from `first_number`. The sampler calls
    `between` before each use of the model; an exception from it ends the sampling.
    """
    model, weights, flow_spec = pipeline.model, pipeline.weights, pipeline.flow
    device = next(iter((weights or model.state_dict()).values())).device
    shape = pipeline.video.latent_shape(spec.num_frames, spec.height, spec.width)
    names = [f"prompt-{first_number + number}" for number in range(len(prompts))]
    start = rng.normal(seed, "sample", 0, names, shape).to(device)
    y, mask = pipeline.text.encode(prompts)

    def forward(*arguments: Any, **keywords: Any) -> Tensor:
        if between is not None:
            between()
        if weights is None:
            result: Tensor = model(*arguments, **keywords)
        else:
            result = functional_call(model, dict(weights), arguments, keywords)
        return result

    def row(value: float) -> Tensor:
        return torch.full((len(prompts),), float(value), device=device)

    sizes = row(spec.height), row(spec.width), row(spec.num_frames)
    ratio = rectified_flow.shift_ratio(*sizes, scale=flow_spec.shift_scale)
    null = (weights or model.state_dict())["y_embedder.y_embedding"][None, None]
    velocity = rectified_flow.guided(
        forward,
        y.to(device),
        mask.to(device),
        null,
        scale=spec.guidance,
        cut_null_caption=pipeline.cut_null_caption,
        conditions={"fps": row(spec.fps), "height": row(spec.height), "width": row(spec.width)},
    )
    with torch.autocast(device.type, torch.bfloat16, enabled=pipeline.dtype == torch.bfloat16):
        latent = rectified_flow.sample(velocity, start, rectified_flow.sampling_timesteps(spec.steps, ratio))
    pixels = pipeline.video.decode(latent, num_frames=spec.num_frames)
    eight_bit = ((pixels + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
    frames: NDArray[np.uint8] = eight_bit.permute(0, 2, 3, 4, 1).cpu().numpy()
    return frames


def write_clip(path: Path, frames: NDArray[np.uint8], fps: float) -> None:
    """Write one clip (T, H, W, 3) as mp4, dropping an odd last row or column. Raises StorageError."""
    from vidcurate.media import (
        encode,
    )  # PyAV is imported only where clips are written: training runs without it

    height, width = frames.shape[1] // 2 * 2, frames.shape[2] // 2 * 2
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        encode.write_video(path, frames[:, :height, :width], fps=fps)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error}).") from error


def read_clip(path: Path, spec: Mapping[str, Any]) -> NDArray[np.uint8]:
    """Return a clip (T, H, W, 3) that `write_clip` wrote; `spec` has its num_frames, height and width.

    Raises MediaError.
    """
    from vidcurate.media import decode

    height, width = spec["height"] // 2 * 2, spec["width"] // 2 * 2
    return decode.read_frames(path, range(spec["num_frames"]), height=height, width=width)


def sample_clip(
    pipeline: Pipeline,
    spec: SampleSpec,
    entry: sample_rounds.Entry,
    between: Callable[[], None] | None = None,
) -> NDArray[np.uint8]:
    """Return one clip of a round, uint8 [T, H, W, 3]. Other clips of the round do not affect it."""
    clip: NDArray[np.uint8]
    (clip,) = sample_clips(
        pipeline,
        spec,
        [entry.prompt],
        seed=entry.seed,
        first_number=entry.number,
        between=between,
    )
    return clip


def is_sampled(run: Path, step: int) -> bool:
    return sample_rounds.read_listing(sample_rounds.folder(run, sample_rounds.OWN, step)) is not None


def sample_round(run: Path, step: int, pipeline: Pipeline, spec: SampleSpec, name: str) -> list[Path]:
    """Sample the prompts and seeds of `spec` into RUN/samples/step-…, update the gallery, return the files.

    `name`: the run's, for the gallery's title.
    """
    folder = sample_rounds.folder(run, sample_rounds.OWN, step)
    partial = sample_rounds.begin_round(folder, "training")
    made = sample_rounds.entries(spec)
    for entry in made:
        frames = sample_clip(pipeline, spec, entry)
        write_clip(partial / entry.file, frames, spec.fps)
    sample_rounds.finish_round(
        partial, folder, sample_rounds.listing(sample_rounds.OWN, step, spec, weights="ema")
    )
    gallery.write_gallery(run, name)
    return [folder / entry.file for entry in made]


def sampling_model(config: STDiT3Config) -> STDiT3:
    """Return the model on the meta device, with caption projection: samples have new captions."""
    with torch.device("meta"):
        return STDiT3(config.model_copy(update={"skip_y_embedder": False}))


def recipe_of(state: Mapping[str, Any], path: Path) -> TrainRecipe:
    """Return the recipe in the state of the checkpoint at `path`. Raises CheckpointError."""
    try:
        return from_saved(state["recipe"])
    except (KeyError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise CheckpointError(f"{path}/state.json: holds no readable recipe ({reason}).") from error


def stage_of(state: Mapping[str, Any], path: Path) -> int:
    """Return the stage, from 0, in the state of the checkpoint at `path`. Raises CheckpointError."""
    number = state.get("stage_number")
    if not isinstance(number, int) or number < 0:
        raise CheckpointError(f"{path}/state.json: its stage_number is {number!r}, which is no stage.")
    return number


def load_model(path: Path, *, raw: bool = False) -> tuple[STDiT3, TrainRecipe, dict[str, Any]]:
    """Return the model with a checkpoint's EMA (`raw`: its weights), the recipe and the state.

    Raises CheckpointError.
    """
    path = checkpoint.find(path)
    part = "model" if raw else "ema"
    weights = checkpoint.read_part(path, part)
    state = checkpoint.read_state(path)
    recipe = recipe_of(state, path)
    model = sampling_model(recipe.model).to_empty(device="cpu")
    parts.copy_into(model.state_dict(), weights, str(path / part))
    return model.eval().requires_grad_(False), recipe, state
