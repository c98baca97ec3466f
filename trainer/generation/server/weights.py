"""Server model: one model, and the weights of one checkpoint after another in it.

One lock serializes clips and validation losses. Rounds and validations come first: an HTTP request gives the
lock up between two sampling steps while one of them waits, and is refused when a single step or the decoding
lets one wait for MOST_WAIT_SECONDS. The
weights of a checkpoint are read and verified once, and stay in host memory as long as a round or a request
holds them: a checkpoint that is deleted meanwhile is still sampled to the end.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainer.distributed import mesh
from trainer.distributed.mesh import World
from trainer.generation import sample_clips
from trainer.generation.server import checkpoints
from trainer.generation.server.request import Refused
from trainer.model.stdit import STDiT3
from trainer.recipe.recipe import TrainRecipe
from trainer.run_folder import layout as run_folder_layout
from trainer.run_folder.checkpoint import checkpoint, parts
from trainer.run_folder.sample_rounds import Entry
from trainer.run_folder.sample_spec import SampleSpec
from vidcurate.errors import CheckpointError, VidcurateError, counted

CHECK_SECONDS = 0.5  # between two checks inside a step or a decode
MOST_WAIT_SECONDS = 60.0  # that a round or a validation waits for one step or decode of a request


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Taken:
    """A checkpoint's verified, unsharded weights on the CPU, with their recipe and stage."""

    path: Path
    step: int
    raw: bool
    digest: str
    recipe: TrainRecipe
    stage: int
    weights: dict[str, Tensor]

    @property
    def kind(self) -> str:
        return "raw" if self.raw else "ema"


def part_of(raw: bool) -> str:
    return "model" if raw else "ema"


def take(path: Path, *, raw: bool, world: World) -> Taken:
    """Read and verify one part of a checkpoint; all ranks call it and share the hashing.

    Raises CheckpointError, on all ranks, also if the checkpoint is deleted or replaced meanwhile.
    """
    part = part_of(raw)
    read: dict[str, Any] = {}

    def verified() -> str:
        return checkpoints.weights_digest(path, part)

    def tensors() -> None:
        read["weights"], read["state"] = parts.read_part_tensors(path / part), checkpoint.read_state(path)
        if checkpoints.weights_digest(path, part) != digest:
            raise CheckpointError(f"{path}: was replaced during reading.")

    digest = mesh.run_on_all_ranks(verified, world)[0]
    checkpoint.verify(path, (part,), world)
    mesh.run_on_all_ranks(tensors, world)
    state = read["state"]
    return Taken(
        path=path,
        step=run_folder_layout.step_of(path),
        raw=raw,
        digest=digest,
        recipe=sample_clips.recipe_of(state, path),
        stage=sample_clips.stage_of(state, path),
        weights=read["weights"],
    )


@contextmanager
def _checked_inside(check: Callable[[], None], device: torch.device) -> Iterator[None]:
    """Call `check` inside steps and decodes: before a module's forward on this thread, every CHECK_SECONDS.

    An exception from `check` ends the step. The device is synchronized first: the host runs ahead of a GPU.
    """
    owner, last = threading.get_ident(), time.monotonic()

    def before(module: nn.Module, inputs: object) -> None:
        nonlocal last
        if threading.get_ident() != owner or time.monotonic() - last < CHECK_SECONDS:
            return
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        check()
        last = time.monotonic()

    hook = nn.modules.module.register_module_forward_pre_hook(before)
    try:
        yield
    finally:
        hook.remove()


class Model:
    """The model on this process's device. `swaps` counts the loaded weights."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.lock = threading.Lock()
        self._first = threading.Condition()
        self._num_first = 0  # rounds and validations that wait for the lock
        self._first_since = 0.0  # of time.monotonic, when the one that waits began to
        self.swaps = 0
        self._model: STDiT3 | None = None
        self._config: Any = None
        self._holds: Taken | None = None

    @contextmanager
    def first(self) -> Iterator[None]:
        """Hold the lock for a round's clip or a validation; a request gives it up between two steps."""
        with self._first:
            self._num_first += 1
            self._first_since = time.monotonic()
        with self.lock:
            with self._first:
                self._num_first -= 1
                self._first.notify_all()
            yield

    def _wait_for_first(self, check: Callable[[], None]) -> None:
        """Wait until no round or validation waits for the lock; `check` may end the waiting by raising."""
        with self._first:
            while self._num_first:
                self._first.wait(0.2)
                check()

    def _give_way(self, taken: Taken, check: Callable[[], None]) -> None:
        """Let rounds and validations that wait go first, then load the request's weights again."""
        check()
        if not self._num_first:
            return
        self.lock.release()
        try:
            self._wait_for_first(check)
        finally:
            self.lock.acquire()
        self.of(taken)

    def _check_inside(self, check: Callable[[], None]) -> None:
        """Call `check`; raise Refused, 503, if a round has waited too long for the request's present step."""
        check()
        if self._num_first and time.monotonic() - self._first_since > MOST_WAIT_SECONDS:
            raise Refused(
                503,
                f"a round of the training has waited {MOST_WAIT_SECONDS:g} s for one step of this clip, and "
                "goes first. Ask for fewer frames or pixels.",
            )

    def of(self, taken: Taken) -> STDiT3:
        """Return the model with a checkpoint's weights; the caller holds the lock while using it.

        A run with other model settings needs a new model. Raises CheckpointError.
        """
        if self._model is None or self._config != taken.recipe.model:
            self._model, self._holds = None, None
            meta = sample_clips.sampling_model(taken.recipe.model)
            self._model = meta.to_empty(device=self.world.device).eval().requires_grad_(False)
            self._config = taken.recipe.model
        if self._holds is not taken:
            self._holds = None
            parts.copy_into(self._model.state_dict(), taken.weights, str(taken.path / part_of(taken.raw)))
            self._holds = taken
            self.swaps += 1
        return self._model

    def clip(
        self, taken: Taken, spec: SampleSpec, entry: Entry, between: Callable[[], None] | None = None
    ) -> NDArray[np.uint8]:
        """Return one clip, uint8 [T, H, W, 3], equal to `trainer.generation.sample_clips`' for its seed and
        number. `between` belongs to a request, which gives way to rounds and validations at each step.

        A request also calls `between` inside steps and decodes. Raises VidcurateError if the device's memory
        is too small, and what `between` raises; Refused if a round has waited too long.
        """
        step: Callable[[], None] | None = None
        if between is not None:
            self._wait_for_first(between)
            step = partial(self._give_way, taken, between)
        inside = (
            _checked_inside(partial(self._check_inside, between), self.world.device)
            if between is not None
            else nullcontext()
        )
        with self.lock if between is not None else self.first(), inside:
            model = self.of(taken)
            pipeline = sample_clips.pipeline_of(
                taken.recipe.encoding, taken.recipe.flow_of(taken.stage), taken.recipe.dtype, model
            )
            try:
                return sample_clips.sample_clip(pipeline, spec, entry, step)
            except torch.OutOfMemoryError as error:
                torch.cuda.empty_cache()
                raise VidcurateError(
                    f"{counted(spec.num_frames, 'frame')} of {spec.height} x {spec.width} px: the memory of "
                    f"{self.world.device} is too small ({str(error).splitlines()[0]}). Choose a smaller "
                    "preset, or a device that nothing else uses."
                ) from error
