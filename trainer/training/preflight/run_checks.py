"""Preflight checks of all ranks: node, device, disk, clocks, links, verdict.

Every wait has a timeout, so a hanging rank becomes a line in the table. Rank 0 makes the verdict for all
ranks.
"""

import os
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trainer.cli import exit_codes
from trainer.cluster.launch.bad_hosts import SAYS_BAD
from trainer.data.stages import StageData
from trainer.distributed.mesh import World
from trainer.health import clock_offset, gpu, xid_log
from trainer.health.checks import clocks, device, disk, links, node, verdict
from trainer.health.checks.check import Bounded, Check, Verdict, worst
from trainer.health.checks.device import EFFORTS, Effort
from trainer.health.checks.exchange import Board
from trainer.health.checks.verdict import Node, Report
from trainer.recipe.recipe import TrainRecipe
from trainer.report.preview.dry_run import memory_of, needed_bytes, parameters, unknown_encoders
from trainer.run_folder import layout as run_folder_layout
from vidcurate.errors import counted

HELLO_SECONDS = 30.0
MARGIN_SECONDS = 15.0
LOCAL_CHECKS = 4  # whose timeouts may pass one after another before a rank counts as silent


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """Result of a preflight. `nodes` and `links` are JSON values; `error` names the first bad node."""

    form: str
    seconds: float
    verdict: Verdict
    nodes: list[dict[str, Any]]
    links: list[dict[str, Any]]
    lines: list[str]
    problems: list[str]
    error: str
    has_hung: bool = False
    prints: bool = False  # whether this rank prints and writes the result

    def to_json(self) -> dict[str, Any]:
        names = ("form", "seconds", "verdict", "nodes", "links", "problems")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    """Inputs of one rank's checks."""

    recipe: TrainRecipe
    world: World
    board: Board
    bounded: Bounded
    effort: Effort
    is_full: bool


def _silent_seconds(rank: _Rank) -> float:
    return LOCAL_CHECKS * rank.bounded.seconds + MARGIN_SECONDS


def _agreed(rank: _Rank, name: str, value: Any, seconds: float) -> Any:
    """Publish `value` on rank 0, receive it on the others; None if rank 0 does not answer."""
    if rank.world.is_first:
        rank.board.put(name, value)
        return value
    return rank.board.take(name, seconds)


def _hosts(rank: _Rank) -> tuple[list[str], list[int], list[str]]:
    """Return every rank's host, process id and GPU UUID, on all ranks.

    A rank that does not answer counts as a separate node.
    """
    own = [socket.gethostname(), os.getpid(), device.uuid(rank.world.device)]
    rank.board.put(f"hello/{rank.world.rank}", own)
    answers = rank.board.take_all("hello", HELLO_SECONDS) if rank.world.is_first else {}
    everyone = [each or [f"(rank {number})", 0, ""] for number, each in answers.items()]
    found = _agreed(rank, "hosts", everyone, HELLO_SECONDS + MARGIN_SECONDS) or [own] * rank.world.size
    hosts, pids, gpus = (list(column) for column in zip(*found, strict=True))
    return hosts, pids, gpus


# ── what one rank finds alone ───────────────────────────────────────────────────────────────────────────────


def _of_device(rank: _Rank, stages: tuple[StageData, ...], state: tuple[int, int]) -> list[Check]:
    recipe, place, effort = rank.recipe, rank.world.device, rank.effort
    dtype = recipe.dtype

    def memory() -> list[Check]:
        needs = memory_of(stages, recipe, state)
        forecast = max(map(needed_bytes, needs), default=None)
        return device.memory(place, forecast, max(map(unknown_encoders, needs), key=len, default=""))

    found = rank.bounded.run("free memory", memory)
    if not rank.bounded.hung:  # a device that hangs once hangs again
        found += rank.bounded.run("product", lambda: device.product(recipe.model, place, dtype, effort))
    if not rank.bounded.hung:
        found += rank.bounded.run("copy", lambda: device.copy(place, effort))
    return found


def _of_disk(rank: _Rank, state: tuple[int, int]) -> list[Check]:
    recipe, run, bounded = rank.recipe, rank.recipe.output, rank.bounded

    def room() -> list[Check]:
        disk.make_folder(run)
        kept = max(stage.keep_last for stage in recipe.stages)
        there = len(run_folder_layout.checkpoints(run))
        return disk.room(run, disk.checkpoint_bytes(*state), kept, there)

    found = bounded.run("disk room", room)
    if found[0].name == "disk room" and found[0].figure is None:
        return found  # the folder cannot be created, or the check hangs
    limit = bounded.seconds / 2
    return found + bounded.run("disk write", lambda: disk.check_write(run, rank.effort.write_bytes, limit))


