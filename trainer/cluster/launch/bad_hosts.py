"""Bad hosts: which hosts to exclude, by preflight, guard, or exit code 77.

Every rank raises a preflight's error, healthy ranks too, so the reporting rank is not the bad one. Any other
77 is about the rank's own host. The guard's verdict counts without the code: a rank that exits slowly is
killed, and its 77 is lost.
"""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.cli import exit_codes
from trainer.cluster.launch.start_on_hosts import Ended
from trainer.run_folder import jsonl, metrics
from vidcurate.storage import regular_file

PREFLIGHT = "preflight.json"
SAYS_BAD = "bad node"  # a preflight's error starts so, followed by the nodes' names and a colon
_SAYS_BAD = re.compile(rf"^error: ({SAYS_BAD} ([^:]+):.*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """State of the files before an attempt: new files are found without comparing hosts' clocks."""

    preflight: tuple[int, int] | None  # inode, ns of its last change
    num_events: int


def seen(run: Path) -> Seen:
    """Return the current state of a run's folder."""
    try:
        with regular_file.opened(run / PREFLIGHT) as file:
            facts = os.fstat(file.fileno())
    except OSError:
        preflight = None
    else:
        preflight = (facts.st_ino, facts.st_mtime_ns)
    return Seen(preflight=preflight, num_events=len(metrics.read_undamaged(run / jsonl.EVENTS)))


def bad_hosts(run: Path, ended: Ended, before: Seen) -> dict[str, str]:
    """Return {host of the hostfile: reason} of the hosts to exclude; empty if none is named.

    `before`: the state when the attempt started. A preflight of this attempt that calls a node bad (by its
    name, or by its bad ranks if several hosts share the name) counts first, then the guard's event about a
    rank that computed wrong results. Otherwise the last lines of the ranks that exited with 77 count: the
    hosts named in a preflight's error, or their own hosts, unless those are all hosts. Without such ranks,
    the guard's event alone counts.
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
    """Return {host: reason} twice, from ranks that exited with 77: hosts named by a preflight; their own.

    A name of several hosts, or of none, is ignored.
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
    """Return the hosts of the ranks that the guard called bad in this attempt."""
    # Ranks of an earlier attempt had other numbers.
    for event in reversed(metrics.read_undamaged(run / jsonl.EVENTS)[before.num_events :]):
        if event["event"] == "guard" and event.get("action") == "drain":
            ranks = {rank for theirs in ended.ranks_of.values() for rank in theirs}
            said = sorted(ranks & set(event["verdict"]["ranks"]))
            return {ended.host_of(rank): f"rank {rank}: {event['verdict']['reason']}" for rank in said}
    return {}


def _nodes(run: Path, before: Seen) -> list[dict[str, Any]]:
    """Return the nodes in a preflight of this attempt; none without a preflight."""
    if seen(run).preflight == before.preflight:
        return []
    try:
        kept = json.loads(regular_file.read_bytes(run / PREFLIGHT))
    except (OSError, ValueError, RecursionError):
        return []
    nodes = kept.get("nodes") if isinstance(kept, dict) else None
    return [one for one in nodes if isinstance(one, dict)] if isinstance(nodes, list) else []
