"""A worker that hangs, crashes or stops costs a deadline and changes nothing; what it did is on record."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faulty_worker import faults
from tests.loader_runs import (
    blocked,
    first_clip,
    make,
    plan_of,
    read,
    reported,
    shard_of,
    spec,
    wait_until_ready,
)
from vidcurate.errors import StorageError
from vidcurate.loader.decode.worker_pool import DecodePool
from vidcurate.loader.loader import Loader
from vidcurate.loader.spec import LoaderSpec
from vidcurate.sampler.plan import Plan
from vidcurate.shards.index import Index

STEPS = range(3)
DEADLINE = 2.0  # for a clip that takes milliseconds: a machine that does other things must not be late, too


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """Shards of one clip each, so that a test can spoil one clip."""
    return make(tmp_path_factory.mktemp("supervised"), per_shard=1)


@pytest.fixture(scope="module")
def plan(opened: Index) -> Plan:
    return plan_of(opened)


@pytest.fixture(scope="module")
def undisturbed(opened: Index, plan: Plan) -> dict[int, Any]:
    return read(opened, plan, STEPS)


def run(opened: Index, plan: Plan, **settings: Any) -> tuple[dict[int, Any], list[dict[str, Any]]]:
    """Return what the steps hold and the events."""
    events: list[dict[str, Any]] = []
    with Loader(opened, plan, spec(**settings), on_event=events.append) as loader:
        found = {step: sorted(map(reported, loader.step(step))) for step in STEPS}
    return found, events


@pytest.mark.parametrize(
    ("fault", "reason", "state"),
    [("hang", "deadline", "sleeping"), ("stop", "deadline", "stopped"), ("crash", "worker_died", "ended")],
)
def test_a_fault_costs_one_deadline_changes_nothing_and_leaves_the_stack(
    opened: Index,
    plan: Plan,
    undisturbed: dict[int, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    reason: str,
    state: str,
) -> None:
    clip = first_clip(opened, plan, 1)
    faults(monkeypatch, tmp_path, {clip: (fault, 1)})
    found, (event,) = run(opened, plan, num_workers=1, deadline_seconds=DEADLINE)
    assert found == undisturbed
    assert (event["event"], event["reason"]) == ("worker_replaced", reason)
    assert (event["clip_id"], event["phase"]) == (clip, "decode")
    assert event["state"].startswith(state)
    assert event["seconds_in_phase"] > DEADLINE - 0.5 or fault == "crash"
    cause = {"hang": "in hang_in_c", "stop": "in stop_itself", "crash": "Segmentation fault"}[fault]
    assert cause in event["stack"]
    assert "worker_process.py" in event["stack"]


def test_a_worker_that_is_gone_when_its_next_task_is_sent_is_replaced_at_once(
    opened: Index, plan: Plan, undisturbed: dict[int, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between two clips, found by the 200 random ones: the loader waited for ever."""
    clip = first_clip(opened, plan, 1)
    faults(monkeypatch, tmp_path, {clip: ("deaf", 1)})
    found, (event,) = run(opened, plan, num_workers=1)
    assert found == undisturbed
    assert (event["reason"], event["clip_id"]) == ("worker_died", None)


