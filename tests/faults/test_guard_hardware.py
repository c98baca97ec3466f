"""Guard on bad hardware: non-finite or wrong results of a rank are named and separated from bad data."""

import math
import socket
from pathlib import Path

import pytest

from tests.forked_runs import Forked, Forks
from tests.guard_runs import make_poisoned, of_guard, words
from tests.trainer.shards_for_tests import numbers
from trainer.cli import exit_codes
from trainer.run_folder import pointer
from trainer.run_folder.checkpoint import checkpoint, checksum

SHORT = ("stages.0.steps=8", "stages.0.checkpoint_every=3", "stages.0.keep_last=9")

# One rank's device fails: in its forward passes FROM to UNTIL every loss is FACTOR times what it is.
FAULTY = """
import os, sys
from trainer.model import rectified_flow
from trainer.recipe import guard_spec
from trainer.__main__ import main

if "RATIO" in os.environ:
    guard_spec.THRESHOLDS["normal"] = guard_spec.Thresholds(spike_ratio=float(os.environ["RATIO"]))

losses_of, done = rectified_flow.training_losses, [0]
first, last = int(os.environ["FROM"]), int(os.environ["UNTIL"])


def faulty(*arguments, **keywords):
    losses = losses_of(*arguments, **keywords)
    done[0] += 1
    return losses * float(os.environ["FACTOR"]) if first <= done[0] <= last else losses


if os.environ.get("RANK", "0") == os.environ["FAULTY"]:
    rectified_flow.training_losses = faulty
sys.exit(main(os.environ["WORDS"].split("|")))
"""


def start(forks: Forks, given: list[str], ranks: int, **fault: str) -> Forked:
    """Start a run one of whose ranks is FAULTY, as FAULTY says."""
    return forks.start(["-c", FAULTY], ranks, **fault, WORDS="|".join(given))


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_poisoned(tmp_path_factory.mktemp("made") / "sound", poison=None, clips=64)