def _of_node(rank: _Rank, num_nodes: int, ours: set[int], used: set[str]) -> list[Check]:
    """Return the checks of GPU driver, kernel log and time daemon.

    `ours` are this run's processes on the node, `used` their GPUs.
    """
    spec, bounded = rank.recipe.preflight, rank.bounded

    def driver() -> list[Check]:
        facts = gpu.read_gpus(bounded.seconds * 0.8)
        return node.of_driver(facts) + node.leftovers(facts.gpus, ours, used)

    found = bounded.run("hardware", driver)
    found += bounded.run("Xid", lambda: node.of_xids(xid_log.read_xids(), spec))
    if num_nodes > 1 or rank.is_full:
        found += bounded.run("time daemon", lambda: node.of_clock(clock_offset.discipline(), num_nodes))
    return found


# ── what they find together ─────────────────────────────────────────────────────────────────────────────────


def _together(rank: _Rank, hosts: list[str], leaders: list[int]) -> dict[str, Any]:
    """Check clocks and links, all ranks together; return {checks, met}, `met` being the measured pairs."""
    world, bounded = rank.world, rank.bounded
    found: list[Check] = []
    if len(leaders) > 1:
        found += clocks.offset(rank.board, world.rank, leaders)
    found += bounded.run("all-reduce", lambda: links.all_reduce(world, rank.effort))
    is_odd = any(check.name == "all-reduce" and check.verdict != "ok" for check in found)
    rank.board.put(f"sum/{world.rank}", {"odd": is_odd, "hung": bool(bounded.hung)})
    answers = rank.board.take_all("sum", bounded.seconds + MARGIN_SECONDS) if world.is_first else {}
    whole = all(each is not None and not each["hung"] for each in answers.values())
    wanted = whole and (rank.is_full or any(each["odd"] for each in answers.values()))
    met: list[dict[str, Any]] = []
    if _agreed(rank, "pairs", wanted, bounded.seconds + 2 * MARGIN_SECONDS) and not bounded.hung:
        rounds = links.schedule(hosts)
        bounded.run("links", lambda: links.play(world, rounds, rank.effort, met))
    return {"checks": [check.to_json() for check in found], "met": met, "hung": "links" in bounded.hung}


# ── the act ─────────────────────────────────────────────────────────────────────────────────────────────────


def run_checks(
    recipe: TrainRecipe,
    world: World,
    stages: tuple[StageData, ...],
    *,
    full: bool,
    data_checks: Sequence[Check] = (),
    same: dict[str, str] | None = None,
) -> Preflight:
    """Check this rank, its node and its links; return the verdict on all nodes. All ranks call it together.

    `data_checks` are this rank's findings about the data; `same` holds more values that must be equal on all
    ranks. A finding is returned, not raised.
    """
    began = time.monotonic()
    spec = recipe.preflight
    rank = _Rank(
        recipe=recipe,
        world=world,
        board=Board(world),
        bounded=Bounded(spec.check_seconds),
        effort=EFFORTS[world.device.type, full],
        is_full=full,
    )
    hosts, pids, gpus = _hosts(rank)
    leaders = [hosts.index(host) for host in dict.fromkeys(hosts)]
    state = parameters(recipe.model)
    checks = [*data_checks, *_of_device(rank, stages, state)]
    if world.rank in leaders:
        here = [number for number, host in enumerate(hosts) if host == hosts[world.rank]]
        ours, used = {pids[number] for number in here}, {gpus[number] for number in here}
        checks += [*_of_disk(rank, state), *_of_node(rank, len(leaders), ours, used)]
    device_name = "cpu" if world.device.type == "cpu" else torch.cuda.get_device_name(world.device)
    report = Report(
        rank=world.rank,
        host=hosts[world.rank],
        device=device_name,
        checks=tuple(checks),
        versions=node.versions() | (same or {}),
    )
    rank.board.put(f"found/{world.rank}", {"report": report.to_json(), "hung": bool(rank.bounded.hung)})

    answers = rank.board.take_all("found", _silent_seconds(rank)) if world.is_first else {}
    is_whole = all(each is not None and not each["hung"] for each in answers.values())
    is_checked = _agreed(rank, "all checked", is_whole, _silent_seconds(rank) + MARGIN_SECONDS)
    mine: dict[str, Any] = {"checks": [], "met": [], "hung": False}
    if is_checked and world.size > 1:
        mine = _together(rank, hosts, leaders)
    rank.board.put(f"together/{world.rank}", mine)

    if world.is_first:
        found = _check(rank, hosts, answers, began)
        rank.board.put("verdict", found)
    else:
        found = rank.board.take("verdict", _silent_seconds(rank) + 2 * MARGIN_SECONDS)
    if found is None:
        return _no_verdict(hosts[0], rank, time.monotonic() - began)
    return Preflight(**found, has_hung=bool(rank.bounded.hung), prints=world.is_first)


