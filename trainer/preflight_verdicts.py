"""Which hosts to leave out after exit code 77: by RUN/preflight.json, or by who ended with it."""

import json
from pathlib import Path
from typing import Any

from trainer import exit_codes
from trainer.attempt import Ended

PREFLIGHT = "preflight.json"
CLOCK_SECONDS = 5.0  # by which the clock of the file server may be behind


def bad_hosts(run: Path, ended: Ended) -> dict[str, str]:
    """Return {host of the hostfile: why} of the hosts to leave out; empty where nothing says which.

    A verdict of this attempt that calls a node bad (by its own name, or by its ranks where several hosts have
    that name) counts first. Else the hosts of the ranks that ended with 77, where not all did.
    """
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
    if bad:
        return bad
    by_code = {ended.host_of(rank) for rank, code in ended.codes.items() if code == exit_codes.BAD_NODE}
    if by_code == set(ended.ranks_of) and len(by_code) > 1:
        return {}
    return {host: f"a rank of it ended with {exit_codes.BAD_NODE}" for host in by_code}


def _nodes(path: Path, began: float) -> list[dict[str, Any]]:
    """Return the nodes of a preflight of this attempt; none where it made none."""
    try:
        if path.stat().st_mtime < began - CLOCK_SECONDS:
            return []
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return list(kept.get("nodes", []))
