"""A save that fails or is interrupted leaves the checkpoints before it, and says so."""

import json
import os
import resource
import signal
import time
from pathlib import Path

import pytest

from tests.forked_runs import Forks
from tests.trainer.shards_for_tests import command_words, events, make_shards, numbers
from trainer.run_folder.checkpoint import checkpoint

LONG = (
    "stages.0.steps=400",
    "stages.0.checkpoint_every=2",
    "stages.0.keep_last=2",
    "loader.num_workers=0",
    "sample=null",
)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("made") / "shards")


def words(shards: Path, run: Path, *more: str) -> list[str]:
    return command_words(shards, run, *LONG, *more)


# The disk is full once the optimizer of step 4 is to be written: no file may be larger than the weights.
FULL_DISK = """
import os, resource, signal, sys
from trainer.run_folder.checkpoint import checkpoint
from trainer.run_folder import process_table
from trainer.__main__ import main

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
save = checkpoint.save


def on_a_full_disk(run, step, *more):
    if step == 4 and os.environ.get("RANK", "0") in os.environ["FULL"]:
        limits = (int(os.environ["LIMIT"]), resource.RLIM_INFINITY)
        for writer in process_table.children(os.getpid()) or (os.getpid(),):
            resource.prlimit(writer, resource.RLIMIT_FSIZE, limits)
    return save(run, step, *more)


checkpoint.save = on_a_full_disk
sys.exit(main(os.environ["WORDS"].split("|")))
"""


@pytest.mark.parametrize(
    ("ranks", "background", "full"),
    [(1, "false", "0"), (1, "true", "0"), (2, "true", "1")],
    ids=["at once", "in the background", "on the second rank, in the background"],
)
def test_a_full_disk_stops_the_run_and_leaves_the_checkpoint_before(
    shards: Path, forks: Forks, tmp_path: Path, ranks: int, background: str, full: str
) -> None:
    run = tmp_path / "run"
    given = words(shards, run, f"stages.0.checkpoint_in_background={background}", "parallel.sharding=full")
    limit = 60_000
    ended = forks.start(["-c", FULL_DISK], ranks=ranks, WORDS="|".join(given), FULL=full, LIMIT=str(limit))

    assert set(ended.codes()) == {1}, ended.text()
    assert "step-00000004: the checkpoint cannot be written (" in ended.text()
    assert "the ones before it are untouched" in ended.text()
    assert ranks > 1 or "Traceback" not in ended.text()  # a rank's log has it
    assert checkpoint.load(run).state["step"] == 2
    assert not list(run.glob(".step-*"))
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY  # only the run's own
    step = len(numbers(run))
    assert step == 4 if background == "false" else 4 <= step < 400  # it ends at one of the next steps

    forks.start(words(shards, run, "stages.0.steps=6")).succeed()  # there is room again
    assert checkpoint.load(run).state["step"] == 6


# A save that takes its time: the signal comes in the middle of one.
SLOW_SAVE = """
import os, sys, time
from pathlib import Path
from trainer.run_folder.checkpoint import parts
from trainer.__main__ import main

write = parts.write_part


def slow(*arguments):
    written = write(*arguments)
    time.sleep(0.4)
    return written


parts.write_part = slow
sys.exit(main(os.environ["WORDS"].split("|")))
"""


def is_in_a_save(run: Path, *, trains_on: bool) -> bool:
    """Whether a save is half written; `trains_on`: and the steps behind it have begun to be done."""
    steps = [int(path.parent.name.split("-")[1].split(".")[0]) for path in run.glob(".step-*.partial/ema")]
    return any(not trains_on or len(numbers(run)) > step for step in steps)


@pytest.mark.parametrize("background", ["true", pytest.param("false", marks=pytest.mark.soak)])
def test_a_signal_in_the_middle_of_a_save_waits_for_it_and_saves_where_the_run_stands(
    shards: Path, forks: Forks, tmp_path: Path, background: str
) -> None:
    run = tmp_path / "run"
    given = words(shards, run, f"stages.0.checkpoint_in_background={background}")
    started = forks.start(["-c", SLOW_SAVE], WORDS="|".join(given))
    until = time.monotonic() + 120
    while not is_in_a_save(run, trains_on=background == "true"):
        assert time.monotonic() < until, started.text()
        time.sleep(0.005)
    os.kill(started.pids[0], signal.SIGTERM)

    assert started.codes() == [75], started.text()
    step = checkpoint.load(run).state["step"]
    assert step == len(numbers(run))
    saved = events(run, "save")
    assert (saved[0]["step"], saved[-1]["step"]) == (2, step)
    if background == "true":
        assert step > 2  # it trained on while step 2 was written
        assert saved[0]["seconds"] > 1.0
    assert not list(run.glob(".step-*"))
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["step"] == step
