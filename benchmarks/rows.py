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


@cache
def _modules(file: Path) -> list[str]:
    """Return the modules that a file may import, those within its functions and by name too."""
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{one.name}" for one in node.names)]
        elif isinstance(node, ast.Import):
            found += [one.name for one in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args:
            named = node.args[0]
            found += [named.value] if isinstance(named, ast.Constant) and isinstance(named.value, str) else []
    return found


def _files(module: str, beside: Path) -> list[Path]:
    """Return the files that an import of `module` runs: a script beside, or a module with its packages."""
    names = module.split(".")
    if names[0] not in PACKAGES:
        return [beside / f"{module}.py"] if module != "rows" else []
    parents = [ROOT.joinpath(*names[:depth]) for depth in range(1, len(names) + 1)]
    return [file for parent in parents for file in (parent / "__init__.py", parent.with_suffix(".py"))]


@cache
def code_of(command: str) -> list[str]:
    """Return the files that decide a row's figure: its script and all that this imports, directly or not.

    Data files beside an imported module count too. A script that imports nothing of the packages starts them
    as programs: then both count whole.
    """
    script = ROOT / next((word for word in command.split() if word.endswith(".py")), "")
    if not script.is_file():
        return list(PACKAGES)
    files = [script]
    for file in files:  # grows: the imports of a file follow
        found = [one for name in _modules(file) for one in _files(name, script.parent)]
        files += [path for path in dict.fromkeys(found) if path not in files and path.is_file()]
    names = [str(file.relative_to(ROOT)) for file in files]
    folders = {Path(name).parent for name in names if name.startswith(PACKAGES)}
    if not folders:
        return [*names, *PACKAGES]
    data = [path for folder in sorted(folders) for path in sorted((ROOT / folder).iterdir())]
    is_data = [path for path in data if path.is_file() and path.suffix not in (".py", ".pyc")]
    return [*names, *(str(path.relative_to(ROOT)) for path in is_data)]


def _statements(code: str) -> set[str]:
    """Return a module's outermost statements as text, each imported name as one of its own.

    Comments, docstrings, layout and what is raised are left out: no figure depends on them.
    """
    tree = ast.parse(code)
    found = []
    for node in ast.walk(tree):
        is_documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if is_documented and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
        if isinstance(node, ast.Raise):
            node.exc = node.cause = None
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found += [ast.dump(type(node)(**vars(node) | {"names": [name]})) for name in node.names]
        else:
            found.append(ast.dump(node))
    return set(found)


def _is_changed(measured: str, name: str) -> bool:
    """Return whether a statement of a file at the commit `measured` is gone or another now.

    A statement that was added is no change: what calls it has changed itself.
    """
    now = ROOT / name
    if now.suffix != ".py" or not now.is_file():
        return True
    before = _git("show", f"{measured}:{name}")
    if before.returncode:
        return False  # a file added since: what imports it has changed itself
    return not _statements(before.stdout) <= _statements(now.read_text())


@cache
def changes(measured: str, command: str) -> list[str] | None:
    """Return the files of a row's code that do something else than at its commit; None where unknown."""
    commit_id = measured.rstrip("+")
    if not measured:
        return None
    changed = _git("diff", "--name-only", commit_id, "--", *code_of(command))
    if changed.returncode:
        return None
    return [name for name in changed.stdout.split("\n")[:-1] if _is_changed(commit_id, name)]


def age(measured: str, command: str) -> str:
    """Return "" where the row's code is that of its commit, "code changed" where not, "?" where unknown."""
    found = changes(measured, command)
    return "?" if found is None else "code changed" if found else ""


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
