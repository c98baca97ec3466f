"""Run on a track: train, validate, sample, and return the record.

The optimizer, the model, its kernels, the noise and the routing are the trainer's own; the clips lie in
memory, so that the seconds are those of training. Validation and sampling are not part of the seconds.
"""

import hashlib
import itertools
import json
import math
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.distributed import parallelize
from trainer.distributed.mesh import World, device_name
from trainer.distributed.spec import ParallelSpec
from trainer.model import flops, tensors
from trainer.model.encoders.space_to_depth import SpaceToDepth
from trainer.model.encoders.word_hash import WordHash
from trainer.model.stdit import STDiT3, lengths_read
from trainer.training.optim import adamw, ema, schedule
from trainer.training.track import batches, measure
from trainer.training.track.clips import Clips, make_clips
from trainer.training.track.energy import EnergyMeter
from trainer.training.track.gradient import Inputs, StepGradient
from trainer.training.track.measure import Held
from trainer.training.track.spec import TrackRecipe
from vidcurate.errors import StateError

ENCODED_AT_ONCE = 128  # clips


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Data that all runs of a track share: clips, text features [N, 1, L, C] and masks [N, L], held clips."""

    clips: Clips
    y: Tensor
    mask: Tensor
    lengths: tuple[int, ...]
    held: Held
    device: torch.device


def video_of(recipe: TrackRecipe) -> SpaceToDepth:
    return SpaceToDepth(spatial=recipe.video_encoder.spatial, temporal=recipe.video_encoder.temporal)


def load_data(recipe: TrackRecipe, device: torch.device) -> Data:
    """Return the data of a track. Raises StateError where its hash is not the recipe's."""
    clips = make_clips(recipe.clips, device)
    if recipe.clips.sha256 not in (None, clips.sha256):
        raise StateError(
            f"the clips of this track hash to {clips.sha256} and the recipe says {recipe.clips.sha256}; "
            "the data of a track may not change. Restore clips, or compare with no record."
        )
    spec = recipe.text_encoder
    text = WordHash(
        caption_channels=spec.caption_channels, model_max_length=spec.model_max_length, pairs=spec.pairs
    )
    y, mask = text.encode(clips.captions)
    video, count = video_of(recipe), recipe.clips.count
    latents = torch.cat([video.encode(part) for part in torch.split(clips.pixels[count:], ENCODED_AT_ONCE)])
    lengths = tuple(int(number) for number in mask.sum(1))
    y, mask = y.to(device), mask.to(device)
    held = measure.hold(recipe, latents, y[count:], mask[count:])
    return Data(clips=clips, y=y, mask=mask, lengths=lengths, held=held, device=device)


@dataclass(slots=True, kw_only=True)
class _Progress:
    """What a run has used up to now, without validation, and its curve."""

    seconds: float = 0.0
    joules: float | None = None
    model_flops: int = 0
    log: list[dict[str, Any]] = field(default_factory=list)


