"""Whatever the loop does after a save in the background, the checkpoint holds the state of its step."""

from pathlib import Path
from threading import Event

import pytest

from tests.trainer.late_copies_for_tests import late
from tests.trainer.shards_for_tests import events, make_shards, numbers, smoke
from trainer.run_folder import layout as run_folder_layout
from trainer.run_folder.checkpoint import checkpoint, device_copy
from trainer.train import train
from trainer.training import resume

LATE_SECONDS = 0.1  # an update takes 0.02 s
SAVED = (
    "stages.0.steps=4",
    "loader.num_workers=0",
    "stages.0.checkpoint_every=1",
    "stages.0.keep_last=99",
    "stages.0.checkpoint_in_background=true",
    "validation.every=2",
    "sample=null",
)


def test_updates_and_the_swap_of_weights_in_validation_wait_for_the_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = make_shards(tmp_path / "shards", validation=(8, 9, 10, 11))
    monkeypatch.setattr(device_copy, "begin_copy", late(Event(), LATE_SECONDS))
    run = tmp_path / "run"
    train(smoke(shards, run, *SAVED))

    assert len(numbers(run)) == len(events(run, "save")) == 4
    for path in run_folder_layout.checkpoints(run):
        loaded = checkpoint.load(path)
        assert resume.checksums(loaded.parts) == loaded.state["checksums"], path.name
