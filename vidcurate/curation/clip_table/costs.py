"""Stage costs of a run: RUN/costs.jsonl, one line per command.

Times differ from run to run, so they are kept out of the tables, and no stage reads this file. A stage that
was stopped, or done in parts, has one line per call; `read_costs` adds up the lines up to the call that
finished the stage. A process killed by kill -9 writes no line; work done on other machines is not measured.
"""

import json
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from vidcurate.errors import StorageError, TableError
from vidcurate.storage import atomic_file, regular_file

COSTS = "costs.jsonl"
# The file that each command writes last.
MADE = {
    "ingest": "ingest.parquet",
    "probe": "probe.parquet",
    "score": "score.parquet",
    "score-frames": "frames.parquet",
    "score-models": "models.parquet",
    "dedup": "dedup.parquet",
    "filter": "filter.parquet",
    "split": "split.parquet",
    "build-shards": "shards/manifest.json",
}


def _cpu_seconds() -> float:
    """Return the CPU time, s, of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _state(path: Path) -> tuple[int, int] | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_mtime_ns


@contextmanager
def measured(run: Path, command: str) -> Iterator[None]:
    """Add a line to RUN/costs.jsonl with the wall time and CPU time of the block, s.

    Commands that are not in MADE, or that were up to date, get no line. Raises StorageError.
    """
    made = None if command not in MADE else run / MADE[command]
    before = None if made is None else _state(made)
    clock, cpu = time.monotonic(), _cpu_seconds()
    is_whole = False
    try:
        yield
        is_whole = True
    finally:
        after = None if made is None else _state(made)
        is_done = after is not None and after != before
        was_done = is_whole and not is_done and after is not None
        if made is not None and not was_done and run.is_dir():
            line = {
                "command": command,
                "seconds": round(time.monotonic() - clock, 3),
                "cpu_seconds": round(_cpu_seconds() - cpu, 3),
                "is_done": is_done,
            }
            with nullcontext() if is_whole else suppress(StorageError):  # the error of the block is the cause
                atomic_file.append(run / COSTS, f"{json.dumps(line)}\n".encode())


def read_costs(run: Path) -> list[dict[str, Any]]:
    """Return the cost of each finished command, in pipeline order.

    Each has command, calls, rows (of the run), seconds, cpu_seconds, cpu_hours_per_million_clips. Raises
    TableError for a damaged file.
    """
    try:
        lines = regular_file.read_bytes(run / COSTS).splitlines()
    except FileNotFoundError:
        return []
    open_calls: dict[str, list[tuple[float, float]]] = {}
    done: dict[str, list[tuple[float, float]]] = {}
    for number, line in enumerate(lines, start=1):
        try:
            reported = json.loads(line.decode("utf-8"))
            command, call = (
                str(reported["command"]),
                (float(reported["seconds"]), float(reported["cpu_seconds"])),
            )
            is_done = bool(reported["is_done"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise TableError(
                f"{run / COSTS}: line {number} cannot be read ({error}). Remove the line."
            ) from error
        open_calls.setdefault(command, []).append(call)
        if is_done:
            done[command] = open_calls.pop(command)
    table = run / MADE["ingest"]
    rows = pq.read_metadata(table).num_rows if table.exists() else 0
    found = []
    for command, made in MADE.items():
        if command in done and (run / made).exists():
            cpu = sum(call[1] for call in done[command])
            found.append(
                {
                    "command": command,
                    "calls": len(done[command]),
                    "rows": rows,
                    "seconds": round(sum(call[0] for call in done[command]), 3),
                    "cpu_seconds": round(cpu, 3),
                    "cpu_hours_per_million_clips": cpu / rows * 1e6 / 3600 if rows else None,
                }
            )
    return found
