"""The file of a run's rollbacks, forged or damaged: one line."""

import json
import os
from pathlib import Path

import pytest

from trainer.training.guard import rollback_file
from trainer.training.guard.history import Rollback
from vidcurate.errors import CheckpointError

BACK = Rollback(step=9, kind="loss", to_step=4, stage=0, first=5, last=9)
FIELDS = {"step": 9, "kind": "loss", "to_step": 4, "stage": 0, "first": 5, "last": 9}


def test_what_was_written_is_read(tmp_path: Path) -> None:
    assert rollback_file.read_rollbacks(tmp_path) == ()
    rollback_file.write_rollbacks(tmp_path, (BACK, BACK))
    assert rollback_file.read_rollbacks(tmp_path) == (BACK, BACK)


@pytest.mark.parametrize(
    "forged",
    [
        [], {}, None, {"rollbacks": 3}, {"rollbacks": [3]}, {"rollbacks": [{}]},
        {"rollbacks": [FIELDS | {"to_step": "4"}]}, {"rollbacks": [FIELDS | {"kind": 7}]},
        {"rollbacks": [FIELDS | {"to_step": None}]}, {"rollbacks": [FIELDS | {"last": 1.5}]},
    ],
)  # fmt: skip
def test_a_file_of_another_shape_is_one_line(tmp_path: Path, forged: object) -> None:
    (tmp_path / rollback_file.GUARD).write_text(json.dumps(forged))
    with pytest.raises(CheckpointError, match="Restore the file") as raised:
        rollback_file.read_rollbacks(tmp_path)
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 100_000, b"\xff"])
def test_damaged_bytes_are_one_line(tmp_path: Path, data: bytes) -> None:
    (tmp_path / rollback_file.GUARD).write_bytes(data)
    with pytest.raises(CheckpointError, match="cannot be read"):
        rollback_file.read_rollbacks(tmp_path)


def test_a_pipe_in_its_place_is_waited_for_by_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / rollback_file.GUARD)
    with pytest.raises(CheckpointError, match="it is no regular file"):
        rollback_file.read_rollbacks(tmp_path)
