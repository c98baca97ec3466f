"""A model laid over ranks has the gradients of a whole one; a failure is all ranks'."""

import json
from pathlib import Path

import pytest

from tests.forked_runs import Forks

TOGETHER = """
import json, os
import torch
from torch import nn
from trainer.distributed import mesh
from vidcurate.errors import StorageError, VidcurateError

world = mesh.init_process_groups()
said = {}


def reported(name, work):
    try:
        said[name] = work()
    except VidcurateError as error:
        said[name] = f"{type(error).__name__}: {error}"


def fails(rank):
    if world.rank == rank:
        raise StorageError("the disk is full.")
    return world.rank


facts = {"recipe": "same", "data": f"fingerprint {world.rank}"}
reported("agree", lambda: mesh.check_same_on_all_ranks(facts, world))
reported("first fails", lambda: mesh.run_on_first_rank(lambda: fails(0), world))
reported("second fails", lambda: mesh.run_on_all_ranks(lambda: fails(1), world))
reported("none fails", lambda: mesh.run_on_all_ranks(lambda: fails(9), world.background))
reported("value", lambda: mesh.run_on_first_rank(lambda: {"rank": world.rank}, world))
reported("gathered", lambda: mesh.all_gather(world.rank, world))

# The second rank had no micro-batch: its gradients are None and count as zeros. Two buffers are needed.
mesh.BUFFER_ELEMENTS = 5
parameters = [nn.Parameter(torch.zeros(shape)) for shape in ((2, 2), (3,), (1,))]
if world.is_first:
    for number, parameter in enumerate(parameters):
        parameter.grad = torch.full_like(parameter, number + 1.0)
mesh.sum_gradients(parameters, world)
said["sums"] = [parameter.grad.sum().item() for parameter in parameters]
with open(f"{os.environ['OUT']}/{world.rank}.json", "w") as file:
    json.dump(said, file)
mesh.destroy_process_groups(world)
"""


def test_what_ranks_do_together_fails_on_all_of_them(forks: Forks, tmp_path: Path) -> None:
    forks.start(["-c", TOGETHER], ranks=2, OUT=str(tmp_path)).succeed()

    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first == second
    assert first == {
        "agree": "StateError: rank 1 has a different data from rank 0: fingerprint 1 and fingerprint 0. "
        "All ranks must see the same recipe and the same shards.",
        "first fails": "StorageError: the disk is full.",
        "second fails": "StorageError: the disk is full.",
        "none fails": [0, 1],
        "value": {"rank": 0},
        "gathered": [0, 1],
        "sums": [4.0, 6.0, 3.0],
    }


