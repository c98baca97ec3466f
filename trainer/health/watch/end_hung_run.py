"""End a hung run: monitor processes dump stacks, name the odd rank, end all ranks.

Collectives hang then, so the monitor processes meet over the run folder. The first to see the hang, or a lost
rank, writes RUN/stacks/now-START.json, as the only one of its start: a monitor process may outlive its killed
rank, and what it claims does not concern the ranks of a restart. Every monitor process dumps its own rank and
the workers below it, twice. The first compares the stacks, names the odd rank, writes summary.json and the
event `stall`. Only then each monitor process ends its own rank. Every wait here has a time-out, so a monitor
process that is gone itself delays nobody. Stdlib only.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trainer.health.watch import flight_recorder, heartbeat, stack_groups, stacks
from trainer.health.watch.stacks import Stack
from trainer.run_folder import jsonl, process_records, process_table
from trainer.run_folder.process_records import ProcessRecord
from vidcurate.errors import StateError
from vidcurate.storage import atomic_file, regular_file

DUMP_SECONDS = 10.0
ANSWER_SECONDS = 20.0
"""how long the first waits for the dumps of the others, after its own"""
LOOK_SECONDS = 0.1
_FOLDER = re.compile(r"(?:stall|lost)-step-\d+(?:-\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one watcher saw, for all. `kind`: stall (no step within its limit) or lost (a rank is gone).

    `rank` and `host` are the watcher's own for a stall and the lost one's else; `seconds` without progress.
    `folder` is below RUN/stacks. `writer` is who wrote it: host and process id.
    """

    kind: str
    step: int
    phase: str
    rank: int
    host: str
    seconds: float
    folder: str
    writer: str
    time: float


