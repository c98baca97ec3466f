"""Torch tensors of decoded frames, and an `IterableDataset` over the order.

`dataset` is for training loops that are not this project's: plain PyTorch, Accelerate, Lightning, diffusers.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info

from vidcurate.errors import InputError, StateError
from vidcurate.loader.caption_names import check_caption_names
from vidcurate.loader.fallback_clips import Event
from vidcurate.loader.loader import Loader, MicroBatch
from vidcurate.loader.spec import LoaderSpec
from vidcurate.recipe.recipe import parse
from vidcurate.sampler.build_plan import plan_of
from vidcurate.sampler.order_state import LoaderState, check_state, state_of
from vidcurate.sampler.plan import Plan
from vidcurate.sampler.spec import PlanSpec
from vidcurate.shards.index import Index, read_index


def pixels(
    batch: MicroBatch, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Return the frames of a micro-batch as (B, 3, T, H, W) in [−1, 1], on `device`.

    `as_pixels` copies the bytes and converts them on the device: a quarter of the traffic.
    """
    return as_pixels(batch.frames, device, dtype)


def as_pixels(
    frames: NDArray[np.uint8], device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Return uint8 frames (B, T, H, W, 3) as `pixels` does; each clip's result is independent of others."""
    numbers = torch.from_numpy(frames).to(device).permute(0, 4, 1, 2, 3)
    numbers = numbers.to(torch.float32, memory_format=torch.contiguous_format)
    return numbers.div_(127.5).sub_(1.0).to(dtype)


class ClipBatch(TypedDict):
    """One micro-batch of B clips: `pixels` (B, 3, T, H, W) in [−1, 1].

    `fps` is float32 (B,), `level` int32 (B,), `step` the optimizer step that the micro-batch belongs to, the
    same on every rank.
    """

    pixels: torch.Tensor
    fps: torch.Tensor
    level: torch.Tensor
    captions: list[str]
    clip_ids: list[str]
    step: int


class ClipDataset(IterableDataset[ClipBatch]):
    """Micro-batches of one rank in the order of a plan; made by `dataset`.

    Give it to a DataLoader with `batch_size=None` and at most one worker: decode workers are its own. The
    state is a step, so a run resumes on any number of ranks, at the end of a step. A pass goes from the state
    to the last step; the state moves with it, so that after the last step there is nothing left to read.
    """

    def __init__(
        self,
        index: Index,
        plan: Plan,
        *,
        rank: int,
        world_size: int,
        num_steps: int,
        loader: Callable[[], Loader],
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self._index, self._plan, self._loader = index, plan, loader
        self._rank, self._world_size, self._num_steps = rank, world_size, num_steps
        self._dtype = dtype
        self._step, self._num_taken = 0, 0  # the next micro-batch: its step, and those of the step before it
        # In shared memory: whether a DataLoader's worker reads. This process then knows no state.
        self._is_read_elsewhere = torch.zeros(1, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        """Return the number of micro-batches of this rank over all steps."""
        return self._num_steps * self._plan.micro_batches_per_step // self._world_size

    def __iter__(self) -> Iterator[ClipBatch]:
        """Yield the micro-batches from the state on, to the end of the last step.

        Raises InputError in a DataLoader with several workers, and the errors of `Loader.step`.
        """
        worker = get_worker_info()
        if worker is not None and worker.num_workers > 1:
            raise InputError(
                f"DataLoader(num_workers={worker.num_workers}): several workers would each read every clip. "
                "Set DataLoader(num_workers=0) and dataset(num_workers=…), which decodes in processes."
            )
        if worker is not None:
            self._is_read_elsewhere.fill_(1)
        with self._loader() as loader:
            while self._step < self._num_steps:
                step, batches = self._step, loader.step(self._step)
                for batch in batches[self._num_taken :]:
                    self._num_taken += 1
                    if self._num_taken == len(batches):
                        self._step, self._num_taken = step + 1, 0
                    yield self._tensors(batch, step)

    def _tensors(self, batch: MicroBatch, step: int) -> ClipBatch:
        return ClipBatch(
            pixels=pixels(batch, dtype=self._dtype),
            fps=torch.from_numpy(batch.fps),
            level=torch.from_numpy(batch.level),
            captions=list(batch.captions),
            clip_ids=list(batch.clip_ids),
            step=step,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the micro-batches that were yielded: plain values, under 3 KiB.

        Raises StateError where a DataLoader's worker yields them: its copy of the dataset has the state.
        """
        if get_worker_info() is None and self._is_read_elsewhere.item():
            raise StateError(
                "a worker of the DataLoader reads the clips, ahead of training: the dataset does not know "
                "which were trained. Set DataLoader(num_workers=0) and dataset(num_workers=…), or take "
                "state_dict of torchdata's StatefulDataLoader."
            )
        state = state_of(self._index, self._plan, self._step)
        return {"loader": state.to_json(), "num_taken": self._num_taken, "world_size": self._world_size}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue after the micro-batches that the state counts; the number of ranks may have changed.

        Raises StateError for a state of other data, buckets or seed (the message names the clips that
        differ), or for a state within a step on another number of ranks.
        """
        try:
            state = LoaderState.from_json(state_dict["loader"])
            num_taken, world_size = int(state_dict["num_taken"]), int(state_dict["world_size"])
            if not (0 <= num_taken < self._plan.micro_batches_per_step and world_size > 0):
                raise ValueError(f"num_taken is {num_taken}, world_size is {world_size}")
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise StateError(f"not a state of ClipDataset ({type(error).__name__}: {error}).") from error
        check_state(state, self._index, self._plan)
        if num_taken and world_size != self._world_size:
            raise StateError(
                f"the state lies within step {state.step} on {world_size} ranks, and there are now "
                f"{self._world_size}. Save at the end of a step, where every rank has the same `step`."
            )
        self._step, self._num_taken = state.step, num_taken
        self._is_read_elsewhere.fill_(0)


def dataset(
    shards: Path | str,
    plan: PlanSpec | Mapping[str, Any],
    *,
    num_steps: int,
    seed: int = 0,
    rank: int = 0,
    world_size: int = 1,
    num_workers: int = 0,
    captions: Sequence[str] = ("caption",),
    dtype: torch.dtype = torch.float32,
    on_event: Callable[[Event], None] | None = None,
) -> ClipDataset:
    """Return the clips of `shards` (a folder or URL) as a torch dataset of micro-batches.

    `plan` is what a training recipe has under `data.plan`: buckets, levels, weights, curriculum,
    micro_batches_per_step (over all ranks together, a multiple of `world_size`, so that every rank has as
    many). The clips of a step depend on the plan and `seed` alone, never on ranks, workers or restarts.
    `captions` names captions that the clips have; several are shown in turn, epoch after epoch.
    Raises InputError, RecipeError, ShardError.
    """
    if not 0 <= rank < world_size or num_workers < 0 or num_steps < 0 or not dtype.is_floating_point:
        raise InputError(
            f"rank={rank}, world_size={world_size}, num_workers={num_workers}, num_steps={num_steps}, "
            f"dtype={dtype}: no dataset has these. Give a rank below world_size, counts from 0 and a dtype "
            "of floating-point numbers."
        )
    if isinstance(captions, str):
        raise InputError(f"captions={captions!r} is one text. Give a list: captions=[{captions!r}].")
    spec = plan if isinstance(plan, PlanSpec) else parse(json.dumps(plan), PlanSpec, where="plan.json")
    if spec.micro_batches_per_step % world_size:
        raise InputError(
            f"micro_batches_per_step {spec.micro_batches_per_step} is no multiple of {world_size} ranks: "
            f"some ranks would have fewer batches. Set micro_batches_per_step={world_size}."
        )
    index = read_index(shards)
    made = plan_of(index, spec, seed=seed)
    check_caption_names(index, made, captions)

    loader = partial(
        Loader,
        index,
        made,
        LoaderSpec(num_workers=num_workers),
        rank=rank,
        world_size=world_size,
        captions=captions,
        on_event=on_event,
    )
    return ClipDataset(
        index, made, rank=rank, world_size=world_size, num_steps=num_steps, loader=loader, dtype=dtype
    )
