"""Verdict per node: compare rates with the median and versions with the majority."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainer.health.checks.check import Check, Verdict, worst
from trainer.health.checks.spec import SLOW_SHARE, PreflightSpec

COMPARED = ("product rate", "copy rate")
ON_CPU = 0.5
"""share below the median at which a rank on a CPU is marked: its ranks share cores and memory"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one rank found. `host` is its node."""

    rank: int
    host: str
    device: str
    checks: tuple[Check, ...]
    versions: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        checks = [check.to_json() for check in self.checks]
        return {
            "rank": self.rank,
            "host": self.host,
            "device": self.device,
            "checks": checks,
            "versions": dict(self.versions),
        }


def report_from_json(given: Mapping[str, Any]) -> Report:
    checks = tuple(Check(**check) for check in given["checks"])
    return Report(
        rank=given["rank"],
        host=given["host"],
        device=given["device"],
        checks=checks,
        versions=given["versions"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node's verdict, with the checks of its ranks as (rank, check)."""

    name: str
    verdict: Verdict
    devices: tuple[str, ...]
    checks: tuple[tuple[int, Check], ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({rank for rank, _ in self.checks}))

    def to_json(self) -> dict[str, Any]:
        return {
            "host": self.name,
            "verdict": self.verdict,
            "reason": next(
                (f"rank {rank}: {check.to_text()}" for rank, check in self.checks if check.verdict == "bad"),
                "",
            ),
            "ranks": list(self.ranks),
            "devices": list(self.devices),
            "checks": [{"rank": rank, **check.to_json()} for rank, check in self.checks],
        }


def _is_cpu(report: Report) -> bool:
    return report.device == "cpu"


def compared(reports: Sequence[Report], spec: PreflightSpec) -> list[Report]:
    """Return the reports with the rates that lag behind the median of their kind of device marked.

    The higher of two middle ones is the median, so that of two GPUs the slower is held against the faster.
    """
    medians: dict[tuple[str, str], float] = {}
    for device in {report.device for report in reports}:
        for name in COMPARED:
            rates = [
                check.figure
                for report in reports
                if report.device == device
                for check in report.checks
                if check.name == name and check.figure is not None
            ]
            if len(rates) > 1:
                medians[device, name] = statistics.median_high(rates)
    return [
        replace(report, checks=tuple(_against(check, report, medians, spec) for check in report.checks))
        for report in reports
    ]


def _against(
    check: Check, report: Report, medians: Mapping[tuple[str, str], float], spec: PreflightSpec
) -> Check:
    median = medians.get((report.device, check.name))
    if median is None or check.figure is None or check.verdict != "ok":
        return check
    behind = 1 - check.figure / median
    share = ON_CPU if _is_cpu(report) else SLOW_SHARE
    if behind <= share:
        return check
    return replace(
        check,
        verdict="bad" if behind > spec.max_slowdown and not _is_cpu(report) else "warn",
        value=f"{check.value}, {100 * behind:.0f} % below the median {median:,.4g} {check.unit}",
        limit=f"{100 * share:g} % below",
        advice="look at its temperature, power limit and clocks, and at what else runs there",
    )


def different(reports: Sequence[Report]) -> dict[int, list[Check]]:
    """Return rank → what of its versions is another than most ranks', or rank 0's where none has most."""
    found: dict[int, list[Check]] = {}
    names = sorted({name for report in reports for name in report.versions})
    for name in names:
        values = {report.rank: report.versions.get(name, "none") for report in reports}
        (most, count), *_ = Counter(values.values()).most_common()
        first = values[min(values)]
        usual = first if list(values.values()).count(first) == count else most
        for rank, value in values.items():
            if value != usual:
                found.setdefault(rank, []).append(
                    Check(
                        name=name,
                        verdict="bad",
                        value=value,
                        limit=f"{usual}, as on most ranks",
                        advice="install the same on every node",
                    )
                )
    return found


def nodes(hosts: Sequence[str], reports: Sequence[Report], more: Mapping[int, Sequence[Check]]) -> list[Node]:
    """Return the nodes in the order of their first ranks, each with its ranks' checks and what is `more`."""
    by_rank = {report.rank: report for report in reports}
    found = []
    for host in dict.fromkeys(hosts):
        ranks = [rank for rank, name in enumerate(hosts) if name == host]
        checks = [
            (rank, check)
            for rank in ranks
            for check in [*(by_rank[rank].checks if rank in by_rank else ()), *more.get(rank, ())]
        ]
        devices = tuple(sorted({by_rank[rank].device for rank in ranks if rank in by_rank}))
        verdict = worst([check.verdict for _, check in checks])
        found.append(Node(name=host, verdict=verdict, devices=devices, checks=tuple(checks)))
    return found


def silent(rank: int, seconds: float) -> Check:
    """Return the check of a rank that has put nothing on the board."""
    value = f"rank {rank} says nothing after {seconds:.0f} s"
    advice = "its process or its device hangs: look at its log and at the node's kernel log"
    return Check(name="answer", verdict="bad", value=value, limit=f"{seconds:.0f} s", advice=advice)


def problems(found: Sequence[Node], verdict: Verdict) -> list[str]:
    """Return a line for each check of `verdict`: node, rank, check, value, limit, what to do."""
    return [
        f"{node.name} rank {rank}: {check.to_text()}"
        for node in found
        for rank, check in node.checks
        if check.verdict == verdict
    ]


# ── as people read it ───────────────────────────────────────────────────────────────────────────────────────

COLUMNS = (
    ("product rate", "product"),
    ("copy rate", "copy"),
    ("free memory", "memory free"),
    ("all-reduce", "all-reduce"),
    ("disk room", "disk free"),
    ("disk write", "disk write"),
    ("clock", "clock"),
)


def _range(node: Node, name: str) -> str:
    checks = [check for _, check in node.checks if check.name == name and check.figure is not None]
    if not checks:
        bad = [check for _, check in node.checks if check.name == name and check.verdict == "bad"]
        return "bad" if bad else "-"
    figures = sorted(check.figure for check in checks if check.figure is not None)
    low, high = f"{figures[0]:,.3g}", f"{figures[-1]:,.3g}"
    return f"{low if low == high else f'{low} to {high}'} {checks[0].unit}"


def table(found: Sequence[Node]) -> list[str]:
    """Return the nodes as an aligned table, a line a node, its verdict last."""
    shown = [(name, head) for name, head in COLUMNS if any(_range(node, name) != "-" for node in found)]
    rows = [["node", "ranks", "device", *(head for _, head in shown), "verdict"]]
    for node in found:
        first, last = node.ranks[0], node.ranks[-1]
        ranks = str(first) if first == last else f"{first}-{last}"
        device = ", ".join(node.devices) or "?"
        rows.append([node.name, ranks, device, *(_range(node, name) for name, _ in shown), node.verdict])
    widths = [max(len(row[number]) for row in rows) for number in range(len(rows[0]))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
