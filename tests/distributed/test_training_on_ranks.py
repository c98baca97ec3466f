"""Any number of ranks trains the same steps, whether each holds the model or they share it: gloo, CPU."""

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from torch import Tensor

from tests.forked_runs import Forks
from tests.trainer.shards_for_tests import SMOKE, command_words, events, make_shards, numbers
from trainer.run_folder.checkpoint import checkpoint, parts

ROOT = SMOKE.parents[1]
# Three micro-batches over two ranks: one of them has one less; over four: one has none. With AdamW's eps at
# the size of a gradient's rounding error, that error is not blown up to a whole step (docs/checkpoints.md).
THREE = (
    "stages.0.data.micro_batches_per_step=3",
    "stages.0.steps=12",
    "stages.0.checkpoint_every=100",
    "stages.0.optim.eps=1e-6",
    "loader.num_workers=0",
    "sample=null",
)
SHARDING = {
    "none": ("parallel.sharding=none",),
    "full": ("parallel.sharding=full",),
    "hybrid": ("parallel.sharding=2",),
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("made") / "shards")


def words(shards: Path, run: Path, *more: str) -> list[str]:
    return command_words(shards, run, *THREE, *more)


@pytest.fixture(scope="module")
def whole(shards: Path, forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run on one rank, never interrupted, with its checkpoints of steps 4 and 12."""
    run = tmp_path_factory.mktemp("whole") / "run"
    forks.start(words(shards, run, "stages.0.checkpoint_every=4", "stages.0.keep_last=9")).succeed()
    return run


def distance(one: Path, other: Path, part: str) -> float:
    """Return the norm of the difference of a part over its norm, all tensors together."""
    return apart(*(checkpoint.load(run).parts[part] for run in (one, other)))


def apart(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Return the norm of the difference over the norm, all tensors together."""
    assert one.keys() == other.keys()
    difference = sum(float((one[name].double() - other[name].double()).square().sum()) for name in one)
    return math.sqrt(difference / sum(float(tensor.double().square().sum()) for tensor in one.values()))


def assert_same_run(whole: Path, run: Path) -> None:
    """Hold a run to the one on one rank: the same clips, rates and mixture, numbers within float error."""
    alone, together = numbers(whole), numbers(run)
    for name in ("step", "clips_hash", "clips", "tokens", "lr"):
        assert [line[name] for line in alone] == [line[name] for line in together], name
    for one, two in zip(alone, together, strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-6)
        assert two["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-5)
        for by in ("loss_by_bucket", "loss_by_level"):
            assert two[by] == pytest.approx(one[by], rel=1e-6)
    for part in checkpoint.PARTS:
        assert distance(whole, run, part) < 1e-6, part


@pytest.mark.parametrize("sharding", ["full", pytest.param("none", marks=pytest.mark.soak)])
def test_from_one_rank_to_two_to_three_to_one(
    shards: Path, forks: Forks, whole: Path, tmp_path: Path, sharding: str
) -> None:
    run = tmp_path / "run"
    for ranks, steps in ((1, 3), (2, 6), (3, 9), (1, 12)):
        more = (f"stages.0.steps={steps}", *SHARDING[sharding])
        forks.start(words(shards, run, *more), ranks=ranks).succeed()

    assert_same_run(whole, run)
    proofs = events(run, "resume")
    assert [proof["world_size"] for proof in proofs] == [2, 3, 1]
    assert [proof["saved_on_ranks"] for proof in proofs] == [1, 2, 3]
    assert all(proof["checksums_match_the_manifest"] for proof in proofs)
    assert [proof["optimizer_updates"] for proof in proofs] == [3, 6, 9]


FEWER = (  # what reaches a loss with less compute (docs/track.md), all of it
    "model.depth=3",
    "stages.0.routing={share: 0.5, pairs: [1, 1], dense_finish: 0.2}",
    "stages.0.data.captions={caption: 1}",
    "stages.0.data.captions_from={6: {clip_id: 1}}",
    "stages.0.checkpoint_every=4",
    "stages.0.keep_last=9",
    "power_ema=[0.05, 0.1]",
)


@pytest.mark.parametrize(
    "muon", [("stages.0.optim.muon=2.0",), pytest.param((), marks=pytest.mark.soak)], ids=["muon", "adamw"]
)
def test_what_learns_with_less_compute_is_the_same_on_one_two_and_three_ranks(
    shards: Path, forks: Forks, tmp_path: Path, muon: tuple[str, ...]
) -> None:
    """Routing, averages with power profiles and captions by the step, resumed on other ranks."""
    whole, run = tmp_path / "whole", tmp_path / "run"
    given = (*FEWER, *muon)
    forks.start(words(shards, whole, *given)).succeed()
    shutil.copytree(whole, run)
    for ranks, step, sharding in ((2, 4, "full"), (3, 8, "none")):
        for later in run.glob("step-*"):
            if int(later.name.partition("-")[2]) > step:
                shutil.rmtree(later)
        (run / "LATEST").write_text(f"step-{step:08d}\n")
        forks.start(words(shards, run, *given, *SHARDING[sharding]), ranks=ranks).succeed()

    alone, together = ({line["step"]: line for line in numbers(folder)} for folder in (whole, run))
    assert alone.keys() == together.keys()
    for step, line in alone.items():
        assert line["clips_hash"] == together[step]["clips_hash"]
        assert together[step]["loss"] == pytest.approx(line["loss"], rel=1e-6)
        assert together[step]["model_flops"] == line["model_flops"]
    for part in checkpoint.PARTS:
        assert distance(whole, run, part) < 1e-6, part
    for part in ("power_ema_narrow", "power_ema_wide"):
        one, other = (parts.read_part_tensors(folder / "step-00000012" / part) for folder in (whole, run))
        assert apart(one, other) < 1e-6, part


@pytest.mark.soak
def test_four_ranks_that_share_two_copies_and_have_three_micro_batches(
    shards: Path, forks: Forks, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    background = "stages.0.checkpoint_in_background=true"
    for ranks, steps in ((4, 6), (1, 12)):
        more = (f"stages.0.steps={steps}", background, *SHARDING["hybrid"])
        forks.start(words(shards, run, *more), ranks=ranks).succeed()

    assert_same_run(whole, run)
    written = {path.name for path in (run / "step-00000006" / "ema").glob("*.distcp")}
    assert len(written) > 1  # several ranks wrote


def test_on_the_same_ranks_a_resumed_run_has_the_same_bytes(
    shards: Path, forks: Forks, tmp_path: Path
) -> None:
    """Cut over two ranks, one of which has no micro-batch, one stage in one go and in two."""
    one = (
        "stages.0.log_every=1",
        "stages.0.data.micro_batches_per_step=1",
        "precision=bfloat16",
        *SHARDING["full"],
    )
    for run, plan in (("whole", (6,)), ("parts", (3, 6))):
        for steps in plan:
            more = (f"stages.0.steps={steps}", *one)
            forks.start(words(shards, tmp_path / run, *more), ranks=2).succeed()

    assert numbers(tmp_path / "parts") == numbers(tmp_path / "whole")
    first, second = (
        {p.relative_to(folder): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
        for folder in (tmp_path / "whole/step-00000006", tmp_path / "parts/step-00000006")
    )
    assert first.keys() == second.keys()
    differs = {"state.json", "manifest.json"}  # the output folder's name is in them
    assert {str(path) for path in first if first[path] != second[path]} <= differs


def test_a_rank_that_is_killed_ends_the_others_and_the_run_resumes_without_it(
    shards: Path, forks: Forks, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    every = "stages.0.checkpoint_every=1"
    started = forks.start(words(shards, run, every, "stages.0.steps=5000", *SHARDING["full"]), ranks=2)
    until = time.monotonic() + 300
    while not (run / "LATEST").exists() and time.monotonic() < until:
        time.sleep(0.02)
    os.kill(started.pids[1], signal.SIGKILL)

    codes = started.codes()

    assert codes[1] == -signal.SIGKILL
    assert codes[0] not in (0, 75)
    step = checkpoint.load(run).state["step"]
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    for folder, ranks in ((run, 1), (copy, 2)):
        forks.start(words(shards, folder, f"stages.0.steps={step + 2}"), ranks=ranks).succeed()
        assert len(numbers(folder)) == step + 2
    assert numbers(run)[-1]["clips_hash"] == numbers(copy)[-1]["clips_hash"]


def test_ranks_that_a_copy_does_not_divide_are_refused(shards: Path, forks: Forks, tmp_path: Path) -> None:
    more = ("parallel.sharding=2",)
    ended = forks.start(words(shards, tmp_path / "run", *more), ranks=3)

    assert set(ended.codes()) == {2}
    assert "parallel.sharding 2 does not divide the 3 ranks" in ended.text()


@pytest.mark.soak
def test_a_refusal_under_torchrun_ends_all_ranks_at_once(shards: Path, whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    ended = subprocess.run(
        [*command, "-m", "trainer", *words(shards, run, "seed=9", *SHARDING["full"])],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )

    assert ended.returncode != 0
    assert "seed was 42 when" in ended.stderr