def _check(rank: _Rank, hosts: list[str], answers: dict[int, Any], began: float) -> dict[str, Any]:
    """Return the verdict on all nodes as a Preflight's JSON values, on rank 0."""
    spec, board = rank.recipe.preflight, rank.board
    reports = [verdict.report_from_json(each["report"]) for each in answers.values() if each is not None]
    more: dict[int, list[Check]] = {
        number: [verdict.silent(number, _silent_seconds(rank))]
        for number, each in answers.items()
        if each is None
    }
    limit = rank.bounded.seconds * 2 + MARGIN_SECONDS
    together = {number: each for number, each in board.take_all("together", limit).items() if each}
    for number, each in together.items():
        more.setdefault(number, []).extend(Check(**check) for check in each["checks"])
    found_links = links.links([each["met"] for each in together.values()], hosts)
    is_cpu = rank.world.device.type == "cpu"
    for number, bad in links.checks(found_links, hosts, is_cpu=is_cpu).items():
        more.setdefault(number, []).extend(bad)
    stuck = [number for number, each in together.items() if each["hung"]]
    if stuck and not any(check.verdict == "bad" for checks in more.values() for check in checks):
        for number in stuck:
            more.setdefault(number, []).append(_stuck(rank.bounded.seconds))
    more = clocks.against_most(more)
    for number, odd in verdict.different(reports).items():
        more.setdefault(number, []).extend(odd)
    nodes = verdict.nodes(hosts, verdict.compared(reports, spec), more)
    seconds = time.monotonic() - began
    return _to_json(nodes, found_links, "full" if rank.is_full else "short", seconds)


def _stuck(seconds: float) -> Check:
    advice = "no pair of ranks shows where: check this node's network"
    value = "communication with another rank hangs"
    return Check(name="link", verdict="bad", value=value, limit=f"{seconds:g} s", advice=advice)


def _to_json(nodes: list[Node], found: Sequence[links.Link], form: str, seconds: float) -> dict[str, Any]:
    overall = worst([each.verdict for each in nodes])
    bad, odd = verdict.problems(nodes, "bad"), verdict.problems(nodes, "warn")
    ranks = sum(len(each.ranks) for each in nodes)
    head = f"preflight: {overall}, {counted(len(nodes), 'node')}, {counted(ranks, 'rank')}, {seconds:.1f} s"
    lines = [] if overall == "ok" and form == "short" else [head, *verdict.table(nodes)]
    lines += [f"  bad: {line}" for line in bad] + [f"  warn: {line}" for line in odd]
    names = [each.name for each in nodes if each.verdict == "bad"]
    error = ""
    if bad:
        rest = f" {len(bad) - 1} more findings." if len(bad) > 1 else ""
        error = f"{SAYS_BAD} {', '.join(names)}: {bad[0]}.{rest} Restart without it, or see preflight.json."
    return {
        "form": form,
        "seconds": round(seconds, 3),
        "verdict": overall,
        "nodes": [each.to_json() for each in nodes],
        "links": [
            {"ranks": list(link.pair), "gb_per_second": link.rate, "between_nodes": link.is_between_nodes}
            for link in found
        ],
        "lines": lines,
        "problems": bad + odd,
        "error": error,
    }


def _no_verdict(host: str, rank: _Rank, seconds: float) -> Preflight:
    """Return the verdict of a rank that got none from rank 0 in time."""
    check = verdict.silent(0, seconds)
    nodes = [Node(name=host, verdict="bad", devices=(), checks=((0, check),))]
    found = _to_json(nodes, [], "full" if rank.is_full else "short", seconds)
    return Preflight(
        **found,
        has_hung=bool(rank.bounded.hung),
        prints=rank.board.is_first_to("no verdict", rank.world.rank),
    )


def leave_at_once(error: str) -> None:
    """Exit this process with BAD_NODE: a check still hangs, so a normal exit would never end."""
    print(f"error: {error}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    time.sleep(0.3)  # a thread copies rank 0's console from its log
    os._exit(exit_codes.BAD_NODE)
