"""The preflight's parts: known products, pairs, blame, medians, versions, room, Xids, limits."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.smi_for_tests import process, xml
from trainer.health.checks import device, disk, links, node, verdict
from trainer.health.checks.check import Bounded, Check
from trainer.health.checks.links import Link
from trainer.health.checks.spec import PreflightSpec
from trainer.health.checks.verdict import Report
from trainer.health.gpu import GpuProcess, parse
from trainer.health.timed_command import CommandResult
from trainer.health.xid_log import XidEvent, XidLog
from trainer.model.stdit import XL_2, STDiT3Config

CPU = torch.device("cpu")
SPEC = PreflightSpec()
SMALL = STDiT3Config(hidden_size=32, depth=1, num_heads=2)


# ── products ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("inner", [32, 1152, 4608])
def test_the_known_product_is_exact_whatever_the_order_of_the_sums(inner: int) -> None:
    found = device.known(96, inner, 128, CPU, torch.float32)
    turned = torch.randperm(inner, generator=torch.Generator().manual_seed(1))
    again = (found.left.double()[:, turned] @ found.right.double()[turned]).float()
    halves = found.left[:, : inner // 2] @ found.right[: inner // 2]
    halves += found.left[:, inner // 2 :] @ found.right[inner // 2 :]
    assert torch.equal(found.product, again)
    assert torch.equal(found.product, halves)
    assert torch.equal(found.product, found.left @ found.right)
    assert found.product.abs().max() > 8


def test_in_bfloat16_it_is_the_exact_product_rounded_once() -> None:
    found = device.known(64, 1152, 64, CPU, torch.bfloat16)
    exact = found.left.double() @ found.right.double()
    assert torch.equal(found.product, exact.to(torch.bfloat16))
    assert torch.equal(found.left.double() * 4, (found.left.double() * 4).round())  # quarters


def test_one_wrong_element_is_found_and_the_models_shapes_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device.shapes(XL_2) == [(1152, 3456), (1152, 4608), (4608, 1152)]
    effort = device.EFFORTS["cpu", False]
    right, rate = device.product(SMALL, CPU, torch.bfloat16, effort)
    assert (right.verdict, rate.verdict) == ("ok", "ok")
    assert rate.figure is not None
    assert rate.figure > 0

    whole = torch.matmul

    def nan_somewhere(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        result = whole(left, right)
        result[-1, -1] = float("nan")
        return result

    monkeypatch.setattr(torch, "matmul", nan_somewhere)
    (wrong,) = device.product(SMALL, CPU, torch.float32, effort)
    assert (wrong.verdict, wrong.limit) == ("bad", "0 wrong")
    assert wrong.value.startswith("6 of ")  # three products, looked at twice


def test_checking_draws_nothing_from_the_runs_random_numbers() -> None:
    before = torch.get_rng_state(), repr(np.random.get_state())
    effort = device.EFFORTS["cpu", False]
    device.product(SMALL, CPU, torch.float32, effort)
    device.copy(CPU, effort)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert repr(np.random.get_state()) == before[1]


def test_a_forecast_that_does_not_fit_is_a_warning() -> None:
    assert [check.verdict for check in device.memory(CPU, 1)] == ["ok"]
    found = device.memory(CPU, 1 << 60)[-1]
    assert (found.name, found.verdict) == ("memory forecast", "warn")


# ── links ───────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.integers(1, 24))
def test_in_a_tournament_each_meets_each_other_once(players: int) -> None:
    rounds = links.tournament(range(players))
    pairs = [pair for each in rounds for pair in each]
    assert sorted(pairs) == [(a, b) for a in range(players) for b in range(a + 1, players)]
    assert len(rounds) <= players - 1 + players % 2
    for each in rounds:
        met = [rank for pair in each for rank in pair]
        assert len(met) == len(set(met))


def test_nodes_play_among_themselves_at_once_and_then_by_their_first_ranks() -> None:
    hosts = [f"node{rank // 4}" for rank in range(12)]
    rounds = links.schedule(hosts)
    assert len(rounds) == 3 + 3
    pairs = [pair for each in rounds for pair in each]
    assert len(pairs) == len(set(pairs)) == 3 * 6 + 3
    assert {pair for pair in pairs if hosts[pair[0]] != hosts[pair[1]]} == {(0, 4), (0, 8), (4, 8)}


def link(a: int, b: int, rate: float, wrong: int = 0) -> Link:
    return Link(pair=(a, b), rate=rate, wrong=wrong, is_between_nodes=False)


@pytest.mark.parametrize(
    ("slow", "blamed"),
    [
        ([], set()),
        ([(0, 2), (1, 2), (2, 3)], {2}),
        ([(0, 1)], {0, 1}),  # nothing tells the ends apart
        ([(0, 2), (1, 2), (2, 3), (4, 5)], {2, 4, 5}),
    ],
)
def test_the_rank_that_slow_links_have_in_common_is_blamed(
    slow: list[tuple[int, int]], blamed: set[int]
) -> None:
    found = [link(a, b, 1.0 if (a, b) in slow else 20.0) for a in range(6) for b in range(a + 1, 6)]
    assert set(links.blamed(links.slow(found))) == blamed
    reported = links.checks(found, ["node"] * 6, is_cpu=False)
    assert {rank for rank, checks in reported.items() if checks[0].verdict == "bad"} == blamed


def test_wrong_data_and_a_hang_make_a_link_bad_on_a_cpu_too() -> None:
    hosts = ["a", "b", "c"]
    slower = [link(0, 1, 1.0), link(0, 2, 20.0), link(1, 2, 20.0)]
    assert links.checks(slower, hosts, is_cpu=True)[0][0].verdict == "warn"
    altered = [link(0, 1, 20.0, wrong=3), link(0, 2, 20.0), link(1, 2, 20.0)]
    assert "3 elements arrived wrong" in links.checks(altered, hosts, is_cpu=True)[0][0].value

    done, hung = {"pair": [0, 1], "rate": 9.0, "wrong": 0}, {"pair": [1, 2], "rate": None, "wrong": 0}
    waits = {"pair": [0, 2], "rate": None, "wrong": 0}  # for 2, which is held up by 1
    found = links.links([[done, waits], [done, hung], [hung]], hosts)
    assert [(each.pair, each.rate) for each in found] == [((0, 1), 9.0), ((1, 2), 0.0)]
    assert "nothing arrives" in links.checks(found, hosts, is_cpu=True)[1][0].value


# ── together ────────────────────────────────────────────────────────────────────────────────────────────────


def report(rank: int, rate: float, device_name: str = "NVIDIA H200", **versions: str) -> Report:
    check = Check(name="product rate", verdict="ok", value=f"{rate:g} TFLOP/s", figure=rate, unit="TFLOP/s")
    return Report(rank=rank, host=f"n{rank}", device=device_name, checks=(check,), versions=versions)


@pytest.mark.parametrize(
    ("rates", "device_name", "verdicts"),
    [
        ((700, 700, 700, 660), "NVIDIA H200", ["ok", "ok", "ok", "warn"]),  # -5.7 %
        ((700, 700, 700, 670), "NVIDIA H200", ["ok", "ok", "ok", "ok"]),
        ((700, 480, 700, 700), "NVIDIA H200", ["ok", "bad", "ok", "ok"]),
        ((700, 400), "NVIDIA H200", ["ok", "bad"]),  # of two, the slower is held against the faster
        ((700,), "NVIDIA H200", ["ok"]),
        ((1.0, 0.6, 0.4), "cpu", ["ok", "ok", "ok"]),
        ((1.0, 0.9, 0.1), "cpu", ["ok", "ok", "warn"]),
    ],
)
def test_rates_are_held_against_the_median_of_their_kind(
    rates: tuple[float, ...], device_name: str, verdicts: list[str]
) -> None:
    reports = [report(rank, rate, device_name) for rank, rate in enumerate(rates)]
    slower = report(99, 1.0, "another GPU")  # of another kind: not compared with these
    found = verdict.compared([*reports, slower], SPEC)
    assert [each.checks[0].verdict for each in found] == [*verdicts, "ok"]


def test_the_odd_version_is_named_and_rank_0_decides_a_tie() -> None:
    reports = [report(0, 1, torch="2.11"), report(1, 1, torch="2.12"), report(2, 1, torch="2.12")]
    (odd,) = verdict.different(reports)[0]
    assert (odd.name, odd.value, odd.limit, odd.verdict) == ("torch", "2.11", "2.12, as on most ranks", "bad")
    assert list(verdict.different(reports[:2])) == [1]
    assert verdict.different([report(0, 1, driver="580"), report(1, 1)])[1][0].value == "none"


def test_a_node_is_as_bad_as_its_worst_check_and_a_silent_rank_is_bad() -> None:
    more = {1: [verdict.silent(1, 30.0)]}
    found = verdict.nodes(["n0", "n1"], [report(0, 700.0)], more)
    assert [(each.name, each.verdict, each.ranks) for each in found] == [
        ("n0", "ok", (0,)),
        ("n1", "bad", (1,)),
    ]
    assert "n1 rank 1: answer: rank 1 says nothing after 30 s" in verdict.problems(found, "bad")[0]
    assert found[1].to_json()["reason"].startswith("rank 1: answer")
    assert verdict.table(found)[2].split() == ["n1", "1", "?", "-", "bad"]


# ── nodes and disks ─────────────────────────────────────────────────────────────────────────────────────────


def test_xids_count_by_age_policy_and_the_recipes_changes() -> None:
    now = 1_790_000_000.0

    def event(number: int, hours: float) -> XidEvent:
        return XidEvent(number=number, bus_id="0000:41:00", text="", time=now - 3600 * hours)

    log = XidLog(
        events=(event(79, 30), event(63, 1), event(45, 1), event(31, 2), event(31, 1)), source="dmesg"
    )
    found = node.of_xids(log, SPEC, now)
    assert [check.verdict for check in found] == ["warn", "warn"]
    assert "Xid 63" in found[0].value
    assert "Xid 31 on 0000:41:00 2 times" in found[1].value
    stricter = PreflightSpec(xid={"63": "drain_node", "31": "ignore"})
    assert [check.verdict for check in node.of_xids(log, stricter, now)] == ["bad"]
    unreadable = node.of_xids(XidLog(problem="cannot be read"), SPEC, now)
    assert (unreadable[0].verdict, unreadable[0].value) == ("ok", "cannot be read")


def test_processes_that_are_not_of_this_run_are_leftovers() -> None:
    found = parse(
        CommandResult(kind="answered", text=xml({"processes": process(1) + process(4_000_000)})), "host"
    )
    (old,) = node.leftovers(found.gpus, {7}, {found.gpus[0].uuid or ""})
    assert old.verdict == "warn"
    assert "GPU 0: process 1 of " in old.value  # 4000000 is of another process namespace: it may be ours
    assert node.leftovers(found.gpus, {1}, set()) == []
    monitor = GpuProcess(pid=1, name="monitor", user="root", memory_bytes=8 << 20)
    assert node.leftovers((replace(found.gpus[0], processes=(monitor,)),), set(), set()) == []


def test_processes_on_gpus_that_the_run_does_not_use_are_no_leftovers() -> None:
    found = parse(CommandResult(kind="answered", text=xml({"processes": process(1)})), "host")
    own = replace(found.gpus[0], uuid="GPU-own", processes=())
    other = replace(found.gpus[0], uuid="GPU-other")
    assert node.leftovers((own, other), {7}, {"GPU-own"}) == []
    assert len(node.leftovers((own, other), {7}, {"GPU-other"})) == 1
    assert len(node.leftovers((own, other), {7}, {""})) == 1  # it is not known which are used


def test_room_is_for_the_checkpoints_that_are_kept(tmp_path: Path) -> None:
    gigabyte = 10**9
    free = disk.room(tmp_path, 1, 3, 0)[0].figure
    assert free is not None
    one = int(free * gigabyte / 3)
    assert disk.room(tmp_path, one // 10, 3, 0)[0].verdict == "ok"
    assert disk.room(tmp_path, one, 3, 0)[0].verdict == "warn"  # 4 at most, one before the oldest goes
    assert disk.room(tmp_path, one, 3, 3)[0].verdict == "ok"
    assert disk.room(tmp_path, 4 * one, 3, 3)[0].verdict == "bad"
    assert disk.checkpoint_bytes(10, 5) == 10 * 16 + 5 * 8


def test_writing_leaves_nothing_behind(tmp_path: Path) -> None:
    (found,) = disk.check_write(tmp_path, 1 << 16, 5.0)
    assert found.verdict == "ok"
    assert list(tmp_path.iterdir()) == []
    (none,) = disk.check_write(tmp_path / "none", 1 << 16, 5.0)
    assert "cannot be written (No such file" in none.value


def test_a_check_that_hangs_or_fails_is_one_bad_line_and_the_next_one_runs() -> None:
    bounded = Bounded(0.2)

    def sleep() -> list[Check]:
        time.sleep(30)
        return []

    (hung,) = bounded.run("sleeper", sleep)

    def fail() -> list[Check]:
        raise RuntimeError("the device\n says no")

    (failed,) = bounded.run("failer", fail, 60.0)
    (fine,) = bounded.run("fine", lambda: [Check(name="fine", verdict="ok", value="1")], 60.0)
    assert (hung.name, hung.verdict, hung.limit) == ("sleeper", "bad", "0.2 s")
    assert (failed.verdict, failed.value) == ("bad", "RuntimeError: the device says no")
    assert fine.verdict == "ok"
    assert bounded.hung == ["sleeper"]