def _write(path: Path, values: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_file.put(path, json.dumps(values, ensure_ascii=False, indent=1) + "\n", is_flushed=False)


def _now_path(run: Path, start_id: str) -> Path:
    return run / stacks.STACKS / f"now-{start_id}.json"


def claimed(run: Path, start_id: str) -> Claim | None:
    """Return the hang in progress of one start of the run, None without one and for a forged one."""
    try:
        found = Claim(**json.loads(regular_file.read_bytes(_now_path(run, start_id))))
        return found if _FOLDER.fullmatch(found.folder) else None  # stacks are written into it
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def claim(
    run: Path, start_id: str, *, kind: str, step: int, phase: str, rank: int, host: str, seconds: float
) -> Claim | None:
    """Say what was seen, as the first of a start; None when another was.

    Raises OSError when the disk refuses.
    """
    folder = _new_folder(run / stacks.STACKS, f"{kind}-step-{step:08d}")
    mine = Claim(
        kind=kind,
        step=step,
        phase=phase,
        rank=rank,
        host=host,
        seconds=round(seconds, 1),
        folder=folder,
        writer=f"{process_table.host_name()}-{os.getpid()}",
        time=round(time.time(), 3),
    )
    path = _now_path(run, start_id)
    own = path.with_name(f".{path.name}-{mine.writer}")
    path.parent.mkdir(parents=True, exist_ok=True)
    own.write_text(json.dumps(asdict(mine)) + "\n", encoding="utf-8")
    try:
        os.link(own, path)  # the one operation that fails for all but one, on a shared disk too
    except FileExistsError:
        return None
    finally:
        own.unlink(missing_ok=True)
    return mine


def _new_folder(under: Path, name: str) -> str:
    number, wanted = 1, name
    while (under / wanted).exists():
        number += 1
        wanted = f"{name}-{number}"
    return wanted


def forget(run: Path) -> None:
    """Remove the records of hangs: at a new start, and when the ranks continue."""
    with suppress(OSError):
        for path in (run / stacks.STACKS).glob("now-*.json"):
            path.unlink(missing_ok=True)


# ── taking part ─────────────────────────────────────────────────────────────────────────────────────────────


def _look(record: ProcessRecord, seen: heartbeat.RankState | None) -> list[Stack]:
    found = stacks.dump(record.pid, DUMP_SECONDS, record)
    if not process_records.is_alive(record) and found:
        found = (replace(found[0], state="ended", how="none", threads=(), note="the process has ended"),)
    if seen is None:
        return list(found)
    return [stack if stack.is_worker else replace(stack, step=seen.step, phase=seen.phase) for stack in found]


def _dump_path(folder: Path, rank: int, number: int) -> Path:
    return folder / f"rank-{rank:05d}-{number}.json"


def _dump_twice(
    folder: Path, record: ProcessRecord, see: Callable[[], heartbeat.RankState | None], apart_seconds: float
) -> None:
    for number in (1, 2):
        found = _look(record, see())
        _write(_dump_path(folder, record.rank, number), [stack.to_json() for stack in found])
        if number == 1:
            time.sleep(apart_seconds)


def _read(folder: Path, rank: int, number: int) -> list[Stack]:
    with suppress(OSError, ValueError, RecursionError, StateError):
        text = regular_file.read_text(_dump_path(folder, rank, number))
        return [stacks.stack_from_json(values) for values in json.loads(text)]
    return []


def take_part(
    run: Path,
    now: Claim,
    record: ProcessRecord,
    see: Callable[[], heartbeat.RankState],
    *,
    is_first: bool,
    policy: str,
    apart_seconds: float,
) -> list[ProcessRecord]:
    """Dump this rank; as the first, wait for the others, compare and tell; else wait until that is done.

    `apart_seconds` lie between the two dumps: what stands at the same line in both, hangs. Returns the ranks
    of this host without a monitor process (it had not started, or is gone), for the first to end: a rank
    that holds the GIL cannot start one. Raises OSError when the disk refuses, StateError for damaged records.
    """
    folder = run / stacks.STACKS / now.folder
    # A rank that is gone does not come back, and those left may leave at once: there is no second look.
    apart = apart_seconds if now.kind == "stall" else 0.0
    ranks = process_records.of_start(run, record.start_id)
    _dump_twice(folder, record, see, apart)
    summary, until = folder / "summary.json", time.monotonic() + ANSWER_SECONDS
    if not is_first:
        until += DUMP_SECONDS + ANSWER_SECONDS
        while not summary.exists() and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
        return []
    # A dead rank here may have no monitor left: to wait for its dump would outlast the ranks that are left.
    while time.monotonic() < until and any(
        left.host != record.host or process_records.is_alive(left) for left in _missing(folder, ranks)
    ):
        time.sleep(LOOK_SECONDS)
    beats = heartbeat.read_heartbeat(run)
    unmonitored = [
        left
        for left in _missing(folder, ranks)
        # A record is a file that may be forged: what is not a rank of this run gets no signal.
        if left.host == record.host
        and not (process_records.is_alive(left) and process_records.why_not_of_run(left, run))
    ]
    for left in unmonitored:
        _dump_twice(folder, left, lambda rank=left.rank: _from_beat(beats.get(rank)), 0.0)  # type: ignore[misc]
    if not any(one.rank == record.rank for one in ranks):
        ranks = [*ranks, record]  # its record is removed only when it ends in order
    _tell(run, now, folder, ranks, policy)
    return [left for left in unmonitored if left.rank != record.rank]


def _from_beat(beat: dict[str, Any] | None) -> heartbeat.RankState | None:
    if beat is None:
        return None
    return heartbeat.RankState(
        step=beat["step"], phase=beat["phase"], since=0.0, phase_since=0.0, limit_seconds=0.0
    )


def _missing(folder: Path, ranks: Sequence[ProcessRecord]) -> list[ProcessRecord]:
    return [one for one in ranks if not _dump_path(folder, one.rank, 2).exists()]


def _tell(run: Path, now: Claim, folder: Path, ranks: Sequence[ProcessRecord], policy: str) -> None:
    first = [stack for one in ranks for stack in _read(folder, one.rank, 1)]
    second = [stack for one in ranks for stack in _read(folder, one.rank, 2) or [_silent(one)]]
    second = with_collectives(second, heartbeat.read_heartbeat(run))
    groups = stack_groups.group(second)
    still = stack_groups.unmoved(first, second)
    odd = stack_groups.odd_one(groups)
    text = stack_groups.to_text(groups, still)
    silent = [one.rank for one in ranks if not _dump_path(folder, one.rank, 2).exists()]
    facts = event_of(now, odd, stack_groups.waits(second))
    facts |= {"policy": policy, "stacks": f"{stacks.STACKS}/{now.folder}"}
    if silent:
        facts["silent_ranks"] = silent
    (folder / "stacks.txt").write_text(f"{text}\n\n{_every_thread(second)}\n", encoding="utf-8")
    with suppress(OSError):
        print(f"{now.kind} at step {now.step} ({now.phase}):\n{text}", file=sys.stderr, flush=True)
    jsonl.record_event(run, "stall", now.step, **facts)
    _write(
        folder / "summary.json",
        facts
        | {
            "ranks": len(ranks),
            "did_not_move": len(still),
            "groups": [
                {"who": [stack.name for stack in members], "at": [str(frame) for frame in members[0].frames]}
                for members in groups
            ],
        },
    )


def _silent(record: ProcessRecord) -> Stack:
    """Return what is known of a rank that nobody could dump: its watcher and its host are silent."""
    return Stack(
        host=record.host, pid=record.pid, rank=record.rank, how="none", note="nothing came from its host"
    )


def with_collectives(seen: Sequence[Stack], beats: Mapping[int, Mapping[str, Any]]) -> list[Stack]:
    """Return the stacks of ranks with what their heartbeats say of their collectives."""
    return [
        stack
        if stack.is_worker or stack.rank is None or stack.rank not in beats
        else replace(stack, collectives=flight_recorder.from_json(beats[stack.rank].get("collectives", ())))
        for stack in seen
    ]


def event_of(
    now: Claim, odd: stack_groups.Odd | None, waits: Sequence[flight_recorder.Wait] = ()
) -> dict[str, Any]:
    """Return the facts of the event `stall`: what was seen, the collective, the odd one, if any."""
    facts: dict[str, Any] = {"kind": now.kind, "seconds": now.seconds, "phase": now.phase}
    if waits:
        facts |= {"collective": str(waits[0]), "waiting_ranks": list(waits[0].waiting)}
    if odd is None:
        return facts | {"rank": None, "host": None, "why": "nothing tells one rank from the others"}
    at = odd.stack.at
    return facts | {
        "rank": odd.stack.rank,
        "host": odd.stack.host,
        "process": odd.stack.pid,
        "is_worker": odd.stack.is_worker,
        "why": odd.why,
        "phase": odd.stack.phase or now.phase,
        "function": at.function if at else None,
        "at": f"{stacks.short(at.file)}:{at.line}" if at else None,
    }


def _every_thread(seen: Sequence[Stack]) -> str:
    """Return all threads of all processes in full, for a file."""
    lines = []
    for stack in seen:
        lines.append(
            f"{stack.name}, process {stack.pid}, {stack.state}, by {stack.how} {stack.note}".rstrip()
        )
        for thread in stack.threads:
            lines.append(f"  {thread.name}{' holds the lock' if thread.holds_gil else ''}")
            lines += [f"    {frame.function} ({frame.file}:{frame.line})" for frame in thread.frames]
    return "\n".join(lines)
