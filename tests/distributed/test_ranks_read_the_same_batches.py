"""Ranks as processes: however many there are, whoever is killed, the run reads the same clips and frames."""

import json
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.forked_runs import Forked, Forks
from tests.loader_runs import make, plan_of, read
from vidcurate.sampler import order
from vidcurate.sampler.order_state import state_of
from vidcurate.shards.index import Index

LAST = 10**9
TAIL = 3  # steps that the last start reads to its end

# One rank: reads its share of the steps from the state's on and logs each micro-batch, whole lines only.
RANK = """
import json, os, time
from pathlib import Path
from tests.loader_runs import plan_of, spec, reported
from vidcurate.shards.index import read_index
from vidcurate.loader.loader import Loader
from vidcurate.sampler.order_state import LoaderState, check_state

given = json.loads(os.environ["LOADER_RUN"])
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
opened = read_index(Path(given["shards"]))
plan = plan_of(opened)
saved = LoaderState.from_json(given["state"])
check_state(saved, opened, plan)
out = os.open(f"{given['folder']}/rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
with Loader(opened, plan, spec(num_workers=given["workers"][rank]), rank=rank, world_size=world) as loader:
    for step in range(saved.step, given["last"]):
        for batch in loader.step(step):
            said = reported(batch)
            line = json.dumps([step, said[0], said[2], said[3], said[4], said[6], said[10]])
            os.write(out, (line + "\\n").encode())
        os.write(out, (json.dumps([step, "done"]) + "\\n").encode())
        time.sleep(0.03)  # as if it trained: a kill finds steps still to do
"""


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return make(tmp_path_factory.mktemp("ranks"))


def undisturbed(opened: Index, num_steps: int) -> dict[int, list[Any]]:
    """Return step → what is read in it, as the logs say it."""
    whole = read(opened, plan_of(opened), range(num_steps))
    return {
        step: [[step, b[0], b[2], list(b[3]), list(b[4]), b[6], b[10]] for b in batches]
        for step, batches in whole.items()
    }


def start(
    forks: Forks, opened: Index, folder: Path, step: int, world: int, last: int, workers: tuple[int, ...]
) -> Forked:
    """Start `world` ranks that continue at `step`, as from a checkpoint."""
    folder.mkdir(exist_ok=True)
    given = {
        "shards": str(opened.folder),
        "folder": str(folder),
        "state": state_of(opened, plan_of(opened), step).to_json(),
        "last": last,
        "workers": workers,
    }
    return forks.start(["-c", RANK], ranks=world, LOADER_RUN=json.dumps(given))


def logged(folder: Path) -> tuple[dict[int, list[Any]], list[int]]:
    """Return what all ranks of one start logged by step, and how many steps each finished."""
    found: dict[int, list[Any]] = {}
    finished = []
    for path in sorted(folder.glob("rank*.log")):
        whole = path.read_text().rpartition("\n")[0]  # a line may be on its way, half of it on the next page
        lines = [json.loads(line) for line in whole.splitlines()]
        for line in lines:
            if line[1] != "done":
                found.setdefault(line[0], []).append(line)
        finished.append(max((line[0] + 1 for line in lines if line[1] == "done"), default=0))
    return {step: sorted(lines) for step, lines in found.items()}, finished


@pytest.mark.parametrize(("world", "workers"), [(2, (1, 0)), (3, (0, 2, 1))])
def test_any_number_of_ranks_reads_the_same_batches(
    forks: Forks, opened: Index, tmp_path: Path, world: int, workers: tuple[int, ...]
) -> None:
    start(forks, opened, tmp_path, 0, world, 12, workers).succeed()
    assert logged(tmp_path)[0] == undisturbed(opened, 12)


