"""Whatever happens to a decode worker, the loader gives what an undisturbed one gives, and says so."""

import gc
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.loader_runs import (
    blocked,
    clips,
    first_clip,
    plan_of,
    read,
    reported,
    shard_of,
    spec,
    videos,
    wait_until_one_reads,
    wait_until_ready,
    write_shards,
)
from tests.own_resources import open_files
from vidcurate.errors import VidcurateError
from vidcurate.loader.loader import Loader
from vidcurate.sampler.build_plan import steps_of_clip
from vidcurate.shards.index import Index, find_clip

STEPS = range(8)
BROKEN = ["clip/2.0", "clip/3.0", "clip/7.0", "clip/16.0"]


@pytest.fixture(scope="module")
def payloads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    paths = videos(tmp_path_factory.mktemp("videos"), clips())
    return {name: path.read_bytes() for name, path in paths.items()}


@pytest.fixture
def opened(tmp_path: Path, payloads: dict[str, bytes]) -> Index:
    """Shards of one clip each, so that a test can spoil one clip."""
    return write_shards(tmp_path / "shards", clips(), payloads, per_shard=1)


def strike(loader: Loader, clip_id: str, number: signal.Signals) -> None:
    """Send the worker that reads a clip a signal, and wait until it is replaced."""
    worker = wait_until_one_reads(loader, clip_id, seconds=0.0)
    os.kill(worker, number)
    until = time.monotonic() + 60
    while worker in loader.process_ids():
        assert time.monotonic() < until
        time.sleep(0.02)


def substitutions(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == "clip_substituted"]


# ── killed, stopped, crashed: the same frames ───────────────────────────────────────────────────────────────


