"""Any number of ranks trains the same steps: real torchrun, gloo, CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.trainer.shards_for_tests import SMOKE, events, make_shards, numbers, settings, smoke
from trainer import checkpoint
from trainer.loop import train

ROOT = SMOKE.parents[1]
# Three micro-batches over two ranks: one of them has one less, in turns of cost.
THREE = (
    "stages.0.data.micro_batches_per_step=3",
    "stages.0.steps=6",
    "stages.0.checkpoint_every=3",
    "sample=null",
)
LIMIT_SECONDS = 120


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("made") / "shards")


def torchrun(ranks: int, *arguments: str) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return subprocess.run(
        [*words, *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def command(shards: Path, run: Path, *more: str) -> list[str]:
    values = settings(shards, run, *THREE, *more)
    return ["-m", "trainer", str(SMOKE), *(word for value in values for word in ("--set", value))]


@pytest.fixture(scope="module")
def one_rank(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("one") / "run"
    train(smoke(shards, run, *THREE))
    return run


@pytest.fixture(scope="module")
def two_ranks(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("two") / "run"
    ended = torchrun(2, *command(shards, run, "stages.0.steps=3"))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("done: 3 steps") == 1  # the first rank speaks for both
    return run


def test_one_and_two_ranks_read_the_same_clips_and_make_the_same_steps(
    one_rank: Path, two_ranks: Path
) -> None:
    alone, together = numbers(one_rank)[:3], numbers(two_ranks)

    assert [line["clips_hash"] for line in alone] == [line["clips_hash"] for line in together]
    for one, two in zip(alone, together, strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)
        assert two["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-4)
        assert two["loss_by_bucket"] == pytest.approx(one["loss_by_bucket"], rel=1e-5)
        assert (two["clips"], two["tokens"], two["lr"]) == (one["clips"], one["tokens"], one["lr"])
    ours = checkpoint.load(two_ranks).parts["model"]
    theirs = checkpoint.load(one_rank / "step-00000003").parts["model"]
    for name, value in theirs.items():
        assert torch.allclose(ours[name], value, atol=2e-5), name


def test_a_run_begun_on_two_ranks_goes_on_on_one(
    shards: Path, one_rank: Path, two_ranks: Path, tmp_path: Path
) -> None:
    train(smoke(shards, two_ranks, *THREE))

    assert [line["clips_hash"] for line in numbers(two_ranks)] == [
        line["clips_hash"] for line in numbers(one_rank)
    ]
    losses = [line["loss"] for line in numbers(one_rank)]
    assert [line["loss"] for line in numbers(two_ranks)] == pytest.approx(losses, rel=1e-5)
    assert events(two_ranks, "start")[0]["world_size"] == 2
    assert events(two_ranks, "resume")[0]["world_size"] == 1


def test_ranks_that_differ_stop_and_say_in_what(tmp_path: Path) -> None:
    script = tmp_path / "act.py"
    script.write_text(
        """
import json, sys, torch
from torch import nn
from trainer import mesh
from vidcurate.errors import StorageError, VidcurateError

world = mesh.join()
said = {}
try:
    mesh.agree({"recipe": "same", "data": f"fingerprint {world.rank}"}, world)
except VidcurateError as error:
    said["agree"] = str(error)


def fails():
    raise StorageError("the disk is full.")


try:
    mesh.first_does(fails, world)
except VidcurateError as error:
    said["fails"] = f"{type(error).__name__}: {error}"
said["value"] = mesh.first_does(lambda: {"rank": world.rank}, world)
said["gathered"] = mesh.gather(world.rank, world)

# The second rank had no micro-batch: its gradients are None and count as zeros. Two buffers are needed.
mesh.BUFFER_ELEMENTS = 5
parameters = [nn.Parameter(torch.zeros(shape)) for shape in ((2, 2), (3,), (1,))]
if world.is_first:
    for number, parameter in enumerate(parameters):
        parameter.grad = torch.full_like(parameter, number + 1.0)
mesh.sum_gradients(parameters, world)
said["sums"] = [parameter.grad.sum().item() for parameter in parameters]
with open(f"{sys.argv[1]}/{world.rank}.json", "w") as file:
    json.dump(said, file)
mesh.leave(world)
"""
    )

    ended = torchrun(2, str(script), str(tmp_path))

    assert ended.returncode == 0, ended.stderr
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert (
        first
        == second
        == {
            "agree": "rank 1 has another data than rank 0: fingerprint 1 and fingerprint 0. "
            "All ranks must see the same recipe and the same shards.",
            "fails": "StorageError: the disk is full.",
            "value": {"rank": 0},
            "gathered": [0, 1],
            "sums": [4.0, 6.0, 3.0],
        }
    )


def test_a_refusal_ends_all_ranks_at_once(shards: Path, two_ranks: Path) -> None:
    ended = torchrun(2, *command(shards, two_ranks, "seed=9"))

    assert ended.returncode != 0
    assert "seed was 42 when" in ended.stderr
