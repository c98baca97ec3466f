"""The watcher of one rank, looking at its page by itself: whom it calls lost, and what it says only once."""

import dataclasses
import json
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.shards_for_tests import events
from trainer.health.watch import end_hung_run, heartbeat, monitor_process, stacks
from trainer.health.watch.heartbeat import Pulse
from trainer.health.watch.monitor_process import Job, RankMonitor
from trainer.run_folder import process_records, process_table
from trainer.run_folder.process_records import ProcessRecord
from vidcurate.executor.shared_memory import anonymous_file

Watch = tuple[RankMonitor, Pulse]
WRONG_TYPES = json.dumps(
    [
        {"host": 1, "pid": [], "how": {}, "rank": "x", "collectives": []}
        | {"threads": [{"name": 1, "holds_gil": 0, "frames": [[1, 2, "x"]]}]}
    ]
)


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Watch]]:
    """Return a function that gives the watcher of a rank that only sleeps, and that rank's pulse."""
    monkeypatch.setattr(end_hung_run, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(monitor_process, "ENDS_SECONDS", 0.2)  # what only sleeps exits for no pipe
    children = []

    def make(rank: int) -> Watch:
        program = "import time; print(1, flush=True); time.sleep(60)"
        child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        children.append(child)
        assert child.stdout is not None
        child.stdout.readline()
        record = dataclasses.replace(
            process_records.record_of_this_process(tmp_path, rank=rank, local_rank=rank, world_size=2),
            pid=child.pid,
            start_time=process_table.start_time(child.pid) or 0,
        )
        process_records.write_record(tmp_path, record)
        page = anonymous_file(heartbeat.PAGE_BYTES)
        pulse = Pulse(mmap.mmap(page, heartbeat.PAGE_BYTES), stall_seconds=0.0, slow_seconds=60.0)
        job = Job(
            record=record,
            page=page,
            look_seconds=0.1,
            apart_seconds=0.0,
            stalls=True,
            on_stall="warn",
            hardware_seconds=None,
            on_hardware="warn",
        )
        return RankMonitor(job), pulse

    yield make
    for child in children:
        child.kill()
        child.communicate()


def unmonitored(run: Path, record: ProcessRecord) -> "subprocess.Popen[bytes]":
    """Start a process that holds the record's file open, as a rank does, and write it into the record."""
    holder = "import sys, time; held = open(sys.argv[1]); print(1, flush=True); time.sleep(60)"
    path = process_records.record_path(run, record.rank)
    rank = subprocess.Popen([sys.executable, "-c", holder, str(path)], stdout=subprocess.PIPE)
    assert rank.stdout is not None
    rank.stdout.readline()
    theirs = {"pid": rank.pid, "start_time": process_table.start_time(rank.pid) or 0}
    path.write_text(json.dumps(record.to_json() | theirs))  # the same file, which the rank holds open
    return rank


def stands(pulse: Pulse, step: int, phase: str) -> None:
    pulse.step(step - 1)
    pulse.step(step)
    pulse.phase(phase)


def test_ranks_that_hang_in_different_phases_are_reported_of_once_where_the_policy_is_to_wait(
    watch: Callable[[int], Watch], tmp_path: Path
) -> None:
    """Each rank took the other's phase for progress, so the same stall was dumped again without end."""
    (first, its), (second, other) = watch(0), watch(1)
    stands(its, 5, "forward_backward")
    stands(other, 5, "data")

    for _ in range(3):
        assert not first.step()
        assert not second.step()

    (reported,) = events(tmp_path, "stall")
    assert (reported["phase"], reported["policy"]) == ("forward_backward", "warn")
    stands(other, 6, "data")  # it has moved, and hangs again
    assert not second.step()
    assert not first.step()
    assert [event["step"] for event in events(tmp_path, "stall")] == [5, 6]


def test_time_in_which_the_whole_machine_stood_still_is_no_stall(
    watch: Callable[[int], Watch], tmp_path: Path
) -> None:
    """A machine that was suspended, or a job (`scontrol suspend`): all ranks were ended as it woke."""
    watcher, pulse = watch(0)
    stands(pulse, 7, "data")  # its limit is 0 s
    watcher.is_late(watcher.see())  # it was seen, and then nothing ran for an hour
    watcher.slept(3600.0)
    assert not watcher.step()
    assert events(tmp_path, "stall") == []

    stands(pulse, 8, "data")  # what was lost before counts no more
    assert not watcher.step()  # the policy is to wait
    assert [event["step"] for event in events(tmp_path, "stall")] == [8]


def test_a_folder_that_refuses_ends_no_rank_whose_policy_is_to_wait(
    watch: Callable[[int], Watch], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watcher, pulse = watch(0)
    (tmp_path / stacks.STACKS).write_text("no folder")
    stands(pulse, 5, "data")

    assert not watcher.step()
    assert not watcher.step()

    assert capsys.readouterr().err.count("the run folder cannot be written") == 1


def test_records_that_cannot_be_read_are_no_reason_to_watch_no_more(
    watch: Callable[[int], Watch], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watcher, pulse = watch(0)
    pulse.step(0)  # its first step may take a minute
    process_records.record_path(tmp_path, 1).write_text("")

    assert not watcher.step()
    assert not watcher.step()

    assert capsys.readouterr().err.count("rank 0: cannot check for lost ranks now") == 1


def test_a_rank_of_this_host_without_a_monitor_is_ended_and_a_forged_record_ends_nobody(
    watch: Callable[[int], Watch], tmp_path: Path
) -> None:
    """One that hung with the GIL held before its monitor started lived on for ever."""
    (first, pulse), (second, _), (stranger, _) = watch(0), watch(1), watch(2)
    rank = unmonitored(tmp_path, second.rank)
    first.job = dataclasses.replace(first.job, on_stall="restart")
    stands(pulse, 5, "forward_backward")

    assert first.step()

    rank.communicate(timeout=10)
    assert rank.returncode == -signal.SIGKILL
    until = time.monotonic() + 10
    while process_records.is_alive(first.rank):  # the kernel takes a moment
        assert time.monotonic() < until
        time.sleep(0.01)
    # Of rank 2, only a record says that it is a rank: it got no signal.
    assert process_records.is_alive(stranger.rank)
    (event,) = events(tmp_path, "stall")
    assert event["silent_ranks"] == [2]


def test_a_monitor_that_outlives_its_killed_rank_ends_no_rank_of_the_restart(
    watch: Callable[[int], Watch], tmp_path: Path
) -> None:
    """On a busy machine it woke after the restart had begun, and the restart was ended."""
    late, _ = watch(0)
    late.rank = dataclasses.replace(late.rank, start_id="killed")
    os.kill(late.rank.pid, signal.SIGKILL)
    (first, pulse), (second, _) = watch(0), watch(1)  # the restart, whose rank 1 has no monitor process yet
    rank = unmonitored(tmp_path, second.rank)
    pulse.step(0)  # its first step may take a minute

    assert late.lost(late.rank)

    assert not first.step()
    assert process_records.is_alive(first.rank)
    assert rank.poll() is None
    rank.kill()
    rank.communicate()


def test_a_damaged_record_keeps_no_hung_rank_alive(watch: Callable[[int], Watch], tmp_path: Path) -> None:
    hung, pulse = watch(0)
    hung.job = dataclasses.replace(hung.job, on_stall="restart")
    process_records.record_path(tmp_path, 1).write_text("")
    stands(pulse, 5, "data")

    assert hung.step()

    until = time.monotonic() + 10
    while process_records.is_alive(hung.rank):
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize("forged", ["[" * 5000, WRONG_TYPES, None], ids=["nested", "wrong types", "pipe"])
def test_forged_stacks_of_another_rank_keep_no_hung_rank_alive(
    watch: Callable[[int], Watch], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forged: str | None
) -> None:
    (hung, pulse), (other, _) = watch(0), watch(1)
    hung.job = dataclasses.replace(hung.job, on_stall="restart")
    claim = end_hung_run.claim

    def claim_and_forge(run: Path, start_id: str, **facts: Any) -> end_hung_run.Claim | None:
        now = claim(run, start_id, **facts)
        assert now is not None
        for number in (1, 2):
            dump = run / stacks.STACKS / now.folder / f"rank-{other.rank.rank:05d}-{number}.json"
            dump.parent.mkdir(exist_ok=True)
            os.mkfifo(dump) if forged is None else dump.write_text(forged)
        return now

    monkeypatch.setattr(end_hung_run, "claim", claim_and_forge)
    stands(pulse, 5, "data")

    assert hung.step()

    until = time.monotonic() + 10
    while process_records.is_alive(hung.rank):
        assert time.monotonic() < until
        time.sleep(0.01)