@pytest.fixture(scope="module")
def not_finite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards whose clips of data step 5 hold latents that are not finite."""
    return make_poisoned(tmp_path_factory.mktemp("made") / "broken", poison=(5, 5), scale=math.nan, clips=64)


@pytest.mark.parametrize("sharding", ["none", pytest.param("full", marks=pytest.mark.soak)])
def test_a_gradient_that_is_not_finite_once_on_one_rank_drains_that_rank(
    recipe: Path, forks: Forks, tmp_path: Path, sharding: str
) -> None:
    run = tmp_path / "run"
    given = words(recipe, run, *SHORT, f"parallel.sharding={sharding}")
    fault = {"FAULTY": "1", "FROM": "5", "UNTIL": "5", "FACTOR": "nan"}
    started = start(forks, given, 2, **fault)

    assert started.codes() == [exit_codes.RESTART, exit_codes.BAD_NODE], started.text()
    (event,) = of_guard(run)
    assert (event["action"], event["finding"], event["step"]) == ("drain", "hardware", 5)
    verdict = event["verdict"]
    assert (verdict["cause"], verdict["ranks"]) == ("hardware", [1])
    assert (verdict["hosts"], verdict["devices"]) == ([socket.gethostname()], ["cpu"])
    assert [other["finding"] for other in event["others"]] == ["nonfinite"]
    assert f"Restart without {socket.gethostname()}" in started.text()
    assert pointer.latest(run) == run / "step-00000003"
    assert len(numbers(run)) == 4


@pytest.mark.parametrize(
    "policy",
    ["rollback", pytest.param("skip", marks=pytest.mark.soak), pytest.param("stop", marks=pytest.mark.soak)],
)
def test_a_policy_is_carried_out_on_all_ranks_when_one_is_not_finite(
    recipe: Path, forks: Forks, tmp_path: Path, policy: str
) -> None:
    run = tmp_path / "run"
    given = words(recipe, run, *SHORT, f"guard.nonfinite={policy}", "watch.on_hardware=warn")
    fault = {"FAULTY": "1", "FROM": "5", "UNTIL": "5", "FACTOR": "nan"}
    started = start(forks, given, 2, **fault)

    code = exit_codes.HALT if policy == "stop" else exit_codes.DONE
    assert started.codes() == [code, code], started.text()
    (event,) = of_guard(run)
    assert (event["action"], event["finding"], event["step"]) == (policy, "nonfinite", 5)
    assert "of rank 1" in event["reason"]
    assert "rank 1 (" in event["reason"]  # the device: computed again it is finite
    assert event["figures"]["ranks"] == [1]
    assert len(event["clip_ids"]) == 2  # rank 1's micro-batch of the step, not rank 0's
    lines = numbers(run)
    if policy == "stop":
        assert (len(lines), pointer.latest(run)) == (4, run / "step-00000003")
        return
    assert [line["step"] for line in lines] == list(range(1, 9))
    state = checkpoint.load(run).state
    if policy == "skip":
        assert [line["step"] for line in lines if line.get("skipped")] == [5]
        assert lines[4]["loss"] == "nan"
        assert (state["step"], state["optimizer_updates"], state["ema_updates"]) == (8, 7, 7)
    else:
        assert (event["to_step"], event["skip"]) == (3, [4, 9])
        assert (state["optimizer_updates"], state["skip"]) == (8, [[4, 9]])
        assert all(math.isfinite(line["loss"]) for line in lines)


def test_latents_that_are_not_finite_are_the_data_and_name_their_clips(
    not_finite: Path, forks: Forks, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    started = forks.start(words(not_finite, run, *SHORT, "guard.nonfinite=skip"), ranks=2)
    started.succeed()

    (event,) = of_guard(run)
    assert (event["action"], event["step"], event["data_step"]) == ("skip", 5, 5)
    assert event["verdict"]["cause"] == "data"
    assert len(event["verdict"]["micro_batches"]) == 2
    assert len(event["clip_ids"]) == event["num_clips"] == 4
    assert checkpoint.load(run).state["optimizer_updates"] == 7


def test_an_update_left_out_changes_neither_weights_nor_average_nor_optimizer(
    not_finite: Path, forks: Forks, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    every = ("stages.0.steps=5", "stages.0.checkpoint_every=1", "stages.0.keep_last=9")
    forks.start(words(not_finite, run, *every, "guard.nonfinite=skip")).succeed()

    before, after = (checkpoint.load(run / f"step-{step:08d}") for step in (4, 5))
    for part in checkpoint.PARTS:
        assert checksum.checksum(before.parts[part]) == checksum.checksum(after.parts[part])
    assert before.state["clips_hash"] != after.state["clips_hash"]


@pytest.mark.parametrize(("faulty", "ranks"), [("1", 2), pytest.param("2", 3, marks=pytest.mark.soak)])
def test_a_device_that_multiplies_wrongly_all_the_time_is_reported_apart_from_bad_data(
    recipe: Path, forks: Forks, tmp_path: Path, faulty: str, ranks: int
) -> None:
    run = tmp_path / "run"
    more = ("stages.0.data.micro_batches_per_step=6", "stages.0.steps=60")
    given = words(recipe, run, *more, "stages.0.checkpoint_every=100")
    per_step = 6 // ranks
    fault = {
        "FAULTY": faulty,
        "FROM": str(34 * per_step + 1),
        "UNTIL": "100000",
        "FACTOR": "40",
        "RATIO": "1.5",
    }
    started = start(forks, given, ranks, **fault)

    wanted = [exit_codes.BAD_NODE if str(rank) == faulty else exit_codes.RESTART for rank in range(ranks)]
    assert started.codes() == wanted, started.text()
    (event,) = of_guard(run)
    assert (event["action"], event["step"]) == ("drain", 35)
    assert (event["verdict"]["cause"], event["verdict"]["ranks"]) == ("hardware", [int(faulty)])
    assert "for its own clips and for another's" in event["verdict"]["reason"]


@pytest.mark.soak
def test_alone_a_step_that_changes_when_computed_again_has_an_unclear_cause(
    recipe: Path, forks: Forks, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    given = words(recipe, run, *SHORT, "guard.nonfinite=skip")
    fault = {"FAULTY": "0", "FROM": "9", "UNTIL": "9", "FACTOR": "inf"}
    start(forks, given, 1, **fault).succeed()

    (event,) = of_guard(run)
    assert (event["action"], event["step"], event["verdict"]["cause"]) == ("skip", 5, "unclear")
