"""Which hosts to leave out: by RUN/preflight.json, by the guard's verdict, or by ranks that ended with 77.

A preflight's error is raised on every rank, the well ones too: who says it is not who is meant. Any other 77
a rank says of its own host.
The guard's verdict counts without the code: a rank that takes long to leave is killed, and its 77 is lost.
"""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.cli import exit_codes
from trainer.cluster.launch.attempt import Ended
from trainer.run_folder import jsonl, metrics

PREFLIGHT = "preflight.json"
SAYS_BAD = "bad node"  # and the nodes' names, and a colon: so a preflight's error begins
_SAYS_BAD = re.compile(rf"^error: ({SAYS_BAD} ([^:]+):.*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was written before an attempt: no clock of another host is asked what is new."""

    preflight: tuple[int, int] | None  # inode, ns of its last change
    num_events: int


def seen(run: Path) -> Seen:
    """Return what of a run's folder is there."""
    try:
        with (run / PREFLIGHT).open("rb") as file:
            facts = os.fstat(file.fileno())
    except OSError:
        preflight = None
    else:
        preflight = (facts.st_ino, facts.st_mtime_ns)
    return Seen(preflight=preflight, num_events=len(metrics.read_metrics(run / jsonl.EVENTS)))


def bad_hosts(run: Path, ended: Ended, before: Seen) -> dict[str, str]:
    """Return {host of the hostfile: why} of the hosts to leave out; empty where nothing says which.

    `before`: what was there when the attempt began. A preflight of this attempt that calls a node bad (by its
    own name, or by the ranks that are bad where several hosts have that name) counts first, then the guard's
    event of a step that a rank computed wrongly. Else what the ranks that ended with 77 said: the hosts that
    a preflight's error names, or their own, where those are not all. Where none did, the guard's event alone
    counts.
    """
    if exit_codes.BAD_NODE not in ended.codes.values():
        return _drained(run, ended, before)
    bad: dict[str, str] = {}
    for node in _nodes(run, before):
        if node.get("verdict") != "bad":
            continue
        named = [host for host, name in ended.names.items() if node.get("host") in (host, name)]
        if len(named) > 1 or not named:
            ranks = {check["rank"] for check in node.get("checks", ()) if check["verdict"] == "bad"}
            ranks = ranks or set(node.get("ranks", ()))
            named = [host for host, theirs in ended.ranks_of.items() if ranks.intersection(theirs)]
        why = node.get("reason") or "it failed its preflight"
        bad |= {host: str(why) for host in named}
    bad = bad or _drained(run, ended, before)
    if bad:
        return bad
    of_others, of_own = _said(ended)
    if not of_others and set(of_own) == set(ended.ranks_of) and len(of_own) > 1:
        return {}
    return of_own | of_others


def _said(ended: Ended) -> tuple[dict[str, str], dict[str, str]]:
    """Return {host: why} twice, of the ranks that ended with 77: whom a preflight's error names; their own.

    A name that several hosts have, or none, says nothing.
    """
    named: dict[str, str] = {}
    own: dict[str, str] = {}
    for rank, code in sorted(ended.codes.items()):
        if code != exit_codes.BAD_NODE:
            continue
        lines = ended.last_words.get(rank, [])
        found = next((match for line in reversed(lines) if (match := _SAYS_BAD.match(line))), None)
        if found is None:
            own[ended.host_of(rank)] = f"a rank of it ended with {exit_codes.BAD_NODE}"
            continue
        for name in found[2].split(", "):
            hosts = [host for host, its_name in ended.names.items() if name in (host, its_name)]
            if len(hosts) == 1:
                named[hosts[0]] = found[1]
    return named, own


def _drained(run: Path, ended: Ended, before: Seen) -> dict[str, str]:
    """Return the hosts of the ranks that the guard has called bad in this attempt."""
    # Ranks of an earlier attempt had other numbers.
    for event in reversed(metrics.read_metrics(run / jsonl.EVENTS)[before.num_events :]):
        if event["event"] == "guard" and event.get("action") == "drain":
            ranks = {rank for theirs in ended.ranks_of.values() for rank in theirs}
            said = sorted(ranks & set(event["verdict"]["ranks"]))
            return {ended.host_of(rank): f"rank {rank}: {event['verdict']['reason']}" for rank in said}
    return {}


def _nodes(run: Path, before: Seen) -> list[dict[str, Any]]:
    """Return the nodes of a preflight of this attempt; none where it made none."""
    if seen(run).preflight == before.preflight:
        return []
    try:
        kept = json.loads((run / PREFLIGHT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return list(kept.get("nodes", []))
