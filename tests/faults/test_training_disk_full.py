"""A disk that fills up in a training, on a real small file system: the cause, the checkpoint, the resume."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forked_runs import Forks, program
from tests.small_disk import small_disk
from tests.trainer.shards_for_tests import command_words, events, make_shards, numbers
from tests.trainer.training.states import same
from trainer.run_folder import pointer

SETTINGS = (
    *("stages.0.steps=6", "stages.0.checkpoint_every=2", "stages.0.clip_losses_every=1"),
    *("sample.every=2", "sample.steps=1", "validation={every: 2, clips_per_bucket: 2}"),
)
# Once the function is called for step 4, the disk has `free` bytes left.
FILL = """
import os
from trainer import train as training
from trainer.generation import sample_clips
from trainer.run_folder import clip_losses, jsonl
from trainer.run_folder.checkpoint import checkpoint

work = {owner}.{name}


def filling(*given, **named):
    step = given[1] if isinstance(given[1], int) else given[1].get("step")
    place, ballast = os.statvfs({place!r}), {place!r} + "/ballast"
    if step == 4 and not os.path.exists(ballast):
        with open(ballast, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, place.f_bavail * place.f_frsize - {free})
    return work(*given, **named)


{owner}.{name} = filling
"""
# What the run writes when the disk is full, and what it says.
WRITES = {
    "a checkpoint": ("checkpoint", "save", 8192, "step-00000004: the checkpoint cannot be written"),
    "samples": ("sample_clips", "sample_round", 0, "samples/.step-00000004"),
    "the page of samples": ("sample_clips", "sample_round", 24_576, "gallery"),
    "lines of the logs": ("jsonl", "append_line", 0, "cannot be written"),
}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", "64m", "RLIMIT_FSIZE covers the checkpoints") as folder:
        yield folder


@pytest.fixture(scope="module")
def whole(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards, and a run that never lacked room."""
    home = tmp_path_factory.mktemp("whole")
    shards = make_shards(home / "shards", validation=(8, 9, 10, 11))
    forks.start(command_words(shards, home / "run", *SETTINGS)).succeed()
    return home


@pytest.mark.parametrize("what", WRITES)
def test_a_disk_that_fills_up_is_named_and_the_run_resumes_bit_for_bit(
    forks: Forks, place: Path, whole: Path, what: str
) -> None:
    owner, name, free, said = WRITES[what]
    words = command_words(whole / "shards", place / "run", *SETTINGS)
    fill = FILL.format(owner=owner, name=name, free=free, place=str(place))

    ended = forks.start(program(fill, words))

    assert ended.codes() == [1], ended.text()
    (line,) = [line for line in ended.text().splitlines() if line.startswith("error: ")]
    assert said in line
    assert "No space left on device" in line
    newest = pointer.latest(place / "run")
    assert newest is not None
    assert newest.name in ("step-00000002", "step-00000004")

    (place / "ballast").unlink()
    forks.start(words).succeed()

    assert same(place / "run", whole / "run")
    assert numbers(place / "run") == numbers(whole / "run")
    assert not list((place / "run").rglob("*.partial"))
    assert len(events(place / "run", "done")) == 1
