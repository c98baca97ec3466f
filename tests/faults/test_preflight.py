"""A node that computes wrongly, hangs, is slow, has other versions or another time: named before step 1."""

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.forked_runs import Forked, Forks
from tests.trainer.shards_for_tests import command_words, events, make_shards, numbers
from tests.trainer.smi_for_tests import put, put_dmesg, put_smi
from trainer.cluster.launch import bad_hosts
from trainer.cluster.launch.start_on_hosts import Ended

# Each rank is a node of its own; what is wrong with one of them is done where the machine would do it.
RANKS = """
import os, socket, sys, time
RANK = int(os.environ.get("RANK", "0"))
socket.gethostname = lambda: f"node{RANK}"
def odd(): pass
FAULT
if RANK == 1: odd()
from trainer.__main__ import main
sys.exit(main(WORDS))
"""
WRONG_PRODUCT = """
import torch
whole = torch.matmul
def odd():
    def matmul(left, right):
        result = whole(left, right)
        result[7, 5] += 0.25
        return result
    torch.matmul = matmul
"""
SLOW_PRODUCT = """
import torch
whole = torch.matmul
def odd():
    torch.matmul = lambda left, right: (time.sleep(0.3), whole(left, right))[1]
"""
HANGING_PRODUCT = """
import torch
def odd():
    torch.matmul = lambda left, right: time.sleep(3600)
"""
OTHER_VERSION = """
import torch
def odd():
    torch.__version__ = "2.10.0"
"""
CLOCK_AHEAD = """
own = time.time_ns
def odd():
    time.time_ns = lambda: own() + 3_000_000_000
"""
FIRST_CLOCK_BEHIND = """
own = time.time_ns
if RANK == 0:
    time.time_ns = lambda: own() - 3_000_000_000
def odd(): pass
"""
FIRST_STANDS_STILL = """
from trainer.training.preflight import run_checks
from trainer.health.checks import node
run_checks.HELLO_SECONDS = run_checks.MARGIN_SECONDS = 1.0
if RANK == 0:
    node.versions = lambda: time.sleep(30)
def odd(): pass
"""
SLOW_LINK = """
import torch.distributed as dist
whole = dist.batch_isend_irecv
def odd():
    def batch(operations):
        time.sleep(0.5)
        return whole(operations)
    dist.batch_isend_irecv = batch
"""
DEAD_LINK = """
import torch.distributed as dist
whole = dist.batch_isend_irecv
def odd():
    dist.batch_isend_irecv = lambda ops: time.sleep(3600) if ops[0].peer == 2 else whole(ops)
"""

TRAINED = ("stages.0.steps=1", "sample=null", "loader.num_workers=0")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("made") / "shards", num_clips=6)


def start(forks: Forks, words: list[str], fault: str = "", ranks: int = 1, **environment: str) -> Forked:
    program = RANKS.replace("FAULT", fault).replace("WORDS", repr(words))
    return forks.start(["-c", program], ranks=ranks, **environment)


def kept(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "preflight.json").read_text())
    return found


def verdicts(run: Path) -> dict[str, str]:
    return {node["host"]: node["verdict"] for node in kept(run)["nodes"]}


def check(run: Path, node: int, name: str) -> dict[str, Any]:
    (found,) = [each for each in kept(run)["nodes"][node]["checks"] if each["name"] == name]
    return dict(found)


def test_ranks_that_are_sound_are_reported_so_in_one_table(
    forks: Forks, shards: Path, tmp_path: Path
) -> None:
    started = start(forks, [*command_words(shards, tmp_path), "--preflight"], ranks=3)
    started.succeed()
    assert verdicts(tmp_path) == {"node0": "ok", "node1": "ok", "node2": "ok"} or set(
        line.split(": ")[1] for line in kept(tmp_path)["problems"]
    ) <= {"time daemon", "product rate", "copy rate", "link"}, started.text()  # one small machine plays three
    text = started.text()
    assert text.count("preflight: ") == 1
    assert "node1  1      cpu" in text
    assert len(kept(tmp_path)["links"]) == 3  # each with each
    assert {tuple(link["ranks"]) for link in kept(tmp_path)["links"]} == {(0, 1), (0, 2), (1, 2)}
    assert "one epoch is" in text  # the data are looked at, too
    (event,) = events(tmp_path, "preflight")
    assert (event["form"], set(event["nodes"])) == ("full", {"node0", "node1", "node2"})
    assert numbers(tmp_path) == []  # nothing is trained


