"""GPU monitor of a host: log Xids and driver-reported errors during the run.

One thread per host, in the monitor process of its first rank, so that a hanging driver delays nothing. A
change is an event with the step: `xid` for a line of the kernel log, `ecc` for an error that nvidia-smi
reports (memory errors, rows waiting for remapping, a GPU that is lost or too hot), and a console line. A
source that cannot be read is logged once, as an event `watch`. `trainer.health.xid` has the policy:
drain_node ends the rank with BAD_NODE, restart_job with RESTART.
"""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer.cli import exit_codes
from trainer.health import clock_steps, gpu, xid, xid_log
from trainer.health.gpu import Concern
from trainer.health.xid_log import XidEvent
from trainer.run_folder import jsonl, process_table
from vidcurate.errors import StorageError

CODES: dict[xid.Action, int] = {"drain_node": exit_codes.BAD_NODE, "restart_job": exit_codes.RESTART}
SAME_SECONDS = 1.5
MOST_EVENTS = 20
"""of one reading, the hardest first: a GPU that fails can write thousands of lines"""


def start(
    run: Path,
    every_seconds: float,
    *,
    step: Callable[[], int],
    end: Callable[[int, str], bool] | None,
) -> threading.Thread:
    """Look every `every_seconds`, from now on; `end` (exit code, why) is called where the policy says so."""
    thread = threading.Thread(target=_watch, args=(run, every_seconds, step, end), daemon=True)
    thread.start()
    return thread


def _watch(
    run: Path, every_seconds: float, step: Callable[[], int], end: Callable[[int, str], bool] | None
) -> None:
    facts, log = gpu.read_gpus(), xid_log.read_xids()
    if not facts.has_tool and not facts.problem:
        return  # a host without GPUs
    if unread := [text for text in (facts.problem, log.problem) if text]:
        of_reading = {"host": process_table.host_name(), "cannot_read": unread}
        _record(run, "watch", step(), of_reading, "; ".join(unread))
    # What was so before this run began is the preflight's affair.
    known = {_key(concern) for concern in gpu.concerns(facts)}
    seen: dict[tuple[int, str, str], float] = {}
    _new(log.events, seen)
    while True:
        time.sleep(every_seconds)
        facts, log = gpu.read_gpus(), xid_log.read_xids()
        actions: list[xid.Action] = []
        reasons = []
        news = sorted(_new(log.events, seen), key=lambda event: -xid.ACTIONS.index(event.policy.action))
        for event in news[:MOST_EVENTS]:
            said = f"Xid {event.number} on {event.bus_id}: {event.policy.meaning}; {event.policy.advice}"
            _record(run, "xid", step(), _xid_facts(event), said)
            actions.append(event.policy.action)
            reasons.append(f"Xid {event.number} on {event.bus_id}")
        for concern in gpu.concerns(facts):
            if _key(concern) not in known:
                where = "" if concern.gpu is None else f"GPU {concern.gpu}: "
                said = f"{where}{concern.text}; {concern.advice}"
                _record(run, "ecc", step(), _concern_facts(concern), said)
                # One slow answer of the driver is no reason to end a run that makes progress.
                actions.append(concern.action if concern.gpu is not None else "warn")
                reasons.append(concern.text)
                known.add(_key(concern))
        code = CODES.get(xid.worst(actions))
        if code is not None and end is not None:
            end(code, f"{'; '.join(reasons)} on {process_table.host_name()}")
            return


def _new(events: Sequence[XidEvent], seen: dict[tuple[int, str, str], float]) -> list[XidEvent]:
    """Return the events that are later than the last of their kind in `seen`, and put them there."""
    # The log counts from the machine's start, which a reading of the clock places anew each time.
    began = clock_steps.boot_time()
    found = []
    for event in events:
        key = (event.number, event.bus_id, event.text)
        at = 0.0 if event.time is None else event.time - began
        if key not in seen or at > seen[key] + SAME_SECONDS:
            found.append(event)
        seen[key] = max(at, seen.get(key, at))
    return found


def _key(concern: Concern) -> tuple[int | None, str]:
    return concern.gpu, concern.text


def _record(run: Path, name: str, step: int, facts: dict[str, Any], to_text: str) -> None:
    """Log the event and, unless its policy is ignore, print it on the console."""
    unwritten = ""
    try:
        jsonl.record_event(run, name, step, **facts)
    except StorageError as error:
        unwritten = f" ({error})"
    if unwritten or facts.get("action") != "ignore":
        with suppress(OSError, ValueError):  # a console that is gone ends no watch
            print(f"step {step}: {facts['host']}: {to_text}{unwritten}", file=sys.stderr, flush=True)


def _xid_facts(event: XidEvent) -> dict[str, Any]:
    policy = event.policy
    return {
        "host": process_table.host_name(),
        "number": event.number,
        "bus_id": event.bus_id,
        "text": event.text,
        "logged": event.time,
        "meaning": policy.meaning,
        "action": policy.action,
        "advice": policy.advice,
    }


def _concern_facts(concern: Concern) -> dict[str, Any]:
    return {
        "host": process_table.host_name(),
        "gpu": concern.gpu,
        "text": concern.text,
        "action": concern.action,
        "advice": concern.advice,
    }
