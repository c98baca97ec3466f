"""A model whose blocks run through kernels is shared by ranks like a readable one: gloo, an interpreter."""

import json
from pathlib import Path

import pytest

from tests.forked_runs import Forks

pytest.importorskip("triton", reason="triton is not installed on this platform")

PROGRAM = """
import itertools, json, os
import torch
from trainer.distributed import mesh
from trainer.model import rng
from trainer.training.optim import adamw
from trainer.distributed import parallelize
from trainer.model.kernels import qk_norm
from trainer.distributed.mesh import ALONE
from trainer.distributed.spec import ParallelSpec
from trainer.model.stdit import STDiT3, STDiT3Config, lengths_read

qk_norm.BACKWARD = (4, 4)  # the interpreter is slow
world = mesh.init_process_groups()
config = STDiT3Config(hidden_size=32, depth=1, num_heads=1, caption_channels=8, model_max_length=6,
                      input_sq_size=32)
sizes = {name: torch.full((1,), 32.0) for name in ("fps", "height", "width")}


def gradients(spec, fast, float8=False, world=world, ranks=(world.rank,)):
    model = STDiT3(config, seed=1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # none zero: every gradient is
            parameter.add_(0.1 * rng.normal(0, "init", 0, [name], tuple(parameter.shape))[0])
    layout = parallelize.parallelize_model(model, spec, world, torch.float32, fast=fast, float8=float8)
    layout.begin_step()
    for number, rank in itertools.product(range(2), ranks):  # micro-batches of each rank
        draw = torch.Generator().manual_seed(10 * number + rank)
        latents = torch.randn(1, 4, 2, 2, 4, generator=draw)
        features = torch.randn(1, 1, 6, 8, generator=draw)
        layout.recompute.choose_plan(latents, features)
        own, drops = 2 + rank, [number == 1]  # the second caption is dropped
        mask = torch.arange(6)[None] < own
        text = lengths_read(config, [own], drops)
        out = layout.compute(latents, torch.tensor([300.0]), features, mask=mask,
                             drop_caption=torch.tensor(drops), text_lengths=text, **sizes)
        out.square().mean().backward()
    layout.reduce_gradients()
    return {name: mesh.full_tensor(parameter.grad) for name, parameter in adamw.trained(model).items()}


float8 = bool(int(os.environ["FLOAT8"]))
every = (ALONE, range(world.size))
wanted = gradients(ParallelSpec(), float8, float8, *every)  # of one rank
said = {}
for sharding in ("none", "full"):
    found = gradients(ParallelSpec(sharding=sharding, recompute_blocks=0 if float8 else 1), True, float8)
    off = [float((found[name] - value).norm() / value.norm()) for name, value in wanted.items()]
    said[sharding] = max(off)
with open(f"{os.environ['OUT']}/{world.rank}.json", "w") as file:
    json.dump(said, file)
mesh.destroy_process_groups(world)
"""


@pytest.mark.parametrize(
    ("float8", "within"),
    [(False, 1e-5), pytest.param(True, 1e-6, marks=pytest.mark.soak)],
    ids=["as_readable", "float8"],
)
def test_the_gradients_of_fast_blocks_are_those_of_one_rank_however_ranks_share(
    forks: Forks, tmp_path: Path, float8: bool, within: float
) -> None:
    """One rank has readable blocks, or float8's, whose rounding any number of ranks repeats."""
    given = {"OUT": str(tmp_path), "TRITON_INTERPRET": "1", "FLOAT8": str(int(float8))}
    forks.start(["-c", PROGRAM], ranks=2, **given).succeed()

    for rank in range(2):
        said = json.loads((tmp_path / f"{rank}.json").read_text())
        assert set(said) == {"none", "full"}
        assert max(said.values()) < within