def test_killed_workers_change_nothing(opened: Index) -> None:
    plan = plan_of(opened)
    undisturbed = read(opened, plan, STEPS)
    events: list[dict[str, Any]] = []
    asked = threading.Semaphore(0)
    with Loader(opened, plan, spec(num_workers=2), on_event=events.append) as loader:

        def kill() -> None:
            """One a step, a moment after it was asked for; more would be too many for one clip."""
            for number in STEPS:
                asked.acquire()
                time.sleep(0.05 * number)
                for process in loader.process_ids()[number % 2 : number % 2 + 1]:
                    with suppress(ProcessLookupError):  # it has just been ended
                        os.kill(process, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            for step in STEPS:
                asked.release()
                assert sorted(map(reported, loader.step(step))) == undisturbed[step]
                time.sleep(0.4)
        finally:
            for _ in STEPS:
                asked.release()
            killer.join()
        for step in STEPS:  # what the last kills hit is asked for
            assert sorted(map(reported, loader.step(step))) == undisturbed[step]
    assert not substitutions(events)
    assert {event["reason"] for event in events} == {"worker_died"}


def test_what_a_scheduler_signals_to_the_whole_group_does_not_touch_the_workers(opened: Index) -> None:
    plan = plan_of(opened)
    undisturbed = read(opened, plan, STEPS)
    events: list[dict[str, Any]] = []
    with Loader(opened, plan, spec(num_workers=2), on_event=events.append) as loader:
        for step in STEPS:
            assert sorted(map(reported, loader.step(step))) == undisturbed[step]
            if step == 0:
                wait_until_ready(loader)  # one that has only just begun cannot ignore anything yet
            for process in loader.process_ids():
                for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
                    os.kill(process, number)
    assert events == []


def test_a_stopped_worker_costs_one_deadline_and_changes_nothing(opened: Index) -> None:
    plan = plan_of(opened)
    undisturbed = read(opened, plan, STEPS)
    events: list[dict[str, Any]] = []
    settings = spec(num_workers=1, deadline_seconds=1.0, prefetch_bytes=0)
    with Loader(opened, plan, settings, on_event=events.append) as loader:
        assert sorted(map(reported, loader.step(0))) == undisturbed[0]
        os.kill(loader.process_ids()[0], signal.SIGSTOP)
        started = time.monotonic()
        assert sorted(map(reported, loader.step(1))) == undisturbed[1]
        assert 1.0 <= time.monotonic() - started < 60.0  # the deadline and a fresh interpreter
        assert sorted(map(reported, loader.step(2))) == undisturbed[2]
    assert [event["reason"] for event in events] == ["deadline"]
    assert events[0]["exit_status"] == -signal.SIGKILL


def test_a_clip_that_hangs_once_is_read_the_second_time(opened: Index) -> None:
    plan = plan_of(opened)
    undisturbed = read(opened, plan, [0])
    clip = first_clip(opened, plan)
    events: list[dict[str, Any]] = []
    settings = spec(num_workers=1, deadline_seconds=2.0)
    with blocked(opened, clip) as release, Loader(opened, plan, settings, on_event=events.append) as loader:

        def let_the_next_one_read() -> None:
            wait_until_one_reads(loader, clip, seconds=0.5)
            release()  # who waits at the pipe waits on

        releases = threading.Thread(target=let_the_next_one_read)
        releases.start()
        assert sorted(map(reported, loader.step(0))) == undisturbed[0]
        releases.join()
    assert [(event["event"], event["clip_id"]) for event in events] == [("worker_replaced", clip)]


def test_a_clip_whose_worker_is_killed_again_and_again_stops_the_run(opened: Index) -> None:
    plan = plan_of(opened)
    clip = first_clip(opened, plan)
    settings = spec(num_workers=1, prefetch_bytes=0)
    with blocked(opened, clip), Loader(opened, plan, settings) as loader:

        def kill() -> None:
            for _ in range(11):
                strike(loader, clip, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(
            VidcurateError, match=r"was killed or stopped 11 times from outside \(exit status -9; out"
        ):
            loader.step(0)
        killer.join()


# ── clips that cannot be decoded ────────────────────────────────────────────────────────────────────────────


def spoil(payloads: dict[str, bytes], broken: list[str]) -> dict[str, bytes]:
    return {name: (data[: len(data) // 2] if name in broken else data) for name, data in payloads.items()}


def test_broken_clips_are_replaced_alike_by_any_number_of_workers(
    tmp_path: Path, payloads: dict[str, bytes]
) -> None:
    opened = write_shards(tmp_path, clips(), spoil(payloads, BROKEN))
    plan = plan_of(opened)
    whole = write_shards(tmp_path / "whole", clips(), payloads)
    undisturbed = read(whole, plan_of(whole), STEPS)
    runs = []
    for num_workers in (0, 1, 3):
        events: list[dict[str, Any]] = []
        run = {}
        settings = spec(num_workers=num_workers, max_failure_share=0.1)
        with Loader(opened, plan, settings, on_event=events.append) as loader:
            for step in STEPS:
                run[step] = sorted(map(reported, loader.step(step)))
        runs.append((run, events))
    assert runs[0] == runs[1] == runs[2]
    run, events = runs[0]
    assert {event["clip_id"] for event in events} == set(BROKEN)
    for step in STEPS:
        for mine, wanted in zip(run[step], undisturbed[step], strict=True):
            swapped = [(was, now) for was, now in zip(wanted[3], mine[3], strict=True) if was != now]
            assert all(was in BROKEN and now not in wanted[3] for was, now in swapped)
            assert len(set(mine[3])) == len(mine[3])
            assert not set(mine[3]) & set(BROKEN)
            assert (mine == wanted) == (not swapped)
            for was, _ in swapped:
                assert [
                    e
                    for e in events
                    if e["clip_id"] == was and e["position"] == mine[0] and e["step"] == step
                ]


@pytest.mark.parametrize("part", ["video", "caption"])
def test_altered_bytes_are_found_by_their_checksum(opened: Index, part: str) -> None:
    plan = plan_of(opened)
    clip = first_clip(opened, plan)
    shard, row = shard_of(opened, clip), find_clip(opened, clip)
    data = bytearray(shard.read_bytes())
    if part == "video":
        data[int(opened.video_offset[row]) + 600] ^= 1
    else:
        data[data.index(b'"caption": "', int(opened.numbers("json_offset")[row])) + 12] ^= 1
    shard.write_bytes(data)
    events: list[dict[str, Any]] = []
    with Loader(opened, plan, spec(), on_event=events.append) as loader:
        loader.step(0)
    (event,) = events
    assert (event["clip_id"], event["kind"]) == (clip, "crc_mismatch")


def test_too_many_broken_clips_stop_the_run_with_their_names(
    tmp_path: Path, payloads: dict[str, bytes]
) -> None:
    opened = write_shards(tmp_path, clips(), spoil(payloads, [f"clip/{n}.0" for n in range(0, 24, 2)]))
    plan = plan_of(opened)
    with Loader(opened, plan, spec(num_workers=1, max_failure_share=0.003)) as loader:

        def run() -> None:
            for step in STEPS:
                loader.step(step)

        with pytest.raises(VidcurateError, match=r"^4 clips could not be decoded") as caught:
            run()
        assert "more than max_failure_share 0.003 allows of 1,000 clips" in str(caught.value)
        assert str(caught.value).count("(") == 4


def test_broken_clips_hold_no_frames_until_the_collector_comes_by(
    tmp_path: Path, payloads: dict[str, bytes]
) -> None:
    """In a trainer it may not come for minutes: 200 MB of frames for each clip that fails at 720p."""
    opened = write_shards(tmp_path, clips(), spoil(payloads, BROKEN))
    plan = plan_of(opened)
    settings = spec(num_workers=1, prefetch_bytes=0, max_failure_share=1)
    events: list[dict[str, Any]] = []
    gc.collect()
    gc.disable()
    try:
        with Loader(opened, plan, settings, on_event=events.append) as loader:
            loader.step(0)
            before = open_files()
            for step in STEPS:
                loader.step(step)
            assert open_files() <= before
    finally:
        gc.enable()
    assert len({event["clip_id"] for event in substitutions(events)}) > 2


def test_a_cell_without_a_fallback_stops_the_run(tmp_path: Path, payloads: dict[str, bytes]) -> None:
    facts = [fact for fact in clips() if fact["clip_id"] in ("clip/0.0", "clip/6.0")]
    opened = write_shards(tmp_path, facts, spoil(payloads, ["clip/0.0"]))
    plan = plan_of(opened, micro_batches_per_step=1)
    showing = steps_of_clip(plan, opened, "clip/0.0")[0]
    with Loader(opened, plan, spec()) as loader, pytest.raises(VidcurateError, match="has no other clip"):
        loader.step(showing)


@pytest.mark.soak
def test_memory_descriptors_and_threads_stay_flat(opened: Index) -> None:
    plan = plan_of(opened)
    with Loader(opened, plan, spec(num_workers=1)) as loader:

        def usage() -> tuple[int, int, int]:
            worker = loader.process_ids()[0]
            status = Path(f"/proc/{worker}/status").read_text()
            resident = int(status.split("RssAnon:")[1].split()[0])
            files = len(os.listdir(f"/proc/{worker}/fd")) + len(os.listdir("/proc/self/fd"))
            return resident, files, int(status.split("Threads:")[1].split()[0])

        for step in range(60):  # the scalers of all sizes are made, the collector has run
            loader.step(step)
        before = usage()
        for step in range(60, 160):
            loader.step(step)
        after = usage()
    assert after[0] < before[0] + (24 << 10)  # 900 clips; how flat it is over 100,000: loader_soak.py
    assert after[1] <= before[1] + 4
    assert after[2] == before[2]
