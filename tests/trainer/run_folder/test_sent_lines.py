"""Record of what a tracker has sent: read back as written, and refused in one line when it is no record."""

import os
from pathlib import Path

import pytest

from trainer.run_folder import sent_lines
from vidcurate.errors import InputError


def test_a_record_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "wandb" / sent_lines.NAME
    first = sent_lines.begin(path)
    first.steps["metrics.jsonl"], first.lines["events.jsonl"] = 7, 3

    sent_lines.write(path, first)

    assert sent_lines.begin(path) == first
    assert len(first.id) == 8


def test_a_first_start_stores_its_id_before_a_line_is_sent(tmp_path: Path) -> None:
    path = tmp_path / sent_lines.NAME
    assert sent_lines.begin(path).id == sent_lines.begin(path).id


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b'{"id": "1234',
        b"[]",
        b'{"id": 3}',
        b'{"id": "1", "steps": 4}',
        b'{"id": "1", "steps": {"metrics.jsonl": "4"}}',
        b'{"id": "1", "lines": {"events.jsonl": -1}}',
        b"[" * 5_000,
        b"\xff\xfe",
    ],
    ids=lambda data: data[:44].decode("latin-1"),
)
def test_a_damaged_record_is_one_line_that_names_the_file(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / sent_lines.NAME
    path.write_bytes(data)
    with pytest.raises(InputError, match="not a record of sent lines") as caught:
        sent_lines.begin(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == data


def test_a_pipe_in_place_of_a_record_is_refused_without_waiting(tmp_path: Path) -> None:
    path = tmp_path / sent_lines.NAME
    os.mkfifo(path)
    with pytest.raises(InputError, match="no regular file"):
        sent_lines.begin(path)
