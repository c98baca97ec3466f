"""Muon split over ranks, replicated or sharded: the weights of one rank, bit for bit."""

import json
from pathlib import Path

import pytest

from tests.forked_runs import Forks

UPDATES = """
import json, os
import torch
from trainer.distributed import mesh, parallelize
from trainer.distributed.spec import ParallelSpec
from trainer.model.stdit import STDiT3, STDiT3Config
from trainer.training.optim import adamw
from trainer.training.optim.schedule import OptimSpec

world = mesh.init_process_groups()
# A width that three ranks do not divide, so that shards are uneven.
sizes = {"hidden_size": 20, "depth": int(os.environ["DEPTH"]), "num_heads": 2}
config = STDiT3Config(**sizes, caption_channels=8, model_max_length=6)
spec = ParallelSpec(sharding=int(os.environ["SIZE"]) or os.environ["SHARDING"])
alone, shared = STDiT3(config, seed=3), STDiT3(config, seed=3)
layout = parallelize.parallelize_model(shared, spec, world, torch.float32)
optim = OptimSpec(weight_decay=0.1, muon=2.0)
kernel = {"with_muon": True, "in_one_pass": os.environ.get("TRITON_INTERPRET") == "1"}
masters = [adamw.masters(alone, **kernel), adamw.masters(shared, **kernel, world=world)]
for step in range(2):
    for number, (name, parameter) in enumerate(adamw.trained(alone).items()):
        draw = torch.Generator().manual_seed(100 * step + number)
        parameter.grad = torch.randn(parameter.shape, generator=draw)
        theirs = adamw.trained(shared)[name]
        theirs.grad = torch.zeros_like(theirs)
        mesh.copy_to_shards(theirs.grad, parameter.grad)
    for each in masters:
        adamw.update(each, optim, lr=1e-2, ema_decay=0.9, clip_factor=0.5)
found = {"weights": 0.0, "ema": 0.0, "optimizer": 0.0}
pairs = [(alone.state_dict(), shared.state_dict()), (masters[0].ema, masters[1].ema),
         (masters[0].optimizer_tensors(alone), masters[1].optimizer_tensors(shared))]
for name, (ours, theirs) in zip(found, pairs, strict=True):
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        found[name] = max(found[name], float((mesh.full_tensor(theirs[key]) - value).abs().max()))
found["owners"] = sorted(set(masters[1].matrices.owners))
with open(f"{os.environ['OUT']}/{world.rank}.json", "w") as file:
    json.dump(found, file)
mesh.destroy_process_groups(world)
"""


@pytest.mark.parametrize(
    ("ranks", "sharding", "size", "depth", "kernel"),
    [
        (2, "none", 0, 2, False),
        (3, "full", 0, 2, False),
        pytest.param(4, "hybrid", 2, 2, False, marks=pytest.mark.soak),
        pytest.param(3, "full", 0, 1, True, marks=pytest.mark.soak),
        pytest.param(2, "none", 0, 1, True, marks=pytest.mark.soak),
    ],
)
def test_any_number_of_ranks_makes_the_update_of_one(
    forks: Forks, tmp_path: Path, ranks: int, sharding: str, size: int, depth: int, kernel: bool
) -> None:
    environment = {"OUT": str(tmp_path), "SHARDING": sharding, "SIZE": str(size), "DEPTH": str(depth)}
    environment["TRITON_INTERPRET"] = str(int(kernel))
    forks.start(["-c", UPDATES], ranks=ranks, **environment).succeed()

    for rank in range(ranks):
        said = json.loads((tmp_path / f"{rank}.json").read_text())
        assert said.pop("owners") == list(range(size or ranks))
        assert said == {"weights": 0.0, "ema": 0.0, "optimizer": 0.0}