def test_a_device_that_computes_wrongly_ends_the_start_with_77(
    forks: Forks, shards: Path, tmp_path: Path
) -> None:
    started = start(forks, command_words(shards, tmp_path), WRONG_PRODUCT, ranks=3)
    assert started.codes() == [77, 77, 77], started.text()
    assert verdicts(tmp_path)["node1"] == "bad"
    assert "bad" not in (verdicts(tmp_path)["node0"], verdicts(tmp_path)["node2"])
    assert "error: bad node node1: node1 rank 1: product: " in started.text()
    assert "elements are wrong, limit 0 wrong" in started.text()
    (event,) = events(tmp_path, "preflight")
    assert (event["verdict"], event["form"]) == ("bad", "short")
    assert numbers(tmp_path) == []
    # What a supervisor makes of it, whatever the hostfile calls the hosts.
    ended = Ended(
        ranks_of={"a": range(1), "b": range(1, 2), "c": range(2, 3)},
        names={"a": "node0", "b": "node1", "c": "node2"},
        codes={0: 77, 1: 77, 2: 77},
    )
    before = bad_hosts.seen(tmp_path / "nothing")
    ((host, why),) = bad_hosts.bad_hosts(tmp_path, ended, before).items()
    assert host == "b"
    assert "elements are wrong" in why
    # Once it was acted upon, it says nothing of other ranks.
    assert bad_hosts.bad_hosts(tmp_path, ended, bad_hosts.seen(tmp_path)) == {}


def test_without_preflight_nothing_is_checked(forks: Forks, shards: Path, tmp_path: Path) -> None:
    words = command_words(shards, tmp_path, *TRAINED)
    start(forks, [*words, "--no-preflight"], WRONG_PRODUCT.replace("+= 0.25", "+= 0.0")).succeed()
    assert len(numbers(tmp_path)) == 1
    assert not (tmp_path / "preflight.json").exists()
    start(forks, [*words, "--set", "preflight.at_start=false", "--set", "stages.0.steps=2"]).succeed()
    assert events(tmp_path, "preflight") == []


@pytest.mark.soak
def test_a_slow_rank_is_marked(forks: Forks, shards: Path, tmp_path: Path) -> None:
    words = command_words(shards, tmp_path, *TRAINED)
    start(forks, words, SLOW_PRODUCT, ranks=3).succeed()
    marked = check(tmp_path, 1, "product rate")
    assert marked["verdict"] == "warn"
    assert "below the median" in marked["value"]


def test_a_check_that_hangs_is_itself_named(forks: Forks, shards: Path, tmp_path: Path) -> None:
    words = command_words(shards, tmp_path, "preflight.check_seconds=4")
    started = start(forks, words, HANGING_PRODUCT, ranks=2)
    assert started.codes() == [77, 77], started.text()
    hung = check(tmp_path, 1, "product")
    assert hung["verdict"] == "bad"
    assert re.match(r"no answer after \d+\.\d s", hung["value"])
    assert hung["limit"] == "4 s"
    assert "bad node node1: node1 rank 1: product: no answer" in started.text()


@pytest.mark.soak
def test_another_version_on_one_rank_is_named(forks: Forks, shards: Path, tmp_path: Path) -> None:
    started = start(forks, command_words(shards, tmp_path), OTHER_VERSION, ranks=3)
    assert started.codes() == [77] * 3, started.text()
    assert "node1 rank 1: torch: 2.10.0, limit" in started.text()


def test_a_clock_that_is_ahead_is_named_with_its_offset(forks: Forks, shards: Path, tmp_path: Path) -> None:
    started = start(forks, command_words(shards, tmp_path), CLOCK_AHEAD, ranks=3)
    assert started.codes() == [77] * 3, started.text()
    found = check(tmp_path, 1, "clock")
    assert found["verdict"] == "bad"
    assert found["figure"] == pytest.approx(3000, abs=300)
    assert check(tmp_path, 2, "clock")["verdict"] == "ok"
    assert "use chrony" in started.text()


