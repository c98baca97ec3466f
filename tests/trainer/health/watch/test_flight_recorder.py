"""What torch's flight recorder says of two real ranks, and for whom the others are taken to wait."""

import json
from pathlib import Path

import pytest

from tests.forked_runs import Forks
from trainer.health.watch import flight_recorder
from trainer.health.watch.flight_recorder import Collective, Wait
from vidcurate.errors import StateError

TWO_RANKS = """
import contextlib, json, os, pathlib, sys, threading, time
import torch, torch.distributed as dist
from trainer.health.watch import flight_recorder
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
pair = dist.new_group([0, 1], group_desc="shards")
for _ in range(3):
    dist.broadcast(torch.ones(2), 0, group=pair)

def tell():
    recorder = flight_recorder.Recorder()
    found = []
    until = time.monotonic() + 250
    # Rank 0 until the all_gather alone is seen to wait, rank 1 until it is seen to wait for nothing. A busy
    # machine records the end of a collective some time after the call has returned.
    expected = ["all_gather"] if rank == 0 else []
    while len(found) < 2 or [one.name for one in found if one.completed < one.enqueued] != expected:
        if time.monotonic() > until:
            break
        time.sleep(0.05)
        found = recorder.look()
    folder = pathlib.Path(sys.argv[1])
    (folder / f".{rank}").write_text(json.dumps(flight_recorder.to_json(found)))
    (folder / f".{rank}").rename(folder / str(rank))
    while len([path for path in folder.iterdir() if path.name in "01"]) < 2:
        time.sleep(0.05)
    os._exit(0)

threading.Thread(target=tell).start()
if rank == 0:
  with contextlib.suppress(RuntimeError):  # the other may leave first
    dist.all_gather([torch.ones(4), torch.ones(4)], torch.ones(4), group=pair)
time.sleep(300)
"""


def test_of_two_real_ranks_the_one_that_did_not_come_to_the_collective_is_known(
    forks: Forks, tmp_path: Path
) -> None:
    folder = tmp_path / "reported"
    folder.mkdir()
    program = f"import sys; sys.argv[1:] = [{str(folder)!r}]\n{TWO_RANKS}"
    started = forks.start(["-c", program], ranks=2)
    assert started.codes() == [0, 0], started.text()

    reported = {
        rank: flight_recorder.from_json(json.loads((folder / str(rank)).read_text())) for rank in (0, 1)
    }

    assert [(one.group, one.ranks, one.enqueued, one.completed) for one in reported[1]] == [
        ("gloo group 0 (default_pg)", (0, 1), 1, 1),
        ("gloo group 1 (shards)", (0, 1), 3, 3),
    ]
    (wait,) = flight_recorder.waits(reported)
    assert (wait.name, wait.number, wait.waiting, wait.late) == ("all_gather", 4, (0,), (1,))
    assert wait.why == (
        "is not in the collective in which the others wait (all_gather 4 of gloo group 1 (shards))"
    )


# The form that torch documents for NCCL (Flight Recorder, version 2.10), cut to what is read.
NCCL = {
    "version": "2.10",
    "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
    "pg_status": {
        "0": {"last_enqueued_collective": 42, "last_started_collective": 41, "last_completed_collective": 41}
    },
    "entries": [
        {
            "record_id": record,
            "pg_id": 0,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": record,
            "profiling_name": f"nccl:{name}",
            "state": state,
            "is_p2p": is_p2p,
        }
        for record, name, state, is_p2p in (
            (41, "all_reduce", "completed", False),
            (42, "_reduce_scatter_base", "scheduled", False),
            (43, "send", "scheduled", True),
        )
    ],
}


def test_a_dump_of_nccl_says_what_its_gpu_has_begun() -> None:
    (found,) = flight_recorder.read_trace(NCCL, lambda name: ())
    assert found == Collective(
        group="nccl group 0 (default_pg)",
        ranks=(0, 1),
        name="_reduce_scatter_base",
        enqueued=42,
        started=41,
        completed=41,
    )


def test_a_dump_of_another_form_is_refused_with_its_version() -> None:
    with pytest.raises(StateError, match=r"torch 2\.13 writes version 2\.10, this is 3\.0"):
        flight_recorder.read_trace(NCCL | {"version": "3.0", "pg_status": {}}, lambda name: ())


def at(enqueued: int, completed: int, started: int = -1, ranks: tuple[int, ...] = (0, 1, 2)) -> Collective:
    return Collective(
        group=f"nccl group {len(ranks)}",
        ranks=ranks,
        name="all_reduce",
        enqueued=enqueued,
        started=started,
        completed=completed,
    )


@pytest.mark.parametrize(
    ("reported", "waiting", "late", "on_device"),
    [
        ({0: [at(9, 8)], 1: [at(9, 8)], 2: [at(8, 8)]}, (0, 1), (2,), False),
        # All have enqueued it: the GPU that has not begun it still does something else.
        ({0: [at(9, 8, 9)], 1: [at(9, 8, 8)], 2: [at(9, 8, 9)]}, (0, 2), (1,), True),
        # Nothing is recorded of the GPUs, or all have begun it: a link may hang, nobody is late.
        ({0: [at(9, 8)], 1: [at(9, 8)], 2: [at(9, 8)]}, (0, 1, 2), (), False),
        ({0: [at(9, 8, 9)], 1: [at(9, 8, 9)], 2: [at(9, 8, 9)]}, (0, 1, 2), (), False),
        # Rank 2 recorded nothing, so it may be in the collective as well.
        ({0: [at(9, 8)], 1: [at(8, 8)]}, (0,), (), False),
        # Rank 1 waits for rank 2 in their pair, so it is not rank 1 that holds up rank 0.
        (
            {
                0: [at(9, 8, ranks=(0, 1))],
                1: [at(8, 8, ranks=(0, 1)), at(3, 2, ranks=(1, 2, 3))],
                2: [at(2, 2, ranks=(1, 2, 3))],
                3: [at(3, 2, ranks=(1, 2, 3))],
            },
            (1, 3),
            (2,),
            False,
        ),
    ],
)
def test_who_waits_and_who_is_late(
    reported: dict[int, list[Collective]], waiting: tuple[int, ...], late: tuple[int, ...], on_device: bool
) -> None:
    wait = flight_recorder.waits(reported)[0]
    assert isinstance(wait, Wait)
    assert (wait.waiting, wait.late, wait.on_device) == (waiting, late, on_device)


def test_ranks_whose_collectives_are_done_wait_for_nobody() -> None:
    assert flight_recorder.waits({0: [at(9, 9)], 1: [at(9, 9)], 2: [at(9, 9)]}) == []
    assert flight_recorder.waits({}) == []


def test_without_a_process_group_nothing_is_recorded() -> None:
    assert flight_recorder.Recorder().look() == ()
