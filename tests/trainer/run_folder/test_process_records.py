"""A rank's record names one process and no other; what is left after a crash is known as dead."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.run_folder import process_records, process_table
from vidcurate.errors import StateError


def record(run: Path, rank: int = 0, world_size: int = 1) -> process_records.ProcessRecord:
    return process_records.record_of_this_process(run, rank=rank, local_rank=rank, world_size=world_size)


def test_a_record_is_there_while_the_block_runs_and_gone_after_it(tmp_path: Path) -> None:
    with process_records.registered(tmp_path, record(tmp_path)) as mine:
        (read,) = process_records.read_records(tmp_path)
        assert read == mine
        assert process_records.is_alive(read)
        assert read.pid == os.getpid()
        assert read.run == str(tmp_path)
        assert read.command == process_table.command_line(os.getpid())
    assert process_records.read_records(tmp_path) == []


def test_a_process_of_the_same_id_that_began_at_another_time_is_a_stranger(tmp_path: Path) -> None:
    mine = record(tmp_path)
    assert not process_records.is_alive(dataclasses.replace(mine, start_time=mine.start_time - 1))
    assert not process_records.is_alive(dataclasses.replace(mine, boot_id="another start of the machine"))


def test_a_process_that_was_killed_is_dead_before_anyone_has_waited_for_it(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    began = process_table.start_time(child.pid)
    assert began is not None
    theirs = dataclasses.replace(record(tmp_path), pid=child.pid, start_time=began)
    assert process_records.is_alive(theirs)
    assert child.pid in process_table.children(os.getpid())

    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    assert not process_records.is_alive(theirs)
    assert child.pid not in process_table.children(os.getpid())
    child.wait()
    assert process_table.state(child.pid) == "ended"


def test_a_program_that_has_written_its_own_title_has_a_name(tmp_path: Path) -> None:
    """slurmstepd and sshd put one line in the place of their words, without the NUL behind the last."""
    folder = tmp_path / "17"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process_table, "PROC", tmp_path)
        for written, words in (
            (b"slurmstepd: [4711.0]", ("slurmstepd: [4711.0]",)),
            (b"python\0-m\0trainer\0", ("python", "-m", "trainer")),
            (b"sh\0\0", ("sh", "")),
            (b"", ()),
        ):
            (folder / "cmdline").write_bytes(written)
            assert process_table.command_line(17) == words


def test_children_are_found_over_generations() -> None:
    program = (
        "import subprocess, sys, time; "
        "subprocess.Popen([sys.executable, '-c', 'print(1, flush=True); import time; time.sleep(60)'])"
        "; time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()

    below = process_table.children(os.getpid())

    (grandchild,) = process_table.children(child.pid)
    assert {child.pid, grandchild} <= set(below)
    os.kill(grandchild, 9)
    child.kill()
    child.wait()
    child.stdout.close()


def test_the_first_rank_forgets_those_of_a_larger_world(tmp_path: Path) -> None:
    for rank in range(4):
        process_records.write_record(tmp_path, record(tmp_path, rank, 4))
    with process_records.registered(tmp_path, record(tmp_path, 0, 2)):
        assert [one.rank for one in process_records.read_records(tmp_path)] == [0, 1]


def test_a_file_that_is_no_record_is_named(tmp_path: Path) -> None:
    (tmp_path / process_records.PROCESSES).mkdir()
    process_records.record_path(tmp_path, 0).write_text("{}")
    with pytest.raises(StateError, match=r"rank-00000\.json: is not a process record; remove it"):
        process_records.read_records(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"pid": []},
        {"pid": -1},
        {"pid": "1"},
        {"host": "\ud800"},
        {"host": None},
        {"rank": 0.5},
        {"run": 3},
        {"command": 3},
    ],
)
def test_a_record_of_other_types_is_none(tmp_path: Path, change: dict[str, object]) -> None:
    record = process_records.record_of_this_process(tmp_path, rank=0, local_rank=0, world_size=1)
    process_records.write_record(tmp_path, record)
    path = process_records.record_path(tmp_path, 0)
    path.write_text(json.dumps(record.to_json() | change))

    with pytest.raises(StateError, match="is not a process record; remove it"):
        process_records.read_records(tmp_path)


@pytest.mark.parametrize("data", [b"[" * 100_000, b"\xff", b"", b"[]", b"3"])
def test_what_is_no_json_object_is_no_record(tmp_path: Path, data: bytes) -> None:
    path = process_records.record_path(tmp_path, 0)
    path.parent.mkdir()
    path.write_bytes(data)

    with pytest.raises(StateError, match="is not a process record; remove it"):
        process_records.read_records(tmp_path)
