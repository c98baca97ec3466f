"""A model whose blocks run through kernels is shared by ranks like a readable one: gloo, an interpreter."""

import json
from pathlib import Path

import pytest

from tests.forked_runs import Forks

pytest.importorskip("triton", reason="triton is not installed on this platform")

PROGRAM = """
import json, os
import torch
from trainer.distributed import mesh
from trainer.model import rng
from trainer.training.optim import adamw
from trainer.distributed import parallelize
from trainer.model.kernels import qk_norm
from trainer.distributed.spec import ParallelSpec
from trainer.model.stdit import STDiT3, STDiT3Config, lengths_read

qk_norm.BACKWARD = (4, 4)  # the interpreter is slow
world = mesh.init_process_groups()
config = STDiT3Config(hidden_size=24, depth=1, num_heads=1, caption_channels=8, model_max_length=6,
                      input_sq_size=32)
sizes = {name: torch.full((1,), 32.0) for name in ("fps", "height", "width")}


def gradients(spec, fast):
    model = STDiT3(config, seed=1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # none zero: every gradient is
            parameter.add_(0.1 * rng.normal(0, "init", 0, [name], tuple(parameter.shape))[0])
    layout = parallelize.parallelize_model(model, spec, world, torch.float32, fast=fast)
    layout.begin_step()
    for number in range(2):  # micro-batches of each rank
        draw = torch.Generator().manual_seed(10 * number + world.rank)
        latents = torch.randn(1, 4, 2, 2, 4, generator=draw)
        features = torch.randn(1, 1, 6, 8, generator=draw)
        layout.recompute.choose_plan(latents, features)
        own, drops = 2 + world.rank, [number == 1]  # the second caption is dropped
        mask = torch.arange(6)[None] < own
        text = lengths_read(config, [own], drops)
        out = layout.compute(latents, torch.tensor([300.0]), features, mask=mask,
                             drop_caption=torch.tensor(drops), text_lengths=text, **sizes)
        out.square().mean().backward()
    layout.reduce_gradients()
    return {name: mesh.full_tensor(parameter.grad) for name, parameter in adamw.trained(model).items()}


wanted = gradients(ParallelSpec(sharding="none"), False)
said = {}
for sharding in ("none", "full"):
    found = gradients(ParallelSpec(sharding=sharding, recompute_blocks=1), True)
    off = [float((found[name] - value).norm() / value.norm()) for name, value in wanted.items()]
    said[sharding] = max(off)
with open(f"{os.environ['OUT']}/{world.rank}.json", "w") as file:
    json.dump(said, file)
mesh.destroy_process_groups(world)
"""


def test_the_gradients_of_fast_blocks_are_those_of_readable_ones_however_ranks_share(
    forks: Forks, tmp_path: Path
) -> None:
    forks.start(["-c", PROGRAM], ranks=2, OUT=str(tmp_path), TRITON_INTERPRET="1").succeed()

    for rank in range(2):
        said = json.loads((tmp_path / f"{rank}.json").read_text())
        assert set(said) == {"none", "full"}
        assert max(said.values()) < 1e-5
