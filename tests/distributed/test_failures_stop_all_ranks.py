"""What one rank's loader cannot read stops all ranks, by name; a rank that crashes says where."""

import signal
from pathlib import Path

import pytest

from tests.forked_runs import Forks, program
from tests.trainer.shards_for_tests import SMOKE, events, make_shards, numbers, settings

RUN = (
    "stages.0.data.micro_batches_per_step=3",
    "stages.0.steps=30",
    "stages.0.checkpoint_every=100",
    "loader.num_workers=0",
    "loader.max_failure_share=0.001",  # of a thousand: the second failure is one too many
    "sample=null",
)


@pytest.mark.parametrize(("ranks", "sharding"), [(2, "full"), (3, "none")])
def test_too_many_failures_of_one_rank_stop_all_with_the_list(
    forks: Forks, tmp_path: Path, ranks: int, sharding: str
) -> None:
    shards = make_shards(tmp_path / "shards", cut_short=(4,))
    run = tmp_path / "run"
    values = settings(shards, run, *RUN, f"parallel.sharding={sharding}")
    started = forks.start([str(SMOKE), *(word for value in values for word in ("--set", value))], ranks=ranks)
    codes = started.codes()
    assert len(set(codes)) == 1, started.text()
    assert codes[0] > 0, started.text()
    (stopped,) = events(run, "loader_stopped")
    assert stopped["reason"].startswith("2 clips could not be decoded")
    assert "the last: clip-004 (too_few_frames)" in stopped["reason"]
    assert started.text().count(stopped["reason"]) >= ranks
    assert events(run, "clip_substituted")[0]["clip_id"] == "clip-004"
    assert 0 < len(numbers(run)) < 30  # the step that could not be read left nothing
    assert stopped["step"] == len(numbers(run)) + 1


CRASHES = """
import faulthandler, os, resource, threading
import trainer.train

faulthandler.disable()  # as a process starts
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
inside = threading.Event()


def waits_beside_it():
    inside.set()
    threading.Event().wait()


def crashes_in_native_code(*_, **__):
    threading.Thread(target=waits_beside_it, daemon=True).start()
    inside.wait()
    os.abort()


trainer.train.train = crashes_in_native_code
"""


def test_a_rank_that_crashes_in_native_code_writes_the_stack_of_each_thread(
    forks: Forks, tmp_path: Path
) -> None:
    words = [str(SMOKE), *(word for value in settings(tmp_path, tmp_path) for word in ("--set", value))]
    started = forks.start(program(CRASHES, words))
    assert started.codes() == [-signal.SIGABRT], started.text()
    assert "Fatal Python error: Aborted" in started.text()
    assert "in crashes_in_native_code" in started.text()
    assert "in waits_beside_it" in started.text()
