"""Stacks of real processes, taken by py-spy and by SIGUSR2; the one that stands elsewhere is named."""

import dataclasses
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainer.cluster.node import processes as node_processes
from trainer.health.watch import stack_groups, stacks
from trainer.health.watch.flight_recorder import Collective
from trainer.health.watch.stacks import Frame, Stack, Thread
from trainer.run_folder import process_records, process_table

ROOT = Path(__file__).resolve().parents[4]
LIMIT_SECONDS = 60.0

HANGS = """
import faulthandler, os, signal, sys, threading, time
page = os.memfd_create("stacks")
faulthandler.register(signal.SIGUSR2, file=page)

def waits_for_ever():
    while True:
        time.sleep(0.5)

def spins_with_the_lock():
    import re
    re.match("(a+)+$", "a" * 64 + "b")

threading.Thread(target=time.sleep, args=(600,), daemon=True, name="other").start()
print(page, flush=True)
getattr(sys.modules["__main__"], sys.argv[1])()
"""

# Two workers are there, have imported all they need, and wait for work; then the numbers are printed.
DECODES = """
import os, sys, time
from vidcurate.loader.decode.worker_pool import DecodePool
with DecodePool(2, deadline_seconds=60.0) as pool:
    while [worker.is_ready for worker in pool._workers] != [True, True]:
        time.sleep(0.02)
    print(os.memfd_create("stacks"), *pool.process_ids(), flush=True)
    sys.stdin.read()
"""


def substitutes(name: str, record: process_records.ProcessRecord) -> bool:
    """Whether the process has come to the function in which it stays."""
    threads, _ = stacks._by_signal(record.pid, record.stack_descriptor, LIMIT_SECONDS)
    return len(threads) == 2 and name in [frame.function for thread in threads for frame in thread.frames]


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[dict[str, process_records.ProcessRecord]]:
    """Return a record for each of two processes: one waits, one spins and never gives the GIL away."""
    program = tmp_path / "hangs.py"
    program.write_text(HANGS)
    started, found = [], {}
    for rank, name in enumerate(("waits_for_ever", "spins_with_the_lock")):
        child = subprocess.Popen([sys.executable, str(program), name], stdout=subprocess.PIPE, text=True)
        started.append(child)
        assert child.stdout is not None
        found[name] = dataclasses.replace(
            process_records.record_of_this_process(tmp_path, rank=rank, local_rank=rank, world_size=2),
            pid=child.pid,
            stack_descriptor=int(child.stdout.readline()),
        )
    for name, record in found.items():
        until = time.monotonic() + LIMIT_SECONDS
        while not substitutes(name, record):
            assert time.monotonic() < until
    yield found
    for child in started:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


