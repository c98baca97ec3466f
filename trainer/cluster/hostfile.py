"""Hostfile: one host per line, the first is the master; `slots` are its ranks.

# nodes.txt
node1 slots=8
node2 slots=8
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.health.timed_command import run_command
from vidcurate.errors import InputError

_MOST_DIGITS = 6  # of a number of ranks
SSH_SECONDS = 10.0  # ssh's timeout to print its configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A line of the hostfile. `slots` None: one rank a GPU, or one."""

    name: str
    slots: int | None = None


def read_hosts(path: Path) -> tuple[Host, ...]:
    """Return the hosts of a hostfile, in its order. Raises InputError, naming the line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"hostfile {path}: cannot be read ({why}); write a host a line.") from error
    hosts: list[Host] = []
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        slots = words[1].removeprefix("slots=") if len(words) == 2 and words[1].startswith("slots=") else ""
        is_count = len(words) == 1 or (slots.isdecimal() and len(slots) <= _MOST_DIGITS)
        if words[0].startswith("-") or not words[0].isprintable() or len(words) > 2 or not is_count:
            raise InputError(f"{path}:{number}: {line.strip()[:80]!r}; write a host, or a host and slots=8.")
        if words[0] in (host.name for host in hosts):
            raise InputError(f"{path}:{number}: {words[0]} is there twice. Write its ranks as slots=…")
        if slots and not int(slots):
            raise InputError(f"{path}:{number}: {words[0]} has no slots; leave the line out.")
        hosts.append(Host(name=words[0], slots=int(slots) if slots else None))
    if not hosts:
        raise InputError(f"hostfile {path}: names no host; write a host a line.")
    return tuple(hosts)


def address(host: Host, ssh: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the address of this host for others: MASTER_ADDR, or its name by ssh's configuration."""
    if "MASTER_ADDR" in environment:
        return environment["MASTER_ADDR"]
    reported = run_command([*ssh, "-G", "--", host.name], SSH_SECONDS)
    found = [line.partition(" ")[2] for line in reported.text.splitlines() if line.startswith("hostname ")]
    return found[0] if found else host.name.rpartition("@")[2]
