"""Rows of a result: one figure each, beside a named peer of the same run, kept as JSON.

`benchmarks/results/<script>[_<hardware>].json` is a list of rows {metric, value, unit, peer, peer_value,
ratio, goal, hardware, command, date, commit}; `make bench` prints all of them as one table and marks those
whose code has changed since.
"""

import ast
import datetime
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

RESULTS = Path(__file__).parent / "results"
ROOT = RESULTS.parents[1]
PACKAGES = ("vidcurate", "trainer")
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


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)


@lru_cache(maxsize=1)
def commit() -> str:
    """Return the commit of the code that runs, with a + where files differ from it; "" without git."""
    found = _git("rev-parse", "--short=10", "HEAD").stdout.strip()
    return found + ("+" if found and _git("status", "--porcelain", "-uno").stdout else "")


def code_of(command: str) -> list[str]:
    """Return the paths that decide a row's figure: its script with the files beside it that this imports, and
    the folders of what these import.

    A script that imports nothing of the packages starts them as programs: then both count whole.
    """
    name = next((word for word in command.split() if word.endswith(".py")), "")
    script = ROOT / name
    if not script.is_file():
        return list(PACKAGES)
    files, of_each = [script], []
    for file in files:  # grows: a file's imports beside it follow
        modules = [
            node.module
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom) and node.module
        ]
        beside = [script.with_name(f"{module}.py") for module in modules if module != "rows"]
        files += [path for path in dict.fromkeys(beside) if path.is_file() and path not in files]
        of_each.append({"/".join(m.split(".")[:-1]) or m for m in modules if m.split(".")[0] in PACKAGES})
    folders = sorted(set().union(*of_each)) if of_each[0] else PACKAGES
    return [*(str(file.relative_to(ROOT)) for file in files), *folders]


@cache
def age(measured: str, command: str) -> str:
    """Return "" where the row's code is that of its commit, "code changed" where not, "?" where unknown."""
    if not measured:
        return "?"
    code = _git("diff", "--quiet", measured.rstrip("+"), "--", *code_of(command)).returncode
    return {0: "", 1: "code changed"}.get(code, "?")


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
        "commit": commit(),
    }


def keep(script: str, rows: list[Row]) -> None:
    """Write the rows to benchmarks/results/<script>.json and print them."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{script}.json").write_text(json.dumps(rows, indent=1) + "\n")
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
