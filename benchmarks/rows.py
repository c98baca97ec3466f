"""Rows of a result: one figure each, beside a named peer of the same run, kept as JSON.

`benchmarks/results/<script>[_<hardware>].json` is a list of rows {metric, value, unit, peer, peer_value,
ratio, goal, hardware, command, date, commit}; `make bench` prints all of them as one table and marks those
whose code has changed since.
"""

import datetime
import json
import os
import platform
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

from figure_code import changes, git

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


def card(hardware: str) -> str:
    """Return a device name's model as file names have it: "NVIDIA H100 80GB HBM3" is h100."""
    models = [word.partition("-")[0] for word in hardware.split() if any(letter.isdigit() for letter in word)]
    return (models or hardware.split())[0].lower()


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


@lru_cache(maxsize=1)
def commit() -> str:
    """Return the commit of the code that runs, with a + where files differ from it; "" without git."""
    found = git("rev-parse", "--short=10", "HEAD").stdout.strip()
    return found + ("+" if found and git("status", "--porcelain", "-uno").stdout else "")


def age(measured: str, command: str) -> str:
    """Return "" where the row's code is that of its commit, "code changed" where not, "?" where unknown."""
    found = changes(measured, command)
    return "?" if found is None else "code changed" if found else ""


def _named(word: str) -> str:
    """Return a word of a command; a place of this machine as FOLDER or FILE."""
    return word if not os.path.isabs(word) else "FOLDER" if os.path.isdir(word) else "FILE"


def command() -> str:
    """Return the command that runs, without the places of this machine."""
    return " ".join(["python", os.path.relpath(sys.argv[0]), *map(_named, sys.argv[1:])])


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
    better, worse = (value, peer_value) if higher_is_better else (peer_value, value)
    ratio = better / worse if worse else float("inf")
    return {
        "metric": metric,
        "value": float(f"{value:.5g}"),
        "unit": unit,
        "peer": peer,
        "peer_value": float(f"{peer_value:.5g}"),
        "ratio": float(f"{ratio:.4g}"),
        "goal": goal,
        "hardware": hardware or cpu(),
        "command": command(),
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
    }


def write(script: str, rows: list[Row]) -> None:
    """Write the rows to benchmarks/results/<script>.json."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{script}.json").write_text(json.dumps(rows, indent=1) + "\n")


def keep(script: str, rows: list[Row]) -> None:
    """Write the rows to benchmarks/results/<script>.json and print them."""
    write(script, rows)
    print(as_table(rows))


def as_table(rows: list[Row]) -> str:
    """Return the rows as text: metric, value, peer, ratio, goal, when and from which code."""
    lines = [
        ("metric", "value", "peer", "peer's value", "ratio", "goal", "hardware", "date", "commit", "since")
    ]
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
                str(entry["date"]),
                str(entry.get("commit", "")),
                age(entry.get("commit", ""), entry["command"]),
            )
        )
    widths = [max(len(line[number]) for line in lines) for number in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
