"""Link check: all-reduce over all ranks, then pairs of ranks, to find a slow link.

The pairs play a tournament, each rank against each other once, half of them at a time: n − 1 rounds for n
ranks. The ranks of a node play among themselves, all nodes at once; then the nodes play, with their first
ranks. So a run on 24 nodes of 8 GPUs has 7 + 23 rounds and not 191.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.distributed.mesh import World
from trainer.health.checks.check import Check, measured
from trainer.health.checks.device import GIGA, Effort, wait_for_device

SLOW_LINK = 0.5
"""share of the median of its kind under which a link is slow"""

Pair = tuple[int, int]


def tournament(players: Sequence[int]) -> list[list[Pair]]:
    """Return rounds of pairs in which each player meets each other once, none twice in a round.

    The circle method: one stays, the others turn. With an odd number one rests in each round.
    """
    turning: list[int | None] = [*players]
    if len(turning) % 2:
        turning.append(None)
    half, rounds = len(turning) // 2, []
    for _ in range(len(turning) - 1):
        pairs = zip(turning[:half], reversed(turning[half:]), strict=True)
        rounds.append([(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None])
        turning = [turning[0], turning[-1], *turning[1:-1]]
    return rounds


def schedule(hosts: Sequence[str]) -> list[list[Pair]]:
    """Return the rounds for ranks on these hosts (one a rank): within the nodes, then between them."""
    nodes: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        nodes.setdefault(host, []).append(rank)
    inside: list[list[Pair]] = []
    for ranks in nodes.values():
        for number, pairs in enumerate(tournament(ranks) if len(ranks) > 1 else []):
            if number == len(inside):
                inside.append([])
            inside[number] += pairs
    leaders = [ranks[0] for ranks in nodes.values()]
    return inside + (tournament(leaders) if len(leaders) > 1 else [])


def all_reduce(world: World, effort: Effort) -> list[Check]:
    """Check the sum of all ranks and the rate on the bus: 2 (n − 1) / n of the bytes, as NCCL's tests count.

    All ranks call it together. Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md.
    """
    count = effort.all_reduce_bytes // 4
    values = torch.full((count,), float(world.rank + 1), device=world.device)
    dist.all_reduce(values)
    wrong = int((values != world.size * (world.size + 1) / 2).sum())
    if wrong:
        value = f"{wrong:,} of {count:,} sums over the ranks are wrong"
        return [Check(name="all-reduce", verdict="bad", value=value, limit="0 wrong")]
    values.zero_()
    wait_for_device(world.device)
    began = time.perf_counter()
    for _ in range(effort.repeats):
        dist.all_reduce(values)
    wait_for_device(world.device)
    seconds = (time.perf_counter() - began) / effort.repeats
    rate = 2 * (world.size - 1) / world.size * 4 * count / seconds / GIGA
    return [measured("all-reduce", rate, "GB/s")]


def _exchange(partner: int, out: Tensor, into: Tensor) -> None:
    operations = [dist.P2POp(dist.isend, out, partner), dist.P2POp(dist.irecv, into, partner)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def play(
    world: World, rounds: Sequence[Sequence[Pair]], effort: Effort, met: list[dict[str, Any]]
) -> list[Check]:
    """Add what this rank meets to `met`: {pair, rate: GB/s in each direction, wrong: elements}.

    The rate is None while the exchange lasts, and stays so where it hangs. All ranks call it together.
    """
    count = effort.exchange_bytes // 4
    out = torch.full((count,), float(world.rank + 1), device=world.device)
    into = torch.empty_like(out)
    for pairs in rounds:
        pair = next((pair for pair in pairs if world.rank in pair), None)
        if pair is None:
            continue
        partner = pair[0] + pair[1] - world.rank
        met.append({"pair": pair, "rate": None, "wrong": 0})
        into.fill_(0)
        _exchange(partner, out, into)  # meets: what the partner still had to do is not the link's
        wait_for_device(world.device)
        wrong = int((into != partner + 1).sum())
        best = float("inf")
        for _ in range(effort.repeats):
            began = time.perf_counter()
            _exchange(partner, out, into)
            wait_for_device(world.device)
            best = min(best, time.perf_counter() - began)
        met[-1] = {"pair": pair, "rate": 4 * count / best / GIGA, "wrong": wrong}
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What both ends say of a link; the rate is the slower end's, in GB/s each way."""

    pair: Pair
    rate: float
    wrong: int
    is_between_nodes: bool


