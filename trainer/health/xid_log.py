"""Xid log: read the driver's Xid events from the kernel log, without root.

Reads the first of dmesg, the journal and /dev/kmsg that this user may read; where none may be read, the
result says so in one line and is no error.
"""

import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainer.health import xid
from trainer.health.clock_steps import boot_time
from trainer.health.timed_command import run_command

LOG_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class XidEvent:
    """One Xid of the kernel log. `time`: seconds since the epoch, None where the line has no time."""

    number: int
    bus_id: str
    text: str
    time: float | None

    @property
    def policy(self) -> xid.Policy:
        return xid.policy(self.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class XidLog:
    """The Xids since boot, oldest first. `source` None: no log was readable, and `problem` lists them."""

    events: tuple[XidEvent, ...] = ()
    source: str | None = None
    problem: str = ""


XID_LINE = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)(?:, *(.*))?$")


def xid_of(line: str, at: float | None = None) -> XidEvent | None:
    """Return the Xid of a line of the kernel log, None where it has none."""
    match = XID_LINE.search(line.rstrip())
    if match is None:
        return None
    return XidEvent(number=int(match[2]), bus_id=match[1], text=match[3] or "", time=at)


def _from_dmesg(text: str) -> tuple[XidEvent, ...]:
    boot, found = boot_time(), []
    for line in text.splitlines():
        stamp = re.match(r"(?:<\d+>)?\[ *(\d+\.\d+)\]", line)
        event = xid_of(line, boot + float(stamp[1]) if stamp else None)
        found += [event] if event else []
    return tuple(found)


def _from_journal(text: str) -> tuple[XidEvent, ...]:
    found = []
    for line in text.splitlines():
        stamp = re.match(r"(\d+\.\d+) ", line)
        event = xid_of(line, float(stamp[1]) if stamp else None)
        found += [event] if event else []
    return tuple(found)


def _from_kmsg(path: Path, seconds: float) -> tuple[XidEvent, ...]:
    """Read the kernel's ring buffer, one record per read. Raises OSError without permission."""
    boot, found, until = boot_time(), [], time.monotonic() + seconds
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while time.monotonic() < until:
            try:
                record = os.read(handle, 1 << 16)
            except BlockingIOError:
                break
            except BrokenPipeError:  # the record was overwritten while it was read
                continue
            if not record:
                break
            head, _, line = record.decode(errors="replace").partition(";")
            parts = head.split(",")
            at = boot + int(parts[2]) / 1e6 if len(parts) > 2 and parts[2].isdigit() else None
            event = xid_of(line.splitlines()[0] if line else "", at)
            found += [event] if event else []
    finally:
        os.close(handle)
    return tuple(found)


def read_xids(kmsg: Path = Path("/dev/kmsg")) -> XidLog:
    """Return the Xids since boot, from the first readable of dmesg, the journal and /dev/kmsg."""
    problems = []
    said = run_command(["dmesg"], LOG_SECONDS)
    if said.is_good:
        return XidLog(events=_from_dmesg(said.text), source="dmesg")
    problems.append(said.problem)
    said = run_command(["journalctl", "-k", "-b", "-o", "short-unix", "--no-pager", "-q"], LOG_SECONDS)
    if said.is_good and said.text.strip():  # without the right to read it, the journal looks empty
        return XidLog(events=_from_journal(said.text), source="journalctl -k")
    problems.append(said.problem or "journalctl: shows nothing of the kernel to this user")
    with suppress(OSError):
        return XidLog(events=_from_kmsg(kmsg, LOG_SECONDS), source=str(kmsg))
    problems.append(f"{kmsg}: may not be read")
    advice = "kernel.dmesg_restrict=0, or the group adm, lets it be read"
    return XidLog(problem=f"Xid events cannot be read here: {'; '.join(problems)}. {advice}")