class Run:
    """One run: model, optimizer and average of a recipe on `data`."""

    def __init__(self, recipe: TrackRecipe, data: Data, *, graphs: bool) -> None:
        self.recipe, self.data, self.device = recipe, data, data.device
        world = World(rank=0, size=1, device=data.device)
        self.world, self.model = world, STDiT3(recipe.model, recipe.seed)
        self.layout = parallelize.parallelize_model(
            self.model,
            ParallelSpec(),
            world,
            torch.float32 if recipe.precision == "float32" else torch.bfloat16,
            fast=recipe.blocks == "fast",
            float8=recipe.precision == "float8",
        )
        self.masters = adamw.masters(self.model, with_muon=recipe.optim.muon is not None)
        self.gradient = StepGradient(self.layout, self.masters, graphs=graphs and data.device.type == "cuda")
        self.video = video_of(recipe)
        self.facts = measure.facts(recipe.clips, recipe.batch, data.device)
        _, *self.shape = data.held.latents.shape
        self.order = hashlib.sha256()
        self._unchecked: tuple[int, Callable[[], Tensor]] | None = None
        self._side: Any = None  # stream on which inputs are sent and encoded beside the step before
        if data.device.type == "cuda":
            self._side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._side.wait_stream(torch.cuda.current_stream())

    def inputs(self, drawn: batches.Draws) -> Inputs:
        """Return the step's tensors on the device."""
        if self._side is None:
            return self._inputs(drawn)
        with torch.cuda.stream(self._side):
            given = self._inputs(drawn)
        current = torch.cuda.current_stream()
        current.wait_stream(self._side)
        for tensor in given.values():
            tensor.record_stream(current)
        return given

    def _inputs(self, drawn: batches.Draws) -> Inputs:

        def sent(tensor: Tensor) -> Tensor:
            return tensors.send(tensor, self.device)

        rows = sent(torch.tensor(drawn.numbers))
        given = {
            "latents": self.video.encode(self.data.clips.pixels[rows]),
            "noise": sent(drawn.noise),
            "timesteps": sent(drawn.timesteps),
            "y": self.data.y[rows],
            "mask": self.data.mask[rows],
            "drops": sent(drawn.drops),
            **self.facts,
        }
        return given if drawn.order is None else given | {"route_order": sent(drawn.order)}

    def steps(self) -> Iterator[tuple[batches.Draws, Tensor]]:
        """Make all updates; yield the draws and the clips' losses [B], on the device.

        The inputs of the next step are sent while the device computes this one.
        """
        stream = batches.steps(self.recipe, tuple(self.shape), pin=self.device.type == "cuda")
        drawn = next(stream)
        given = self.inputs(drawn)
        for number in range(self.recipe.steps):
            losses = self.gradient(given, drawn.route)
            following = next(stream, None)
            if following is not None:
                given = self.inputs(following)
            self._update(number)
            self.order.update(np.array(drawn.numbers, dtype="<i4").tobytes())
            yield drawn, losses
            drawn = following or drawn

    def _update(self, number: int) -> None:
        """Update the weights from the gradient that the masters hold; `number` counts updates from 0.

        The host reads the gradient's norm after it has issued the next update, so the device never waits for
        the host.
        """
        spec = self.recipe.optim
        norm = adamw.device_norm(self.masters)
        fetched = tensors.fetch(norm)
        adamw.update(
            self.masters,
            spec,
            lr=schedule.learning_rate(spec, number, self.recipe.steps),
            ema_decay=self.recipe.ema_decay,
            clip_factor=adamw.device_clip_factor(norm, spec.grad_clip),
        )
        self.check_norm()
        self._unchecked = number, fetched

    def check_norm(self) -> None:
        """Raise StateError if the norm of the last unchecked gradient is not finite."""
        if self._unchecked is None:
            return
        (number, fetched), self._unchecked = self._unchecked, None
        if not math.isfinite(norm := float(fetched())):
            raise StateError(f"step {number + 1}: the gradient's norm is {norm}; lower optim.lr.")

    def flops(self, drawn: batches.Draws) -> int:
        """Return the model FLOPs of a step."""
        drops = [bool(one) for one in drawn.drops]
        read = lengths_read(self.recipe.model, [self.data.lengths[n] for n in drawn.numbers], drops)
        _, frames, rows, columns = self.shape
        shapes = [(frames, rows, columns)] * len(read)
        routed = self.recipe.routing if drawn.route else None
        return flops.flops_per_step(self.recipe.model, shapes, read, routed)

    def averaged(self, work: Callable[[], Any]) -> Any:
        """Return what `work` returns with the averaged weights in `layout.compute`."""
        ema.swap(self.masters.ema, self.model)
        try:
            with self.layout.gathered_weights():
                return work()
        finally:
            ema.swap(self.masters.ema, self.model)

    def validate(self) -> float:
        """Return the dense validation loss of the average."""
        found: float = self.averaged(
            lambda: measure.validation_loss(self.layout.compute, self.data.held, self.recipe.clips)
        )
        return found

    def count_followed(self) -> int:
        """Return how many samples of the average follow their prompts."""
        recipe, clips = self.recipe, self.data.clips
        null = measure.null_caption(self.model).detach()
        made = self.averaged(
            lambda: measure.samples(self.layout.compute, recipe, self.data.held, null, self.video)
        )
        return measure.count_followed(made, clips.scenes[recipe.clips.count :], recipe.clips)

    def warm_up(self) -> None:
        """Make the step's kernels and graphs, dense and routed, without an update."""
        finish = self.recipe.steps - 1
        numbers = tuple(range(self.recipe.batch))
        for step in {0, finish}:
            drawn = batches.draw(self.recipe, tuple(self.shape), step, numbers)
            self.gradient(self.inputs(drawn), drawn.route)
            adamw.drop_gradients(self.masters)
        self.wait()

    def wait(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def train(self, on_line: Callable[[dict[str, Any]], None]) -> list[dict[str, Any]]:
        """Train all steps; return the log's lines, each also passed to `on_line`.

        A line: step, seconds, joules, model_flops, tokens (so far), loss (mean since the last line),
        validation_loss.
        """
        recipe, meter, so_far = self.recipe, EnergyMeter(self.device), _Progress()
        tokens = recipe.batch * self.shape[1] * -(-self.shape[2] // 2) * -(-self.shape[3] // 2)
        pending: list[Tensor] = []
        self.wait()
        began, joules = time.perf_counter(), meter.joules()
        for done, (drawn, losses) in enumerate(self.steps(), start=1):
            pending.append(losses.mean())
            so_far.model_flops += self.flops(drawn)
            if done % recipe.target.every and done != recipe.steps:
                continue
            self.wait()
            so_far.seconds += time.perf_counter() - began
            self.check_norm()
            now = meter.joules()
            if now is not None and joules is not None:
                so_far.joules = (so_far.joules or 0.0) + now - joules
            line = {
                "step": done,
                "seconds": round(so_far.seconds, 3),
                "joules": None if so_far.joules is None else round(so_far.joules, 1),
                "model_flops": so_far.model_flops,
                "tokens": tokens * done,
                "sm_mhz": meter.sm_mhz(),
                "loss": float(torch.stack(pending).mean()),
                "validation_loss": self.validate(),
            }
            pending = []
            so_far.log.append(line)
            on_line(line)
            self.wait()
            began, joules = time.perf_counter(), meter.joules()
        return so_far.log


def order_hash(seed: int, count: int, shown: int) -> str:
    """Return the SHA-256 of the numbers of the first `shown` clips that a seed reads, as int32."""
    (numbers,) = itertools.islice(batches.numbers_of_steps(seed, count, shown), 1)
    return hashlib.sha256(np.array(numbers, dtype="<i4").tobytes()).hexdigest()


def reached(log: list[dict[str, Any]], target: float, key: str) -> float | None:
    """Return the value of `key` at which the validation loss falls to `target`; None if it does not.

    Between two lines on a straight line.
    """
    before: dict[str, Any] | None = None
    for line in log:
        if line["validation_loss"] <= target:
            if line[key] is None:
                return None
            if before is None:
                return float(line[key])
            part = (before["validation_loss"] - target) / (
                before["validation_loss"] - line["validation_loss"]
            )
            return float(before[key] + part * (line[key] - before[key]))
        before = line
    return None


def run(
    recipe: TrackRecipe,
    data: Data,
    *,
    graphs: bool = True,
    on_line: Callable[[dict[str, Any]], None] = lambda line: None,
) -> dict[str, Any]:
    """Train `recipe` on `data` and return its record, plain JSON. Raises StateError if it diverges."""
    one = Run(recipe, data, graphs=graphs)
    began = time.perf_counter()
    one.warm_up()
    warm_up_seconds = time.perf_counter() - began
    log = one.train(on_line)
    last = log[-1]
    target = recipe.target.loss
    order = order_hash(recipe.seed, recipe.clips.count, recipe.steps * recipe.batch)
    if one.order.hexdigest() != order:
        raise StateError(f"the run read its clips in another order than seed {recipe.seed} has; it is void.")
    followed = one.count_followed() if recipe.target.prompts else None
    return {
        "name": recipe.name,
        "seed": recipe.seed,
        "steps": recipe.steps,
        "final_loss": last["validation_loss"],
        "target_loss": target,
        "seconds_to_target": None if target is None else reached(log, target, "seconds"),
        "flops_to_target": None if target is None else reached(log, target, "model_flops"),
        "seconds": last["seconds"],
        "joules": last["joules"],
        "model_flops": last["model_flops"],
        "tokens": last["tokens"],
        "prompts": recipe.target.prompts,
        "prompts_followed": followed,
        "parameters": sum(parameter.numel() for parameter in one.model.parameters()),
        "clips_sha256": data.clips.sha256,
        "order_sha256": order,
        "hardware": device_name(one.world) if data.device.type == "cuda" else platform.machine(),
        "torch": torch.__version__,
        "graphs": not one.gradient.why_eager,
        "why_eager": one.gradient.why_eager,
        "warm_up_seconds": round(warm_up_seconds, 1),
        "time": round(time.time()),
        "recipe": json.loads(recipe.model_dump_json()),
        "log": log,
    }