def workers_of(rank: int) -> list[int]:
    """Return the processes that a rank has started."""
    found: list[int] = []
    for path in Path(f"/proc/{rank}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            found += map(int, path.read_text().split())
    return found


def strike(ranks: list[int], victim: str, dice: random.Random) -> None:
    """Kill a worker, a rank, or all ranks."""
    if victim == "worker":
        processes = [process for rank in ranks for process in workers_of(rank)]
        for process in dice.sample(processes, k=min(1, len(processes))):
            with suppress(ProcessLookupError):  # its rank has just replaced it
                os.kill(process, signal.SIGKILL)
        return
    for rank in ranks if victim == "all" else [dice.choice(ranks)]:
        os.kill(rank, signal.SIGKILL)


@pytest.mark.parametrize(
    "kills", [6, pytest.param(20, marks=pytest.mark.soak), pytest.param(200, marks=pytest.mark.soak)]
)
def test_killed_at_random_moments_and_resumed_on_1_2_3_ranks_it_reads_the_same(
    forks: Forks, opened: Index, tmp_path: Path, kills: int
) -> None:
    """A killed worker, rank or all ranks: the run continues where all ranks had arrived."""
    dice = random.Random(kills)
    victims = [*["worker", "rank", "all"] * (kills // 3), *["all"] * (kills % 3)]
    dice.shuffle(victims)
    step = 0
    worlds: list[int] = []
    kept: dict[int, list[Any]] = {}
    beyond: list[list[Any]] = []
    while True:
        folder = tmp_path / str(len(worlds))
        worlds.append(2 if not worlds else dice.choice([world for world in (1, 2, 3) if world != worlds[-1]]))
        last = LAST if victims else step + TAIL
        run = start(forks, opened, folder, step, worlds[-1], last, (1,) * worlds[-1])
        while victims:
            wait_for_a_step(folder, run)
            time.sleep(dice.uniform(0.0, 0.3))
            victim = victims.pop()
            strike(run.pids, victim, dice)
            if victim != "worker":
                break
        else:
            if last == LAST:  # only workers were killed in this start
                wait_for_a_step(folder, run)
        if last == LAST:
            for rank in run.pids:  # the others would wait for the dead in a collective: they end with it
                with suppress(ProcessLookupError):  # it was waited for
                    os.kill(rank, signal.SIGKILL)
        codes = run.codes()
        assert set(codes) == ({-signal.SIGKILL} if last == LAST else {0}), run.text()
        found, finished = logged(folder)
        reached = max(step, min(finished)) if len(finished) == worlds[-1] else step
        kept |= {number: found[number] for number in range(step, reached)}
        # What is read beyond is thrown away with the update, and read again just so.
        beyond += [line for number, lines in found.items() if number >= reached for line in lines]
        step = reached
        if last != LAST:
            break
    wanted = undisturbed(opened, max([step, *(line[0] + 1 for line in beyond)]))
    assert kept == {number: wanted[number] for number in range(step)}
    assert all(line in wanted[line[0]] for line in beyond)
    assert len(set(worlds)) > 1
    print(f"{kills} kills, {len(worlds)} starts on {dict(Counter(worlds))} ranks, {step} steps, "
          f"{sum(len(line[3]) for lines in kept.values() for line in lines)} clips, "
          f"{len(beyond)} micro-batches read twice")  # fmt: skip


def wait_for_a_step(folder: Path, run: Forked) -> None:
    """Wait until every rank has logged a step since the last time that this was asked."""
    asked = folder / "asked"
    before = json.loads(asked.read_text()) if asked.exists() else 0
    until = time.monotonic() + 120
    while True:
        finished = logged(folder)[1]
        if len(finished) == len(run.pids) and min(finished) > before:
            asked.write_text(json.dumps(max(finished)))
            return
        assert time.monotonic() < until, run.text()
        time.sleep(0.02)


def test_the_rolling_hash_is_the_same_for_the_same_clips_and_no_others(opened: Index) -> None:
    hashes = {}
    for seed in (5, 6):
        plan, so_far = plan_of(opened, seed=seed), ""
        for step in range(5):
            rows = [int(row) for batch in order.step_micro_batches(plan, step) for row in batch.rows]
            so_far = order.rolling_hash(so_far, [opened.word("clip_id", row) for row in rows])
        hashes[seed] = so_far
    assert hashes[5] == "ac77f2c256b66ede91a021e58abc32e1"
    assert hashes[5] != hashes[6]
