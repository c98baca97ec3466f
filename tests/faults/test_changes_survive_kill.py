"""Changed data accepted by a run that is killed meanwhile: nothing is lost, the same command resumes.

SIGKILL comes before the n-th file operation inside the run's folder (an audit hook sees each of them), from
the reading of the old state over journal, plan and index to the checkpoint of the last step. Then the same
command is given again, with the flags or without.
"""

import json
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.forked_runs import Forks
from tests.trainer.shards_for_tests import SMOKE, events, make_shards, numbers, settings
from trainer import __main__ as command

AT_OPERATION = """
import json, os, signal, sys
from pathlib import Path
from trainer.__main__ import main

run, stop, words = os.environ["RUN"], int(os.environ["STOP"]), json.loads(os.environ["WORDS"])
count = 0

def hook(event, args):
    global count
    if event in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree", "os.listdir"):
        if any(isinstance(a, (str, bytes)) and os.fsdecode(a).startswith(run) for a in args[:2]):
            count += 1
            if count == stop:
                os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(hook)
code = main(words)
print("operations", count)
sys.exit(code)
"""


@dataclass(frozen=True)
class Case:
    """A run saved at step 3, and the command that accepts what has changed since."""

    run: Path
    shards: Path
    flags: tuple[str, ...]
    more: tuple[str, ...] = ()

    def words(self, run: Path, *, accept: bool = True) -> list[str]:
        given = settings(self.shards, run, "sample=null", "stages.0.steps=6", *self.more)
        given += ["stages.0.checkpoint_every=2"]
        return [
            str(SMOKE),
            *(self.flags if accept else ()),
            *(word for value in given for word in ("--set", value)),
        ]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    folder = tmp_path_factory.mktemp("cases")
    shards, run = make_shards(folder / "shards"), folder / "run"
    given = settings(shards, run, "sample=null", "stages.0.steps=3", "stages.0.checkpoint_every=100")
    assert command.main([str(SMOKE), *(word for value in given for word in ("--set", value))]) == 0
    more = make_shards(folder / "more", num_clips=16)
    other = make_shards(folder / "other", num_clips=11, crf=30)
    continued = shutil.copytree(run, folder / "continued")  # it has a journal already
    appended = Case(continued, more, ("--append",))
    assert command.main([word.replace("steps=6", "steps=5") for word in appended.words(continued)]) == 0
    return {
        "append": Case(run, more, ("--append",)),
        "tombstone and content": Case(run, other, ("--tombstone", "--accept-content")),
        "plan": Case(run, shards, ("--accept-plan",), ("stages.0.data.micro_batches_per_step=3",)),
        "after a change": Case(continued, other, ("--tombstone", "--accept-content")),
    }


def kept(run: Path) -> dict[str, Any]:
    """Return all that a run must end with, whatever happened on its way."""
    assert not [path for path in run.rglob("*") if "partial" in path.name]
    return {
        "numbers": numbers(run),
        "journal": {path.name: path.read_bytes() for path in (run / "journal").iterdir()},
        "indexes": sorted(str(path.relative_to(run)) for path in (run / "index").rglob("*")),
        "state": json.loads((run / "step-00000006" / "state.json").read_text())["loader"],
        "changes": {json.dumps(facts(event), sort_keys=True) for event in events(run, "data_changed")},
    }


def facts(event: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in event.items() if key != "time"}


def start(forks: Forks, case: Case, run: Path, operation: int) -> tuple[int, str]:
    """Run the command and kill it before a file operation (0: let it be); return exit code and words."""
    words = json.dumps(case.words(run))
    forked = forks.start(["-c", AT_OPERATION], RUN=str(run), STOP=str(operation), WORDS=words)
    (code,) = forked.codes()
    return code, forked.text()


def _killed(forks: Forks, case: Case, folder: Path, moments: int | None) -> None:
    whole = shutil.copytree(case.run, folder / "whole")
    code, text = start(forks, case, whole, 0)
    assert code == 0, text
    total = int(text.rpartition("operations ")[2])
    assert total > 30
    expected = kept(whole)
    operations = range(1, total + 1)
    if moments is not None:
        operations = operations[total // 4 :: total // moments]
    refused = 0
    for number, operation in enumerate(operations):
        run = shutil.copytree(case.run, folder / f"run-{operation}")
        code, text = start(forks, case, run, operation)
        assert code == -signal.SIGKILL, f"operation {operation} of {total}: {text}"
        if number % 2 == 0:  # without the flags: refused by their names, or what was accepted is saved
            again = forks.start(case.words(run, accept=False))
            (code,) = again.codes()
            if code:
                refused += 1
                assert all(flag in again.text() for flag in case.flags), again.text()
        forks.start(case.words(run)).succeed()
        assert kept(run) == expected, f"killed before file operation {operation} of {total}"
        shutil.rmtree(run)
    assert refused


@pytest.mark.parametrize("name", ["append", pytest.param("after a change", marks=pytest.mark.soak)])
def test_killed_while_it_accepts_a_change_and_started_again(
    cases: dict[str, Case], forks: Forks, tmp_path: Path, name: str
) -> None:
    _killed(forks, cases[name], tmp_path, 2)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["append", "tombstone and content", "plan", "after a change"])
def test_killed_before_every_file_operation_of_an_acceptance(
    cases: dict[str, Case], forks: Forks, tmp_path: Path, name: str
) -> None:
    _killed(forks, cases[name], tmp_path, None)
