"""Heartbeats: the page that a rank writes and its monitor reads, whole at every moment."""

import json
import math
import mmap
import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainer.distributed.mesh import ALONE
from trainer.health.watch import heartbeat, monitor, stop_requests
from trainer.health.watch.heartbeat import Pulse
from trainer.health.watch.spec import WatchSpec
from trainer.run_folder import process_records, process_table
from vidcurate.errors import StateError

LIMIT_SECONDS = 60.0


@pytest.fixture
def page() -> Iterator[mmap.mmap]:
    memory = mmap.mmap(-1, heartbeat.PAGE_BYTES)
    yield memory
    memory.close()


def test_a_step_has_one_limit_and_a_slow_phase_another(page: mmap.mmap) -> None:
    pulse = Pulse(page, stall_seconds=10, slow_seconds=100)
    assert heartbeat.read_page(page).phase == "start"

    pulse.step(0)  # may compile
    assert heartbeat.read_page(page).limit_seconds == 100
    pulse.step(1)
    began = heartbeat.read_page(page).since
    pulse.phase("forward_backward")
    seen = heartbeat.read_page(page)
    assert (seen.step, seen.phase, seen.limit_seconds) == (1, "forward_backward", 10)
    assert seen.since == began  # the time of the step continues
    pulse.phase("save")
    seen = heartbeat.read_page(page)
    assert seen.limit_seconds == 100
    assert seen.since > began
    pulse.step(2)
    assert heartbeat.read_page(page).limit_seconds == 10


def test_a_look_in_the_middle_of_a_write_sees_a_whole_page(page: mmap.mmap) -> None:
    """A page that was half written looked like a stall at step 0, in the middle of a training."""
    pulse = Pulse(page, stall_seconds=10, slow_seconds=100)
    began = time.monotonic()
    pulse.step(1)
    parent, child = os.getpid(), os.fork()
    if child == 0:
        step = 1
        while os.getppid() == parent:
            step += 1
            pulse.step(step)
            pulse.phase("update")
        os._exit(1)
    torn, until, before = [], time.monotonic() + 1.0, 0
    while time.monotonic() < until or (before < 1000 and time.monotonic() < began + 120):
        seen = heartbeat.read_page(page)
        if (
            seen.since < began
            or seen.limit_seconds not in (10, 100)
            or seen.step < before
            or seen.phase not in ("data", "update")
        ):
            torn.append(seen)
        before = seen.step
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert torn == []
    assert before >= 1000


def test_of_a_writer_that_was_stopped_in_a_write_the_one_before_is_seen(page: mmap.mmap) -> None:
    pulse = Pulse(page, stall_seconds=10, slow_seconds=100)
    pulse.step(6)
    whole = page[:]
    pulse.step(7)
    changed = [at for at in range(len(whole)) if page[at] != whole[at]]
    page[changed[-1]] = whole[changed[-1]]  # its last byte did not come
    assert heartbeat.read_page(page).step == 6
    pulse.step(8)
    pulse.step(9)
    assert heartbeat.read_page(page).step == 9


GOOD = {"time": 1.0, "step": 3, "phase": "data", "seconds_in_phase": 1.0, "seconds_since_progress": 2.0}
COLLECTIVE = {
    "group": "gloo 0",
    "ranks": [0, 1],
    "name": "all_reduce",
    "enqueued": 3,
    "started": -1,
    "completed": 2,
}


@pytest.mark.parametrize(
    "change",
    [
        {"step": math.inf}, {"step": "3"}, {"phase": 3}, {"time": None}, {"collectives": {"a": 1}},
        {"collectives": [COLLECTIVE | {"enqueued": "many"}]}, {"collectives": [COLLECTIVE | {"ranks": 7}]},
        {"collectives": [COLLECTIVE | {"more": 1}]}, {"collectives": [3]},
    ],
)  # fmt: skip
def test_a_forged_heartbeat_is_left_out_and_the_others_are_read(
    tmp_path: Path, change: dict[str, object]
) -> None:
    """A monitor process read its fields, and ended on them: nothing watched that rank any more."""
    (tmp_path / "heartbeats").mkdir()
    for rank, beat in ((0, GOOD | {"collectives": [COLLECTIVE]}), (1, GOOD | change)):
        heartbeat.path(tmp_path, rank).write_text(json.dumps(beat))
    assert list(heartbeat.read_heartbeat(tmp_path)) == [0]


def test_a_page_that_nothing_was_written_to_is_refused(page: mmap.mmap) -> None:
    with pytest.raises(StateError, match="nothing whole"):
        heartbeat.read_page(page)


def test_a_run_that_ends_in_order_leaves_no_record_and_no_heartbeat(tmp_path: Path) -> None:
    with (
        stop_requests.listening() as stop,
        monitor.watching(WatchSpec(), tmp_path, ALONE, stop) as watched,
    ):
        watched.pulse.step(7)
        until = time.monotonic() + LIMIT_SECONDS
        while 0 not in heartbeat.read_heartbeat(tmp_path) and time.monotonic() < until:
            time.sleep(0.02)
        (record,) = process_records.read_records(tmp_path)
        assert process_records.is_alive(record)
        beat = heartbeat.read_heartbeat(tmp_path)[0]
        assert beat["phase"] in ("start", "data")
        assert abs(beat["time"] - time.time()) < 60
    assert process_records.read_records(tmp_path) == []
    assert heartbeat.read_heartbeat(tmp_path) == {}


def test_a_disk_that_refuses_heartbeats_is_reported_once_and_the_run_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(monitor, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(monitor, "TICK_SECONDS", 0.05)
    (tmp_path / heartbeat.HEARTBEATS).write_text("a file where the folder should be")
    with (
        stop_requests.listening() as stop,
        monitor.watching(WatchSpec(), tmp_path, ALONE, stop) as watched,
    ):
        reported, until = "", time.monotonic() + LIMIT_SECONDS
        while "heartbeats cannot be written" not in reported and time.monotonic() < until:
            time.sleep(0.05)
            reported += capfd.readouterr().err
        time.sleep(0.3)  # time for a wrong second report
        watched.pulse.step(1)
    assert (reported + capfd.readouterr().err).count("heartbeats cannot be written") == 1


def test_a_rank_with_thousands_of_open_files_is_watched_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """select(2) knows descriptors below 1024 only; a rank has a socket for each of its peers."""
    monkeypatch.setattr(monitor, "BEAT_SECONDS", 0.02)
    monkeypatch.setattr(monitor, "TICK_SECONDS", 0.02)
    before = process_table.children(os.getpid())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with (
            stop_requests.listening() as stop,
            monitor.watching(WatchSpec(stall_seconds=0.4), tmp_path, ALONE, stop) as watched,
        ):
            until = time.monotonic() + LIMIT_SECONDS
            while set(process_table.children(os.getpid())) <= set(before) and time.monotonic() < until:
                time.sleep(0.01)  # until its watcher is there
            watched.pulse.step(7)
            while heartbeat.read_heartbeat(tmp_path).get(0, {}).get("step") != 7 and time.monotonic() < until:
                time.sleep(0.01)
            assert heartbeat.read_heartbeat(tmp_path)[0]["step"] == 7
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