def links(met: Sequence[Sequence[dict[str, Any]]], hosts: Sequence[str]) -> list[Link]:
    """Return the links from what the ranks met; one that hangs has the rate 0.

    It hangs where both ends are still in it; a rank whose partner is held up by another waits without fault.
    """
    found: dict[Pair, tuple[float, int]] = {}
    stuck: dict[Pair, int] = {}
    for theirs in met:
        for each in theirs:
            pair = (each["pair"][0], each["pair"][1])
            if each["rate"] is None:
                stuck[pair] = stuck.get(pair, 0) + 1
                continue
            rate, wrong = found.get(pair, (float("inf"), 0))
            found[pair] = min(rate, each["rate"]), max(wrong, each["wrong"])
    found |= {pair: (0.0, 0) for pair, ends in stuck.items() if ends == len(pair)}
    return [
        Link(pair=pair, rate=rate, wrong=wrong, is_between_nodes=hosts[pair[0]] != hosts[pair[1]])
        for pair, (rate, wrong) in sorted(found.items())
    ]


def slow(found: Sequence[Link]) -> list[Link]:
    """Return the links under half the median of their kind (within or between nodes)."""
    slower = []
    for kind in (False, True):
        same = [link for link in found if link.is_between_nodes == kind]
        if not same:
            continue
        least = SLOW_LINK * statistics.median_high(link.rate for link in same)
        slower += [link for link in same if not link.rate or link.rate < least or link.wrong]
    return slower


def blamed(slower: Sequence[Link]) -> dict[int, list[Link]]:
    """Return which ranks are at fault for the slow links: the one that all have in common, if there is one.

    A rank with more slow links than any other is named for all of its own, then the next. Where nothing tells
    the ends of a link apart, both are named.
    """
    left, named = list(slower), dict[int, list[Link]]()
    while left:
        counts: dict[int, int] = {}
        for link in left:
            for rank in link.pair:
                counts[rank] = counts.get(rank, 0) + 1
        most = max(counts.values())
        worst = [rank for rank, count in counts.items() if count == most]
        for rank in worst:
            named.setdefault(rank, []).extend(link for link in left if rank in link.pair)
        left = [link for link in left if not set(link.pair) & set(worst)]
    return named


def checks(found: Sequence[Link], hosts: Sequence[str], *, is_cpu: bool) -> dict[int, list[Check]]:
    """Return rank → what is wrong with its links.

    On a CPU, where ranks share cores, only wrong data and a hang make a node bad.
    """
    wanted: dict[int, list[Check]] = {}
    for rank, slower in blamed(slow(found)).items():
        worst = min(slower, key=lambda link: link.rate)
        other = worst.pair[0] + worst.pair[1] - rank
        same = [link.rate for link in found if link.is_between_nodes == worst.is_between_nodes]
        wrong = sum(link.wrong for link in slower)
        words = f"{worst.rate:,.3g} GB/s" if worst.rate else "nothing arrives"
        words = f"{wrong:,} elements arrived wrong" if wrong else words
        least = f"half of the median {statistics.median_high(same):,.3g}"
        wanted[rank] = [
            Check(
                name="link",
                verdict="bad" if wrong or not worst.rate or not is_cpu else "warn",
                value=f"{words} to rank {other} on {hosts[other]}, {len(slower)} slow links in all",
                limit="0 wrong" if wrong else f"{least} GB/s",
                advice="look at this rank's cable, port and switch",
                figure=worst.rate,
                unit="GB/s",
            )
        ]
    return wanted
