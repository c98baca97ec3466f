"""A folder is held by one process, and free as soon as that has left it, whoever is just being started."""

import fcntl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from trainer.data.latents import build
from trainer.distributed.mesh import ALONE
from trainer.generation.server import follow
from trainer.generation.server.presets import Changes
from trainer.health.watch import progress
from trainer.training import setup
from vidcurate.errors import VidcurateError
from vidcurate.shards import manifest as shards_manifest

Held = Callable[[Path], AbstractContextManager[object]]


def served(run: Path) -> AbstractContextManager[object]:
    (run / "events.jsonl").touch()  # or it is no run folder
    return follow.held(follow.Service(runs=(run,), presets=("own",), changes=Changes()), ALONE)


HELD: list[tuple[Held, str]] = [
    (lambda folder: setup.locked_run(folder, ALONE), "another process is training into this folder"),
    (lambda folder: build.holding(folder / "part.lock"), "another process is encoding this part"),
    (shards_manifest.only_writer, "another build-shards is writing here"),
    (served, "another server works on this run"),
]


@pytest.fixture
def others_begin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """At each lock another program is just being started: between fork and exec it has the file open, too."""
    flock, begun = fcntl.flock, list[subprocess.Popen[bytes]]()

    def lock(file: Any, operation: int) -> None:
        flock(file, operation)
        if operation & fcntl.LOCK_EX:
            number = file if isinstance(file, int) else file.fileno()
            begun.append(subprocess.Popen(["sleep", "60"], pass_fds=(number,)))

    monkeypatch.setattr(fcntl, "flock", lock)
    yield
    for process in begun:
        process.kill()
        process.wait()


@pytest.mark.usefixtures("others_begin")
@pytest.mark.parametrize(("held", "refusal"), HELD, ids=["training", "encoding", "writing", "serving"])
def test_a_second_process_is_refused_and_the_next_one_is_not(
    tmp_path: Path, held: Held, refusal: str
) -> None:
    with held(tmp_path), pytest.raises(VidcurateError, match=refusal), held(tmp_path):
        pass
    with held(tmp_path):
        pass


@pytest.mark.usefixtures("others_begin")
def test_to_ask_whether_a_run_is_free_does_not_hold_it(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    assert progress.is_free(tmp_path, 0.0)
    with setup.locked_run(tmp_path, ALONE):
        assert not progress.is_free(tmp_path, 0.0)
    assert progress.is_free(tmp_path, 0.0)
