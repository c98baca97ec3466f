"""Guard rollback over a poisoned window: the run equals one whose recipe skips the window from the start."""

from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.forked_runs import Forks
from tests.guard_runs import STEPS, make_poisoned, of_guard, same_training, words
from tests.trainer.shards_for_tests import events, numbers
from trainer.cli import exit_codes
from trainer.data import stages as data_stages
from trainer.report.preview import dry_run, inspect_run, plan
from trainer.report.preview import stages as preview_stages
from trainer.run_folder import pointer
from trainer.run_folder.checkpoint import checkpoint
from trainer.training.guard import rollback_file
from trainer.training.guard.history import Rollback
from vidcurate.sampler import order

ROLLBACK = ("guard.spike=rollback", "guard.gradient=rollback")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_poisoned(tmp_path_factory.mktemp("made") / "poisoned")


@pytest.fixture(scope="module")
def reported(recipe: Path, forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Of a number of ranks the run whose recipe skips the window."""

    @cache
    def run_on(ranks: int) -> Path:
        run = tmp_path_factory.mktemp("skips") / f"run-{ranks}"
        # Skipped are the window, the margin behind it, and that before it as far as the checkpoint.
        forks.start(words(recipe, run, "stages.0.skip=[[36, 41]]"), ranks=ranks).succeed()
        return run

    return run_on


@pytest.mark.parametrize(
    ("ranks", "background"), [(1, "true"), pytest.param(2, "false", marks=pytest.mark.soak)]
)
def test_after_a_rollback_the_run_is_one_that_was_reported_to_skip_the_window(
    recipe: Path, reported: Callable[[int], Path], forks: Forks, tmp_path: Path, ranks: int, background: str
) -> None:
    run = tmp_path / "run"
    in_background = f"stages.0.checkpoint_in_background={background}"  # one may be in flight
    started = forks.start(words(recipe, run, *ROLLBACK, in_background), ranks=ranks)
    started.succeed()

    (event,) = of_guard(run)
    assert (event["step"], event["data_step"]) == (37, 37)
    assert (event["action"], event["finding"], event["shape"]) == ("rollback", "spike", "instant")
    assert (event["to_step"], event["skip"]) == (35, [36, 41])
    assert event["verdict"]["cause"] == "data"
    found = preview_stages.read_stages(recipe)
    of_run = found.recipe
    poisoned = data_stages.step_plan(
        found.stages[0], 36, of_run.video_encoder, of_run.model.patch_size
    ).clip_ids
    assert set(event["clip_ids"]) <= set(poisoned)
    assert "guard: step 37: the loss" in started.text()
    assert "guard: rolled back to step 35; skipping data steps 36–41 of this stage" in started.text()
    same_training(run, reported(ranks))
    assert len(numbers(run)) == STEPS

    if ranks == 1:
        _what_is_shown_of_a_step_is_what_was_trained_in_it(run, event["clip_ids"])


def _what_is_shown_of_a_step_is_what_was_trained_in_it(run: Path, poisoned: list[str]) -> None:
    found = preview_stages.read_stages(run)
    so_far, hashes = "", []
    for step in range(1, STEPS + 1):
        shown = [clip["clip_id"] for part in plan.micro_batches(found, step, step) for clip in part["clips"]]
        so_far = order.rolling_hash(so_far, shown)
        hashes.append(so_far)
    assert hashes == [line["clips_hash"] for line in numbers(run)]
    assert shown == [clip["clip_id"] for clip in inspect_run.clips_of_step(run, STEPS)]
    for clip_id in poisoned:
        assert plan.showings(found, clip_id, STEPS) == []
    later = inspect_run.clips_of_step(run, 36)[0]["clip_id"]
    assert [shown["step"] for shown in plan.showings(found, later, STEPS)] == [36]

    (stage,) = dry_run.dry_run(found.recipe)["stages"]  # the resumed run skips the window
    assert stage["skip"] == [[36, 41]]
    read = Counter(part["cell"] for part in plan.micro_batches(found, 1, STEPS))
    assert {cell["name"]: cell["micro_batches"] for cell in stage["cells"]} == read
    assert sum(bucket["micro_batches"] for bucket in stage["buckets"]) == 2 * STEPS


# Killed in the middle of the rollback, behind a named act of it.
KILLED = """
import os, signal, sys
from trainer.run_folder.checkpoint import checkpoint
from trainer.run_folder import metrics
from trainer.training import resume
from trainer.training.guard import rollback_file
from trainer.training.guard.history import Rollback
from trainer.__main__ import main

module, name = {
    "write": (rollback_file, "write_rollbacks"),
    "finish_rollback": (rollback_file, "finish_rollback"),
    "forget": (metrics, "forget_after"),
}[os.environ["AT"]]
act = getattr(module, name)


def then_die(run, *more):
    result = act(run, *more)
    if (run / "metrics.jsonl").exists() and rollback_file.read_rollbacks(run):
        os.kill(os.getpid(), signal.SIGKILL)
    return result


setattr(module, name, then_die)
sys.exit(main(os.environ["WORDS"].split("|")))
"""


@pytest.mark.parametrize(
    ("at", "ranks"),
    [
        ("finish_rollback", 1),
        pytest.param("write", 1, marks=pytest.mark.soak),
        pytest.param("forget", 2, marks=pytest.mark.soak),
    ],
)
def test_a_kill_in_the_middle_of_a_rollback_changes_nothing(
    recipe: Path, reported: Callable[[int], Path], forks: Forks, tmp_path: Path, at: str, ranks: int
) -> None:
    run = tmp_path / "run"
    given = words(recipe, run, *ROLLBACK)
    started = forks.start(["-c", KILLED], ranks=ranks, WORDS="|".join(given), AT=at)
    assert -9 in started.codes(), started.text()
    assert len(rollback_file.read_rollbacks(run)) == 1
    assert len(numbers(run)) == (35 if at == "forget" else 36)

    forks.start(given, ranks=ranks).succeed()
    same_training(run, reported(ranks))
    assert [event["action"] for event in of_guard(run)] == ["rollback"]


def test_a_run_killed_before_the_problem_decides_as_one_that_never_stopped(
    recipe: Path, reported: Callable[[int], Path], forks: Forks, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    forks.start(words(recipe, run, *ROLLBACK, "stages.0.steps=30")).succeed()
    kept_of_it = checkpoint.read_state(run / "step-00000030")["guard"]["memory"]
    assert len(kept_of_it["gradients"]) == 30  # the memory lies in the checkpoint
    forks.start(words(recipe, run, *ROLLBACK)).succeed()

    (event,) = of_guard(run)
    assert (event["step"], event["to_step"], event["skip"]) == (37, 35, [36, 41])
    same_training(run, reported(1))


def test_when_the_rollbacks_are_used_up_the_run_stops_and_saves_nothing(
    recipe: Path, reported: Callable[[int], Path], forks: Forks, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    started = forks.start(words(recipe, run, *ROLLBACK, "guard.max_rollbacks=0"))
    assert started.codes() == [exit_codes.HALT], started.text()

    (event,) = of_guard(run)
    assert (event["action"], event["policy"], event["step"]) == ("stop", "rollback", 37)
    assert pointer.latest(run) == run / "step-00000035"
    assert len(numbers(run)) == 36
    assert "no weight was updated. Its clips: made-" in started.text()
    assert "Traceback" not in started.text()

    # A person has looked, and leaves the window out by hand.
    forks.start(words(recipe, run, "stages.0.skip=[[36, 41]]")).succeed()
    assert [each["action"] for each in of_guard(run)] == ["stop"]
    same_training(run, reported(1))


def test_a_rollback_past_newer_checkpoints_leaves_none_of_what_it_gave_up(
    recipe: Path, forks: Forks, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    forks.start(words(recipe, run, "stages.0.steps=20", "stages.0.keep_last=9")).succeed()
    (run / "samples" / "step-00000010").mkdir(parents=True)
    (run / "samples" / "step-00000015").mkdir()
    back = Rollback(step=20, kind="divergence", to_step=10, stage=0, first=11, last=24)
    rollback_file.write_rollbacks(run, (back,))

    assert rollback_file.finish_rollback(run) == ["step-00000015", "step-00000020"]
    assert rollback_file.finish_rollback(run) == []
    assert pointer.latest(run) == run / "step-00000010"
    assert [path.name for path in (run / "samples").iterdir()] == ["step-00000010"]

    forks.start(words(recipe, run, "stages.0.steps=20")).succeed()
    (resumed,) = events(run, "resume")
    assert (resumed["step"], resumed["repeated_steps"]) == (10, 10)
    assert checkpoint.read_state(run / "step-00000020")["skip"] == [[11, 24]]
    assert rollback_file.finish_rollback(run) == []  # the new checkpoints know of it
