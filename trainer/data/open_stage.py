"""Stage loader: open a stage's clips or latents and read its micro-batches."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

import vidcurate.loader.torch
from trainer.data.latents import request as latents_request
from trainer.data.latents.read import LatentLoader
from trainer.data.stages import StageData, _before, data_step, unread
from trainer.model.encoders.registry import VideoSpec
from vidcurate.loader.fallback_clips import Event
from vidcurate.loader.loader import Loader, MicroBatch
from vidcurate.loader.spec import LoaderSpec
from vidcurate.sampler import order
from vidcurate.sampler.build_plan import PlannedClip, clips_of_step


def micro_batches(data: StageData) -> list[int]:
    """Return the number of micro-batches of each cell that the whole stage reads."""
    end = data_step(data, data.num_steps)
    counts = dict(_before(data, end))
    for first, behind in unread(data, end):
        for name, count in _before(data, behind):
            counts[name] = counts.get(name, 0) - count
        for name, count in _before(data, first):
            counts[name] = counts.get(name, 0) + count
    return [counts[cell.name] for cell in order.at_step(data.plan, end).cells]


def clips(data: StageData, stage_step: int) -> tuple[PlannedClip, ...]:
    """Return the clips that the stage's update number `stage_step` (from 0) reads, with their captions."""
    return clips_of_step(data.plan, data.index, data_step(data, stage_step))


@contextmanager
def open_loader(
    data: StageData,
    loader_spec: LoaderSpec,
    encoder_spec: VideoSpec,
    *,
    rank: int,
    world_size: int,
    on_event: Callable[[Event], None],
    pin: bool = False,
) -> Iterator[Loader | LatentLoader]:
    """Open the stage's loader; `on_event` receives this rank's replaced clips and restarted workers.

    `pin`: latents are read into page-locked memory, for a GPU.
    """
    spec = data.stage.data
    ours: dict[str, Any] = {"rank": rank, "world_size": world_size, "on_event": on_event}
    loader: Loader | LatentLoader
    if data.folder:
        loader = LatentLoader(
            data.folder,
            data.plan,
            loader_spec,
            num_views=spec.views or 1,
            caption_weights=spec.caption_weights,
            caption_weights_from=spec.caption_weights_from,
            variance=latents_request.samples_posterior(encoder_spec),
            pin=pin,
            **ours,
        )
    else:
        loader = Loader(
            data.index,
            data.plan,
            loader_spec,
            num_views=spec.views,
            captions=spec.caption_names,
            caption_weights=spec.caption_weights,
            caption_weights_from=spec.caption_weights_from,
            crop=spec.crop,
            flip=spec.flip,
            **ours,
        )
    with loader:
        yield loader


def pixels(batch: MicroBatch, device: torch.device) -> Tensor:
    """Return the frames as float32 [B, 3, T, H, W] in [-1, 1] on `device`."""
    return vidcurate.loader.torch.pixels(batch, device)