def test_the_second_fault_puts_the_same_fallback_there_whatever_it_was_and_whoever_decodes(
    opened: Index, plan: Plan, undisturbed: dict[int, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = first_clip(opened, plan, 1)
    runs = []
    for fault, kind, num_workers in (("hang", "deadline", 1), ("crash", "worker_died", 3)):
        faults(monkeypatch, tmp_path / fault, {clip: (fault, 2)})
        found, events = run(
            opened, plan, num_workers=num_workers, deadline_seconds=DEADLINE, prefetch_bytes=0
        )
        (event,) = [event for event in events if event["event"] == "clip_substituted"]
        assert (event["clip_id"], event["kind"]) == (clip, kind)
        assert "2 times; last in decode, File " in event["reason"]
        assert sum(event["event"] == "worker_replaced" for event in events) == 2
        runs.append(found)
    assert runs[0] == runs[1]
    differs = [
        (mine, wanted)
        for step in STEPS
        for mine, wanted in zip(runs[0][step], undisturbed[step], strict=True)
        if mine != wanted
    ]
    assert len(differs) == 1
    assert sum(a != b for a, b in zip(differs[0][0][3], differs[0][1][3], strict=True)) == 1


def test_storage_that_hangs_stops_the_run_and_never_costs_a_clip(opened: Index, plan: Plan) -> None:
    clip = first_clip(opened, plan)
    events: list[dict[str, Any]] = []
    settings = spec(num_workers=1, deadline_seconds=DEADLINE, prefetch_bytes=0)
    with (
        blocked(opened, clip),
        Loader(opened, plan, settings, on_event=events.append) as loader,
        pytest.raises(StorageError, match=r"was not read in 2 s, 2 times\. Check the storage") as caught,
    ):
        loader.step(0)
    assert str(shard_of(opened, clip)) in str(caught.value)
    assert [event["phase"] for event in events] == ["read", "read"]
    assert all("in _read" in event["stack"] for event in events)


def test_workers_that_are_old_or_large_make_way_and_change_nothing(
    opened: Index, plan: Plan, undisturbed: dict[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[int] = set()
    events: list[dict[str, Any]] = []
    settings = spec(num_workers=1, prefetch_bytes=0)
    monkeypatch.setattr(LoaderSpec, "max_worker_clips", 6)
    with Loader(opened, plan, settings, on_event=events.append) as loader:
        for step in STEPS:
            assert sorted(map(reported, loader.step(step))) == undisturbed[step]
            seen |= set(loader.process_ids())
    assert len(seen) > 1  # a step is about ten clips
    assert events == []  # it is as it should be
    monkeypatch.setattr(LoaderSpec, "max_worker_bytes", 1)
    with Loader(opened, plan, settings, on_event=events.append) as loader:
        assert sorted(map(reported, loader.step(0))) == undisturbed[0]
    assert {event["reason"] for event in events} == {"memory"}
    assert all(event["private_bytes"] > 1 << 24 for event in events)


def test_what_a_wait_took_too_long_is_no_workers_time(opened: Index, plan: Plan) -> None:
    """Of a machine or a job that was suspended, each worker was late as it woke, and its clip read again."""
    with Loader(opened, plan, spec(num_workers=1)) as loader:
        loader.step(0)
        wait_until_ready(loader)
        pool = loader._pool
        assert isinstance(pool, DecodePool)
        (worker,) = pool._workers
        worker.due = 5.0
        pool._selector.postpone_deadlines(-1.0)
        assert worker.due == 5.0
        pool._selector.postpone_deadlines(3600.0)
        assert worker.due == 3605.0
        worker.due = float("inf")


# ── the parent ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_killed_parent_leaves_no_process_and_no_shared_memory(opened: Index, plan: Plan) -> None:
    clip = first_clip(opened, plan)
    program = (
        "import sys; sys.path.insert(0, '.')\n"
        "from pathlib import Path\n"
        "from tests import loader_runs\n"
        "from tests.loader_runs import plan_of, spec\n"
        "from vidcurate.loader.loader import Loader\n"
        "from vidcurate.shards.index import read_index\n"
        f"opened = read_index(Path({str(opened.folder)!r}), check_files=False)\n"
        "one = Loader(opened, plan_of(opened), spec(num_workers=3))\n"
        "import threading, time\n"
        "threading.Thread(target=one.step, args=(0,), daemon=True).start()\n"
        f"loader_runs.wait_until_one_reads(one, {clip!r}, seconds=0.5)\n"  # one of them hangs in a read
        "loader_runs.wait_until_ready(one)\n"
        "print(*one.process_ids(), flush=True)\n"
        "time.sleep(600)\n"
    )
    root = Path(__file__).resolve().parents[2]
    before = set(os.listdir("/dev/shm"))
    with (
        blocked(opened, clip),
        subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=root
        ) as parent,
    ):
        assert parent.stdout is not None
        workers = [int(word) for word in parent.stdout.readline().split()]
        assert len(workers) == 3
        assert all(_runs(worker) for worker in workers)
        parent.kill()
        until = time.monotonic() + 60
        while time.monotonic() < until and any(_runs(worker) for worker in workers):
            time.sleep(0.05)
        assert not any(_runs(worker) for worker in workers)
    assert not {name for name in set(os.listdir("/dev/shm")) - before if "vidcurate" in name}


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_killed_workers_leave_no_descriptor_in_the_parent(opened: Index, plan: Plan) -> None:
    with Loader(opened, plan, spec(num_workers=2, prefetch_bytes=0)) as loader:
        loader.step(0)

        def descriptors() -> int:
            loader.step(0)
            wait_until_ready(loader)
            return len(os.listdir("/proc/self/fd"))

        before = descriptors()
        for _ in range(5):
            for process in loader.process_ids():
                os.kill(process, 9)
            loader.step(1)
        after = descriptors()
    assert after <= before