LAYOUT = """
import copy, importlib.util, json, os
import torch
from trainer.distributed import mesh
from trainer.training.optim import adamw, schedule
from trainer.distributed import parallelize
from trainer.run_folder.checkpoint.checksum import checksum
from trainer.distributed.spec import ParallelSpec
from trainer.model.stdit import STDiT3, STDiT3Config

world = mesh.init_process_groups()
config = STDiT3Config(hidden_size=24, depth=2, num_heads=2, caption_channels=8, model_max_length=6,
                      freeze_y_embedder=True)
spec = ParallelSpec(sharding=int(os.environ["SIZE"]) or os.environ["SHARDING"], recompute_blocks=1)
dtype = getattr(torch, os.environ["DTYPE"])


def loss(layout, number):
    # Of another shape for each number; an image has no temporal attention to learn from.
    frames = (1, 3, 2)[number % 3]
    draw = torch.Generator().manual_seed(number)
    inputs = {"x": torch.randn(2, 4, frames, 4, 6, generator=draw), "timestep": torch.tensor([300.0, 700.0]),
              "y": torch.randn(2, 1, 6, 8, generator=draw), "fps": torch.tensor([24.0, 24.0]),
              "height": torch.tensor([32.0]), "width": torch.tensor([48.0])}
    layout.recompute.choose_plan(inputs["x"], inputs["y"])
    return layout.compute(**inputs).square().mean()


def fresh():
    model = STDiT3(config, seed=3)
    with torch.no_grad():
        for parameter in model.parameters():  # none zero: every gradient is
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
    return model


shares = {2: [[0, 1], []], 3: [[0], [1, 2, 3], []]}.get(world.size) or [[0], [1], [], [2]]
alone, shared = fresh(), fresh()
plain = parallelize.parallelize_model(alone, ParallelSpec(recompute_blocks=1), mesh.ALONE, dtype)
layout = parallelize.parallelize_model(shared, spec, world, dtype)
same_checksum = checksum(alone.state_dict()) == checksum(shared.state_dict())
# Of full the kernel updates the pieces, in Triton's interpreter; of the others torch does.
in_one_pass = os.environ["SHARDING"] == "full" and importlib.util.find_spec("triton") is not None
plain_masters, shared_masters = adamw.masters(alone), adamw.masters(shared, in_one_pass=in_one_pass)
said = {"same_checksum": same_checksum, "gradients": [], "norms": [], "clipped": [], "weights": []}
for step in range(2):
    plain.begin_step()
    for number in sum(shares, []):
        loss(plain, number + 10 * step).backward()
    plain.reduce_gradients()
    layout.begin_step()
    for number in shares[world.rank]:
        loss(layout, number + 10 * step).backward()
    layout.reduce_gradients()
    ours, theirs = adamw.trained(shared), adamw.trained(alone)
    off = total = 0.0
    for name in theirs:
        assert ours[name].grad.dtype == torch.float32, name
        grown = mesh.full_tensor(ours[name].grad)
        off += float((grown - theirs[name].grad).double().square().sum())
        total += float(theirs[name].grad.double().square().sum())
    said["gradients"].append((off / total) ** 0.5)
    said["norms"].append([adamw.gradient_norm(masters) for masters in (plain_masters, shared_masters)])
    for masters, norm in zip((plain_masters, shared_masters), said["norms"][-1], strict=True):
        # No first moment is kept, so the one that is left is this gradient, clipped.
        words = {"lr": 1e-2, "ema_decay": 0.9, "clip_factor": adamw.clip_factor(norm, 0.5)}
        adamw.update(masters, schedule.OptimSpec(eps=1e-3, betas=(0.0, 0.999)), **words)
    moments = adamw.moments(shared, shared_masters.optimizer)
    said["clipped"].append(float(adamw.norm(moments[f"exp_avg.{name}"] for name in ours)))
    both = [(mesh.full_tensor(shared_masters.ema[name]), value) for name, value in plain_masters.ema.items()]
    said["weights"].append(max(float((one - other).abs().max()) for one, other in both))
with layout.gathered_weights(), torch.no_grad():
    said["read"] = float(loss(layout, 5))
with plain.gathered_weights(), torch.no_grad():
    said["plain read"] = float(loss(plain, 5))
for name, value in shared.state_dict().items():
    mesh.copy_to_shards(value, alone.state_dict()[name])
said["same_after_put"] = checksum(alone.state_dict()) == checksum(shared.state_dict())
held, all_of_it = (sum(mesh.local_shard(p).numel() for p in model.parameters()) for model in (shared, alone))
said["held"] = held / all_of_it
with open(f"{os.environ['OUT']}/{world.rank}.json", "w") as file:
    json.dump(said, file)
mesh.destroy_process_groups(world)
"""


@pytest.mark.parametrize(
    ("ranks", "sharding", "size", "dtype"),
    [
        pytest.param(2, "none", 0, "bfloat16", marks=pytest.mark.soak),
        pytest.param(3, "full", 0, "float32", marks=pytest.mark.soak),
        pytest.param(2, "full", 0, "bfloat16", marks=pytest.mark.soak),
        (4, "hybrid", 2, "float32"),
    ],
)
def test_a_model_laid_over_ranks_has_the_gradients_of_one_that_is_whole(
    forks: Forks, tmp_path: Path, ranks: int, sharding: str, size: int, dtype: str
) -> None:
    environment = {"OUT": str(tmp_path), "SHARDING": sharding, "SIZE": str(size), "DTYPE": dtype}
    forks.start(["-c", LAYOUT], ranks=ranks, **environment).succeed()

    for rank in range(ranks):
        said = json.loads((tmp_path / f"{rank}.json").read_text())
        assert said["same_checksum"]
        assert said["same_after_put"]
        for plain, shared in said["norms"]:
            assert shared == pytest.approx(plain, rel=1e-6)
        assert max(said["gradients"]) < 1e-6
        assert said["clipped"] == [pytest.approx(0.5, rel=1e-5)] * 2
        assert max(said["weights"]) < 1e-6
        assert said["read"] == pytest.approx(said["plain read"], rel=1e-5)
        pieces = 1 if sharding == "none" else size or ranks
        assert said["held"] == pytest.approx(1 / pieces, rel=0.15)
