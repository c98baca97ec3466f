"""Rows of a result: one figure each, beside a named peer of the same run, kept as JSON.

`benchmarks/results/<script>[_<hardware>].json` is a list of rows {metric, value, unit, peer, peer_value,
ratio, goal, hardware, command, date}; `make bench` prints all of them as one table.
"""

import datetime
import json
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

RESULTS = Path(__file__).parent / "results"
T = TypeVar("T")
Row = dict[str, Any]


def cpu() -> str:
    """Return the processor's name and the number of cores in use."""
    name = platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    except OSError:
        name = platform.processor() or name
    return f"{os.cpu_count()} x {name}"


def best_seconds(function: Callable[[], T], repeats: int = 3) -> tuple[float, T]:
    """Return the least wall time of `repeats` calls, in seconds, and the last result."""
    best = float("inf")
    for _ in range(repeats):
        start = perf_counter()
        result = function()
        best = min(best, perf_counter() - start)
    return best, result


def peak_memory_bytes() -> int:
    """Return the largest resident size of this process; Linux.

    Not ru_maxrss: a child process begins with its parent's.
    """
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) * 1024


def row(
    metric: str,
    value: float,
    unit: str,
    *,
    peer: str,
    peer_value: float,
    goal: str = "",
    higher_is_better: bool = True,
    hardware: str = "",
) -> Row:
    """Return one result; `ratio` says how many times better than the peer the value is."""
    ratio = value / peer_value if higher_is_better else peer_value / value
    return {
        "metric": metric,
        "value": float(f"{value:.5g}"),
        "unit": unit,
        "peer": peer,
        "peer_value": float(f"{peer_value:.5g}"),
        "ratio": float(f"{ratio:.4g}"),
        "goal": goal,
        "hardware": hardware or cpu(),
        "command": "python " + " ".join([os.path.relpath(sys.argv[0]), *sys.argv[1:]]),
        "date": datetime.date.today().isoformat(),
    }


def keep(script: str, rows: list[Row]) -> None:
    """Write the rows to benchmarks/results/<script>.json and print them."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{script}.json").write_text(json.dumps(rows, indent=1) + "\n")
    print(as_table(rows))


def as_table(rows: list[Row]) -> str:
    """Return the rows as text: metric, value, peer, ratio, goal."""
    lines = [("metric", "value", "peer", "peer's value", "ratio", "goal", "hardware")]
    for entry in rows:
        lines.append(
            (
                str(entry["metric"]),
                f"{entry['value']:,.4g} {entry['unit']}",
                str(entry["peer"]),
                f"{entry['peer_value']:,.4g}",
                f"{entry['ratio']:.3g} x",
                str(entry["goal"]),
                str(entry["hardware"]),
            )
        )
    widths = [max(len(line[number]) for line in lines) for number in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
