"""Ranks as processes: however many there are, whoever is killed, the run reads the same clips and frames."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.loader_runs import clips, plan_of, read, videos, write_shards
from vidcurate import order
from vidcurate.index import Index
from vidcurate.loader import state_of

NUM_STEPS = 16

# One rank: reads its share of the steps from `first` on and logs each micro-batch, whole lines only.
RANK = """
import json, os, sys, time
from pathlib import Path
from tests.loader_runs import plan_of, spec, told
from vidcurate.index import read_index
from vidcurate.loader import Loader, LoaderState, check_state

shards, log, state, rank, world, workers, last = sys.argv[1:]
opened = read_index(Path(shards))
plan = plan_of(opened)
saved = LoaderState.from_json(Path(state).read_text())
check_state(saved, opened, plan)
out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
with Loader(opened, plan, spec(num_workers=int(workers)), rank=int(rank), world_size=int(world)) as loader:
    for step in range(saved.step, int(last)):
        for batch in loader.step(step):
            said = told(batch)
            line = json.dumps([step, said[0], said[2], said[3], said[4], said[6], said[10]])
            os.write(out, (line + "\\n").encode())
        os.write(out, (json.dumps([step, "done"]) + "\\n").encode())
        time.sleep(0.06)  # as if it trained: a kill a quarter of a second later finds steps still to do
"""


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder = tmp_path_factory.mktemp("ranks")
    paths = videos(folder / "videos", clips())
    return write_shards(folder / "shards", clips(), {name: path.read_bytes() for name, path in paths.items()})


@pytest.fixture(scope="module")
def undisturbed(opened: Index) -> dict[int, list[Any]]:
    """Return step → what is read in it, as the logs say it."""
    whole = read(opened, plan_of(opened), range(NUM_STEPS))
    return {
        step: [[step, b[0], b[2], list(b[3]), list(b[4]), b[6], b[10]] for b in batches]
        for step, batches in whole.items()
    }


def start(
    opened: Index, folder: Path, state: Path, rank: int, world: int, workers: int
) -> "subprocess.Popen[str]":
    words = [opened.folder, folder / f"rank{rank}.log", state, rank, world, workers, NUM_STEPS]
    root = Path(__file__).resolve().parents[2]
    program = f"import sys; sys.path.insert(0, {str(root)!r})\n" + RANK
    return subprocess.Popen([sys.executable, "-c", program, *map(str, words)], text=True)


def logged(folder: Path) -> tuple[dict[int, list[Any]], list[int]]:
    """Return what all ranks of one start logged by step, and how many steps each finished."""
    found: dict[int, list[Any]] = {}
    finished = []
    for path in sorted(folder.glob("rank*.log")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            if line[1] != "done":
                found.setdefault(line[0], []).append(line)
        finished.append(max((line[0] + 1 for line in lines if line[1] == "done"), default=0))
    return {step: sorted(lines) for step, lines in found.items()}, finished


@pytest.mark.parametrize("world", [1, 2, 3])
def test_any_number_of_ranks_reads_the_same_batches(
    opened: Index, undisturbed: dict[int, Any], tmp_path: Path, world: int
) -> None:
    state = tmp_path / "state.json"
    state.write_text(state_of(opened, plan_of(opened), 0).as_json())
    ranks = [start(opened, tmp_path, state, rank, world, rank % 2 + 1) for rank in range(world)]
    assert [rank.wait(120) for rank in ranks] == [0] * world
    assert logged(tmp_path)[0] == undisturbed


def test_killed_ranks_resume_on_other_numbers_of_ranks(
    opened: Index, undisturbed: dict[int, Any], tmp_path: Path
) -> None:
    """Kill one rank, or all, at random moments; go on from the last step that all had finished."""
    plan = plan_of(opened)
    dice = random.Random(4)
    step, starts = 0, 0
    kept: dict[int, list[Any]] = {}
    while step < NUM_STEPS:
        folder = tmp_path / str(starts)
        folder.mkdir()
        state = folder / "state.json"
        state.write_text(state_of(opened, plan, step).as_json())
        world = (2, 1, 3)[starts % 3]
        ranks = [start(opened, folder, state, rank, world, 1) for rank in range(world)]
        if starts < 4:  # later starts are let through
            until = time.monotonic() + 60
            while not any(logged_lines(folder)) and time.monotonic() < until:
                time.sleep(0.02)
            time.sleep(dice.uniform(0.0, 0.25))
            victims = ranks if dice.random() < 0.5 else [dice.choice(ranks)]
            for victim in victims:
                victim.send_signal(signal.SIGKILL)
            for rank in ranks:  # the others would wait for it in a collective: they are ended with it
                rank.kill()
        for rank in ranks:
            rank.wait(120)
        found, finished = logged(folder)
        reached = max(step, min(finished)) if len(finished) == world else step
        kept |= {number: found[number] for number in range(step, reached)}
        # What is read beyond is thrown away with the update, and read again just so.
        for number, lines in found.items():
            assert all(line in undisturbed[number] for line in lines)
        step = reached
        starts += 1
        assert starts < 20
    assert kept == undisturbed
    assert starts > 2


def logged_lines(folder: Path) -> list[bool]:
    return [path.stat().st_size > 0 for path in folder.glob("rank*.log")]


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