def test_where_the_first_clock_is_the_odd_one_it_is_named_and_not_all_others(
    forks: Forks, shards: Path, tmp_path: Path
) -> None:
    started = start(forks, command_words(shards, tmp_path), FIRST_CLOCK_BEHIND, ranks=3)
    assert started.codes() == [77] * 3, started.text()
    assert check(tmp_path, 0, "clock")["figure"] == pytest.approx(-3000, abs=300)
    assert [check(tmp_path, node, "clock")["verdict"] for node in range(3)] == ["bad", "ok", "ok"]
    assert re.search(r"bad node node0: node0 rank 0: clock: -\d+", started.text())


def test_a_first_rank_that_says_nothing_is_named_by_those_who_wait_for_it(
    forks: Forks, shards: Path, tmp_path: Path
) -> None:
    words = command_words(shards, tmp_path, "preflight.check_seconds=0.5")
    started = start(forks, words, FIRST_STANDS_STILL, ranks=3)
    until = time.monotonic() + 300
    while not (tmp_path / "preflight.json").exists() and time.monotonic() < until:
        time.sleep(0.1)
    os.kill(started.pids[0], signal.SIGKILL)  # as a supervisor does when the others have ended
    assert started.codes() == [-signal.SIGKILL, 77, 77], started.text()
    assert verdicts(tmp_path) == {"node0": "bad"}
    reported = events(
        tmp_path, "preflight"
    )  # of one of the two; of both where rank 0 is gone before they agree
    assert 1 <= len(reported) <= 2
    assert all("rank 0 says nothing" in event["problems"][0] for event in reported)


@pytest.mark.soak
def test_a_link_through_which_nothing_comes_is_named(forks: Forks, shards: Path, tmp_path: Path) -> None:
    words = command_words(shards, tmp_path, "preflight.check_seconds=6")
    started = start(forks, [*words, "--preflight"], DEAD_LINK, ranks=3)
    assert started.codes() == [77] * 3, started.text()
    assert verdicts(tmp_path)["node0"] != "bad", kept(tmp_path)["problems"]
    assert "nothing arrives to rank 2 on node2" in started.text()


@pytest.mark.soak
def test_the_drivers_word_drains_the_node(forks: Forks, shards: Path, tmp_path: Path) -> None:
    path = f"{put_smi(tmp_path / 'tools', {}, {'remap_pending': 'Yes'})}:/usr/bin:/bin"
    started = start(forks, command_words(shards, tmp_path / "run"), PATH=path)
    assert started.codes() == [77], started.text()
    assert "node0 rank 0: hardware: GPU 1: a memory row waits to be replaced" in started.text()

    put_smi(tmp_path / "tools", {})
    now = Path("/proc/uptime").read_text().split()[0]
    lost = "NVRM: Xid (PCI:0000:41:00): 79, pid=1234, GPU has fallen off the bus."
    put_dmesg(tmp_path / "tools", f"[{now}] {lost}", f"[{now}] {lost}")
    started = start(forks, command_words(shards, tmp_path / "run"), PATH=path)
    assert started.codes() == [77], started.text()
    assert "Xid 79 on 0000:41:00 2 times: the GPU has fallen off the bus" in started.text()

    milder = command_words(shards, tmp_path / "run", 'preflight.xid={"79": ignore}', "stages.0.steps=1")
    start(forks, milder, PATH=path).succeed()


def test_a_driver_that_hangs_is_one_line(forks: Forks, shards: Path, tmp_path: Path) -> None:
    path = f"{put(tmp_path / 'tools', 'nvidia-smi', 'sleep 600')}:/usr/bin:/bin"
    words = command_words(shards, tmp_path / "run", "preflight.check_seconds=1")
    started = start(forks, words, PATH=path)
    assert started.codes() == [77], started.text()
    assert "hardware: nvidia-smi: no answer within 0.8 s" in started.text()