@pytest.mark.parametrize("how", ["py-spy", "faulthandler"])
def test_a_process_is_seen_where_it_stands_also_with_the_lock_held(
    hanging: dict[str, process_records.ProcessRecord], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "faulthandler":
        monkeypatch.setattr(stacks, "py_spy", lambda: None)  # as on a machine without it
    for name, record in hanging.items():
        (seen,) = stacks.dump(record.pid, LIMIT_SECONDS, record)

        assert seen.how == how, seen.note
        assert name in [frame.function for frame in seen.frames]
        assert seen.rank == record.rank
        assert len(seen.threads) == 2
        assert seen.threads[0].name == "MainThread"
        assert seen.at is not None
        assert seen.at.function == name
        assert seen.at.file.endswith("hangs.py")
        assert stacks.stack_from_json(seen.to_json()) == seen


def test_a_program_that_may_not_trace_is_replaced_by_the_signal(
    hanging: dict[str, process_records.ProcessRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "bin" / "py-spy"
    fake.parent.mkdir()
    fake.write_text(
        "#!/bin/sh\necho 'Error: Permission Denied: Try running again with elevated' >&2; exit 1\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    record = hanging["waits_for_ever"]

    assert stacks.dump(record.pid, LIMIT_SECONDS, record)[0].how == "faulthandler"
    (unasked,) = stacks.dump(
        record.pid, LIMIT_SECONDS
    )  # nothing says that it listens: the signal would kill it
    assert unasked.how == "none"
    assert "Permission Denied" in unasked.note


def test_py_spy_that_never_answers_is_not_waited_for(
    hanging: dict[str, process_records.ProcessRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "bin" / "py-spy"
    fake.parent.mkdir()
    (tmp_path / "quiet").touch()
    fake.write_text(f"#!/bin/sh\ntail -f {tmp_path}/quiet & wait\n")  # as sudo starts one of its own
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    record = hanging["waits_for_ever"]
    began = time.monotonic()

    (seen,) = stacks.dump(record.pid, 2.0, record)

    assert seen.how == "faulthandler"
    assert time.monotonic() - began < LIMIT_SECONDS
    while left := [one for one in node_processes.everything().values() if f"-f {tmp_path}" in one.command]:
        assert time.monotonic() - began < LIMIT_SECONDS, left  # what it had started ends with it
        time.sleep(0.05)


def test_a_stopped_process_and_one_that_has_ended_say_so(
    hanging: dict[str, process_records.ProcessRecord],
) -> None:
    stopped, ended = hanging["waits_for_ever"], hanging["spins_with_the_lock"]
    os.kill(stopped.pid, signal.SIGSTOP)
    os.kill(ended.pid, signal.SIGKILL)
    until = time.monotonic() + LIMIT_SECONDS
    while (process_table.state(stopped.pid), process_table.state(ended.pid)) != ("stopped", "ended"):
        assert time.monotonic() < until

    (first,), (second,) = (stacks.dump(record.pid, 2.0, record) for record in (stopped, ended))

    assert first.state == "stopped"
    assert (second.state, second.how, second.note) == ("ended", "none", "the process has ended")


@pytest.fixture
def rank_that_decodes(tmp_path: Path) -> Iterator[tuple[process_records.ProcessRecord, list[int]]]:
    """Return the record of a process of its own that holds two decode workers, and their ids."""
    child = subprocess.Popen(
        [sys.executable, "-c", DECODES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert child.stdin is not None
    assert child.stdout is not None
    page, *workers = map(int, child.stdout.readline().split())
    record = process_records.record_of_this_process(tmp_path, rank=5, local_rank=5, world_size=8)
    yield dataclasses.replace(record, pid=child.pid, stack_descriptor=page), workers
    child.stdin.close()
    child.wait(60)
    child.stdout.close()


@pytest.mark.parametrize("how", ["py-spy", "faulthandler"])
def test_decode_workers_are_seen_below_their_rank(
    rank_that_decodes: tuple[process_records.ProcessRecord, list[int]],
    how: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if how == "faulthandler":
        monkeypatch.setattr(stacks, "py_spy", lambda: None)
    record, expected = rank_that_decodes

    rank, *workers = stacks.dump(record.pid, LIMIT_SECONDS, record)

    assert rank.pid == record.pid
    assert not rank.is_worker
    assert [worker.pid for worker in workers] == sorted(expected)
    for worker in workers:
        assert (worker.how, worker.rank, worker.is_worker) == (how, 5, True), worker.note
        assert any(
            frame.file.endswith("vidcurate/loader/decode/worker_process.py") for frame in worker.frames
        )


def test_a_process_that_does_not_listen_for_the_signal_is_not_killed_by_it(
    hanging: dict[str, process_records.ProcessRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "py_spy", lambda: None)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    record = dataclasses.replace(hanging["waits_for_ever"], pid=child.pid, stack_descriptor=1)

    (seen,) = stacks.dump(child.pid, 1.0, record)

    assert seen.how == "none"
    assert "it does not listen for SIGUSR2" in seen.note
    assert child.poll() is None
    child.kill()
    child.wait()


def test_what_waits_does_not_move_between_two_dumps(
    hanging: dict[str, process_records.ProcessRecord],
) -> None:
    record = hanging["waits_for_ever"]
    first, second = (stacks.dump(record.pid, LIMIT_SECONDS, record) for _ in range(2))
    assert stack_groups.unmoved(first, second) == list(second)
    moved = dataclasses.replace(second[0], threads=(Thread("MainThread", (Frame("else", "x.py", 1),)),))
    assert stack_groups.unmoved(first, [moved]) == []


# ── the odd one ─────────────────────────────────────────────────────────────────────────────────────────────

LOOP = Frame("_run_stage", "/w/trainer/train.py", 300)
COLLECTIVE = (
    Frame("all_reduce", "/x/site-packages/torch/distributed/distributed_c10d.py", 2810),
    Frame("sum_over_ranks", "/w/trainer/distributed/mesh.py", 120),
    LOOP,
)
LOADER = (Frame("read", "/w/vidcurate/loader/loader.py", 40), LOOP)
CLIPS = (Frame("clip_gradients", "/w/trainer/training/optim/adamw.py", 226), LOOP)
WAITS = Collective(group="nccl group 0", ranks=(0, 1), name="all_reduce", enqueued=9, started=-1, completed=8)


def stack(rank: int, frames: tuple[Frame, ...], **facts: object) -> Stack:
    base = Stack(host="n1", pid=100 + rank, rank=rank, how="py-spy", state="sleeping")
    return dataclasses.replace(base, threads=(Thread("MainThread", frames),), **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seen", "rank", "why"),
    [
        ([stack(0, COLLECTIVE), stack(1, LOADER)], 1, "is not in the collective in which the others wait"),
        ([stack(0, LOADER), stack(1, COLLECTIVE), stack(2, COLLECTIVE)], 0, "is not in the collective"),
        ([stack(0, COLLECTIVE), stack(1, COLLECTIVE, state="stopped")], 1, r"is stopped \(SIGSTOP\)"),
        ([stack(0, COLLECTIVE), stack(1, (), state="ended", how="none")], 1, "has ended"),
        (
            [stack(0, COLLECTIVE), stack(1, (), how="none", note="no answer")],
            1,
            r"gave no stack \(no answer\)",
        ),
        # It keeps the interpreter's lock, so its watcher cannot ask the recorder; rank 0 waits for its GPU.
        (
            [
                stack(0, CLIPS, step=7, phase="update", collectives=(WAITS,)),
                stack(1, (Frame("sleep", "/w/x.py", 1), LOOP), step=7, phase="update"),
            ],
            1,
            "does not say where it is, while the others wait in all_reduce 9 of nccl group 0",
        ),
        # On a GPU no stack is inside a collective: all wait for the device, or for earlier work.
        (
            [stack(0, (LOOP,), step=7, phase="update"), stack(1, LOADER, step=7, phase="data")],
            1,
            "is behind the others: step 7, data",
        ),
        ([stack(0, (LOOP,)), stack(1, LOADER), stack(2, (LOOP,))], 1, "stands elsewhere than the others"),
    ],
)
def test_the_rank_that_the_others_wait_for_is_named(seen: list[Stack], rank: int, why: str) -> None:
    odd = stack_groups.odd_one(stack_groups.group(seen))
    assert odd is not None
    assert odd.stack.rank == rank
    assert re.search(why, odd.why)


def test_where_nothing_tells_them_apart_nobody_is_named() -> None:
    assert stack_groups.odd_one(stack_groups.group([stack(0, COLLECTIVE), stack(1, COLLECTIVE)])) is None
    reported = [stack(0, CLIPS, collectives=(WAITS,)), stack(1, CLIPS)]
    assert stack_groups.odd_one(stack_groups.group(reported)) is None
    assert stack_groups.odd_one([]) is None


def test_equal_stacks_are_one_group_and_one_screen_has_all() -> None:
    seen = [stack(rank, LOADER if rank == 37 else COLLECTIVE) for rank in range(64)]
    seen += [stack(3, (Frame("decode", "/w/vidcurate/video/read.py", 9),), is_worker=True, pid=900)]
    groups = stack_groups.group(seen)

    text = stack_groups.to_text(groups, stack_groups.unmoved(seen, seen))

    assert [len(members) for members in groups] == [63, 1, 1]
    assert text.splitlines()[0] == (
        "odd: n1 rank 37 is not in the collective in which the others wait, "
        "in read (vidcurate/loader/loader.py:40)"
    )
    assert "63 of 63 did not move" in text
    assert "and 55 more" in text
    assert "n1 rank 3 worker 900" in text
    assert len(text.splitlines()) < 24
