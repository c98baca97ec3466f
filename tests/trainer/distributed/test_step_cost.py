"""What a micro-batch costs the host: no wait for the device, and few operations beside the model's own.

The device is torch's `meta`: nothing can be read back from it, so whatever would wait for a GPU fails.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.trainer.shards_for_tests import TINY
from trainer.data.latents.read import LatentBatch
from trainer.distributed import parallelize
from trainer.distributed.mesh import World
from trainer.model.encoders.registry import text_encoder, video_encoder
from trainer.model.stdit import STDiT3
from trainer.model.tensors import send
from trainer.recipe import recipe as recipes
from trainer.recipe.recipe import TrainRecipe
from trainer.training.micro_batch import StepContext, add_gradient
from vidcurate.sampler.bucket_shapes import Bucket

META = torch.device("meta")
MOST_BESIDE = 65  # operations of both passes; views do not count
VIEWS: tuple[str, ...] = (
    "view",
    "slice",
    "t",
    "unsqueeze",
    "expand",
    "transpose",
    "_unsafe_view",
    "select",
    "permute",
)
VIEWS += ("detach", "split", "unbind", "alias", "squeeze", "empty", "new_empty", "empty_like", "lift_fresh")


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations that do something, and keeps the copies from the CPU to the device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()
        self.sent: list[bool] = []  # of each copy: whether it is non-blocking
        self.of_model = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name not in VIEWS:
            self.counts[name] += 1
        if name == "_to_copy" and args[0].device.type == "cpu" and kwargs.get("device") == META:
            self.sent.append(bool(kwargs.get("non_blocking")))
        if name == "copy_" and args[0].device == META and args[1].device.type == "cpu":
            self.sent.append(len(args) > 2 and bool(args[2]))
        return func(*args, **kwargs)

    @property
    def total(self) -> int:
        return sum(self.counts.values())


def clips(recipe: TrainRecipe, count: int, variance: bool) -> LatentBatch:
    bucket = Bucket(
        resolution="32px", num_frames=8, aspect="1.00", height=32, width=32, micro_batch_size=count
    )
    latents = torch.zeros(count, *video_encoder(recipe.video_encoder).latent_shape(8, 32, 32))
    return LatentBatch(
        position=0,
        bucket=bucket,
        cell="level-1/32px",
        clip_ids=tuple(f"clip-{number}" for number in range(count)),
        latents=latents,
        variance=latents.clone() if variance else None,
        texts=tuple(torch.zeros(3 + number % 5, 16) for number in range(count)),
        fps=np.full(count, 8.0, dtype=np.float32),
        level=np.ones(count, dtype=np.int32),
        source=("made",) * count,
        start_frame=np.zeros(count, dtype=np.int64),
    )


def operations(count: int, *settings: str, variance: bool = False) -> Operations:
    """Return those of both passes of a micro-batch of `count` clips, through bfloat16."""
    recipe = recipes.load(TINY, settings)
    model = STDiT3(recipe.model).to(META)
    world = World(rank=0, size=1, device=META)
    layout = parallelize.parallelize_model(model, recipe.parallel, world, torch.bfloat16)
    context = StepContext(
        recipe=recipe,
        world=world,
        layout=layout,
        video=video_encoder(recipe.video_encoder),
        text=text_encoder(recipe.text_encoder),
    )
    layout.begin_step()
    seen = Operations()

    def begins(*_: object) -> None:
        seen.of_model -= seen.total

    def ends(_: object, __: object, out: Tensor) -> None:
        seen.of_model += seen.total
        out.register_hook(begins)  # type: ignore[no-untyped-call]

    layout.compute.register_forward_pre_hook(begins)
    layout.compute.register_forward_hook(ends)
    batch = clips(recipe, count, variance)
    with seen:
        add_gradient(context, recipe.stages[0], batch, step=3, num_clips=count)
    seen.of_model += seen.total
    return seen


def test_a_copy_to_the_device_does_not_hold_up_the_host() -> None:
    with Operations() as seen:
        send(torch.zeros(3), META)
        torch.zeros(3).to(META)
    assert seen.sent == [True, False]
    here = torch.zeros(3)
    assert send(here, here.device) is here


SAMPLED = ("video_encoder={kind: vae, posterior: sample}",)


@pytest.mark.parametrize("settings", [(), SAMPLED])
def test_nothing_of_a_micro_batch_waits_for_the_device(settings: tuple[str, ...]) -> None:
    seen = operations(4, *settings, variance=bool(settings))

    assert seen.sent
    assert all(seen.sent)


def test_a_micro_batch_costs_few_operations_beside_the_model_whatever_its_clips() -> None:
    few, many = operations(2), operations(16)

    # One more of each clip: its caption's features are copied to their place.
    assert many.total - few.total == 14
    assert len(many.sent) - len(few.sent) == 14
    # Noise, timesteps, masks, sizes, the loss. Before it grows: is it needed in every micro-batch?
    assert len(few.sent) - 2 <= 9
    assert 0 < few.of_model < few.total
    assert few.total - few.of_model - 2 <= MOST_BESIDE
