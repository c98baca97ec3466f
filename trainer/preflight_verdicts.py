"""Which hosts to leave out: by RUN/preflight.json, by the guard's verdict, or by who ended with code 77.

The guard's verdict counts without the code: a rank that takes long to leave is killed, and its 77 is lost.
"""

import json
from pathlib import Path
from typing import Any

from trainer import exit_codes, metrics
from trainer.attempt import Ended

PREFLIGHT = "preflight.json"
CLOCK_SECONDS = 5.0  # by which the clock of the file server may be behind


def bad_hosts(run: Path, ended: Ended) -> dict[str, str]:
    """Return {host of the hostfile: why} of the hosts to leave out; empty where nothing says which.

    A preflight of this attempt that calls a node bad (by its own name, or by its ranks where several hosts
    have that name) counts first, then the guard's event of a step that a rank computed wrongly. Else the
    hosts of the ranks that ended with 77, where not all did. Where none did, the guard's event alone counts.
    """
    if exit_codes.BAD_NODE not in ended.codes.values():
        return _drained(run, ended)
    bad: dict[str, str] = {}
    for node in _nodes(run / PREFLIGHT, ended.began):
        if node.get("verdict") != "bad":
            continue
        named = [host for host, name in ended.names.items() if node.get("host") in (host, name)]
        if len(named) > 1 or not named:
            ranks = node.get("ranks", [])
            named = [host for host, theirs in ended.ranks_of.items() if set(theirs) & set(ranks)]
        why = node.get("reason") or "it failed its preflight"
        bad |= {host: str(why) for host in named}
    bad = bad or _drained(run, ended)
    if bad:
        return bad
    by_code = {ended.host_of(rank) for rank, code in ended.codes.items() if code == exit_codes.BAD_NODE}
    if by_code == set(ended.ranks_of) and len(by_code) > 1:
        return {}
    return {host: f"a rank of it ended with {exit_codes.BAD_NODE}" for host in by_code}


def _drained(run: Path, ended: Ended) -> dict[str, str]:
    """Return the hosts of the ranks that the guard has called bad in this attempt."""
    for event in reversed(metrics.read(run / metrics.EVENTS)):
        if event.get("time", 0.0) < ended.began:  # ranks of an earlier attempt had other numbers
            break
        if event["event"] == "guard" and event.get("action") == "drain":
            ranks = {rank for theirs in ended.ranks_of.values() for rank in theirs}
            said = sorted(ranks & set(event["verdict"]["ranks"]))
            return {ended.host_of(rank): f"rank {rank}: {event['verdict']['reason']}" for rank in said}
    return {}


def _nodes(path: Path, began: float) -> list[dict[str, Any]]:
    """Return the nodes of a preflight of this attempt; none where it made none."""
    try:
        if path.stat().st_mtime < began - CLOCK_SECONDS:
            return []
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return list(kept.get("nodes", []))
