"""Every end of a training says why: Ctrl-C, an error, a full disk, a refusal."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.forked_runs import Forked, Forks
from tests.trainer.shards_for_tests import TINY, command_words, events, make_shards, numbers
from trainer.report import read, summary
from trainer.run_folder.checkpoint import checkpoint

ROOT = Path(__file__).resolve().parents[2]
LONG = ("stages.0.steps=5000", "stages.0.checkpoint_every=1000", "sample=null", "loader.num_workers=0")

# Send this process a Ctrl-C when the module of PYTHONINTERRUPT is imported, while a class is made: there
# Python 3.11 makes a RuntimeError of a KeyboardInterrupt.
AT_IMPORT = """
import os, signal, sys

class Pressed:
    def __set_name__(self, owner, name):
        os.kill(os.getpid(), signal.SIGINT)

class Finder:
    def find_spec(self, name, path, target=None):
        if name == os.environ["PYTHONINTERRUPT"]:
            type("Owner", (), {"pressed": Pressed()})

if "trainer" in sys.orig_argv:
    sys.meta_path.insert(0, Finder())
"""


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("made") / "shards")


@pytest.mark.parametrize(
    ("command", "module"),
    [
        ([str(TINY)], "pydantic"),
        ([str(TINY)], "torch"),
        ([str(TINY)], "yaml"),
        (["launch", str(TINY)], "trainer.cluster.launch.supervisor"),
        (["inspect", "nowhere"], "trainer.report.preview.inspect_command"),
        (["report", "nowhere"], "trainer.report.page"),
    ],
)
def test_ctrl_c_during_an_import_is_one_line(tmp_path: Path, command: list[str], module: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(AT_IMPORT)
    path = f"{tmp_path}:{ROOT}"

    ended = subprocess.run(
        [sys.executable, "-m", "trainer", *command],
        env=os.environ | {"PYTHONPATH": path, "PYTHONINTERRUPT": module},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert (ended.returncode, ended.stderr) == (130, "interrupted; the same command continues\n")


def wait_for_steps(process: Forked, run: Path, count: int) -> None:
    until = time.monotonic() + 120
    while len(numbers(run) if (run / "metrics.jsonl").exists() else []) < count:
        assert time.monotonic() < until, process.text()
        time.sleep(0.01)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_first_ctrl_c_saves_and_stops(shards: Path, forks: Forks, tmp_path: Path, ranks: int) -> None:
    run = tmp_path / "run"
    process = forks.start(command_words(shards, run, *LONG), ranks=ranks)
    wait_for_steps(process, run, 2)
    for pid in process.pids:
        os.kill(pid, signal.SIGINT)

    assert set(process.codes()) == {75}, process.text()
    step = checkpoint.load(run).state["step"]
    assert step == len(numbers(run))
    assert "SIGINT: the run saves after this step and stops; once more ends it at once" in process.text()
    assert (
        f"interrupted; the same command continues from {run}/step-{step:08d} of 5,000 steps" in process.text()
    )
    assert "Traceback" not in process.text()
    assert [event["signal"] for event in events(run, "stop")] == ["SIGINT"]


# The second step never ends, as in a collective that hangs.
HANGS = """
import json, os, sys, time
from trainer.training import step
from trainer.__main__ import main
from trainer import train

compute, count = train.train_step, [0]


def hang(*arguments, **more):
    count[0] += 1
    while count[0] > 2:
        time.sleep(0.1)
    return compute(*arguments, **more)


train.train_step = hang
sys.exit(main(json.loads(os.environ["WORDS"])))
"""


def test_the_second_ctrl_c_ends_a_run_at_once(shards: Path, forks: Forks, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = command_words(shards, run, *LONG)
    process = forks.start(["-c", HANGS], WORDS=json.dumps(words))
    wait_for_steps(process, run, 2)
    for _ in range(2):
        os.kill(process.pids[0], signal.SIGINT)
        time.sleep(0.3)

    assert process.codes() == [130], process.text()
    assert process.text().endswith("interrupted; the same command continues from the newest checkpoint\n")
    (stop,) = events(run, "stop")
    assert (stop["signal"], stop["saved"], stop["step"]) == ("SIGINT", False, 2)
    assert "Stopped at once by a second Ctrl-C" in summary.standing(0, read.read_run(run))


# The first save finds the disk full; the third step fails in a way that nobody has foreseen.
FAULTS = """
import errno, json, os, sys
from trainer import train
from trainer.__main__ import main
from trainer.run_folder.checkpoint import parts

write = parts.FileSystemWriter.write_data


def full(self, plan, planner):
    try:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598")


def surprise(*arguments, **more):
    raise KeyError("what")


if os.environ["FAULT"] == "disk":
    parts.FileSystemWriter.write_data = full
else:
    train.train_step = surprise
sys.exit(main(json.loads(os.environ["WORDS"])))
"""


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("disk", "the checkpoint cannot be written (No space left on device)"),
        ("surprise", "KeyError: 'what'"),
    ],
)
def test_an_end_on_an_error_has_an_event_with_its_cause(
    shards: Path, forks: Forks, tmp_path: Path, fault: str, reason: str
) -> None:
    run = tmp_path / "run"
    words = command_words(shards, run, "stages.0.steps=4", "stages.0.checkpoint_every=2", "sample=null")
    process = forks.start(["-c", FAULTS], WORDS=json.dumps(words), FAULT=fault)

    assert process.codes() == [1], process.text()
    assert "enforce fail" not in process.text()
    assert reason.partition(": ")[2] in process.text()
    (failed,) = events(run, "failed")
    assert reason in failed["reason"]
    assert failed["exit_code"] == 1
    assert "Ended on an error" in summary.standing(0, read.read_run(run))


def test_a_start_that_is_refused_changes_nothing_in_the_run(
    shards: Path, forks: Forks, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    short = ("stages.0.steps=2", "sample=null")
    forks.start(command_words(shards, run, *short)).succeed()

    assert forks.start(command_words(shards, run, *short, "seed=3")).codes() == [2]

    assert events(run, "refused") == []
    assert "Done" in summary.standing(0, read.read_run(run))

    assert forks.start(command_words(shards, tmp_path / "new", "model.hidden_size=7")).codes() == [2]
    assert not (tmp_path / "new" / "events.jsonl").exists()
