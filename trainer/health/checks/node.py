"""Node check: driver-reported GPU errors, Xids, versions, time daemon, leftovers."""

import hashlib
import platform
import time
from pathlib import Path
from typing import Any

import torch

from trainer.health import clock_offset, xid
from trainer.health.checks.check import OF_ACTION, Check
from trainer.health.checks.spec import XID_HOURS, PreflightSpec
from trainer.health.gpu import Gpu, Hardware, concerns
from trainer.health.xid_log import XidLog
from vidcurate import __version__
from vidcurate.errors import counted

HOUR = 3600.0
CODE = Path(__file__).resolve().parents[3]
FEW_MIB = 64  # of memory: what a monitor takes


def of_driver(hardware: Hardware) -> list[Check]:
    """Return the driver's own complaints, and "ok" where it has none."""
    found = [
        Check(
            name="hardware",
            verdict=OF_ACTION[concern.action],
            value=("" if concern.gpu is None else f"GPU {concern.gpu}: ") + concern.text,
            advice=concern.advice,
        )
        for concern in concerns(hardware)
    ]
    if found:
        return found
    words = f"{counted(len(hardware.gpus), 'GPU')}, driver {hardware.driver}" if hardware.gpus else "no GPU"
    return [Check(name="hardware", verdict="ok", value=words)]


def of_xids(log: XidLog, spec: PreflightSpec, now: float | None = None) -> list[Check]:
    """Return the Xids of the last hours by the policy; many of one number on one GPU are one line."""
    if log.source is None:
        return [Check(name="Xid", verdict="ok", value=log.problem)]
    since = (time.time() if now is None else now) - XID_HOURS * HOUR
    counts: dict[tuple[int, str], int] = {}
    for event in log.events:
        if event.time is None or event.time >= since:
            counts[event.number, event.bus_id] = counts.get((event.number, event.bus_id), 0) + 1
    found = []
    for (number, bus_id), count in counts.items():
        policy = xid.policy(number)
        action = spec.xid.get(str(number), policy.action)
        if action != "ignore":
            times = f" {count} times" if count > 1 else ""
            found.append(
                Check(
                    name="Xid",
                    verdict=OF_ACTION[action],
                    value=f"Xid {number} on {bus_id}{times}: {policy.meaning}",
                    limit=f"none in {XID_HOURS:g} h",
                    advice=policy.advice,
                )
            )
    return found or [Check(name="Xid", verdict="ok", value=f"none in {XID_HOURS:g} h ({log.source})")]


def leftovers(gpus: tuple[Gpu, ...], ours: set[int], used: set[str]) -> list[Check]:
    """Return the processes that are not of this run, whose process ids are `ours`, on the GPUs that it uses.

    `used` has the driver's names (UUIDs) of these; where none is known, all are looked at.
    """
    found = []
    for gpu in [gpu for gpu in gpus if gpu.uuid in used] or gpus:
        for process in gpu.processes:
            few = process.memory_bytes is not None and process.memory_bytes >> 20 < FEW_MIB
            # Without a user it is not of this process namespace: it may be one of ours by another number.
            if process.pid in ours or process.user is None or few:
                continue
            who = f"process {process.pid} of {process.user}"
            size = "?" if process.memory_bytes is None else f"{process.memory_bytes >> 20:,} MiB"
            found.append(
                Check(
                    name="leftover process",
                    verdict="warn",
                    value=f"GPU {gpu.index}: {who} ({process.name}, {size})",
                    advice="end it if it is of an old run: python -m trainer cluster stop",
                )
            )
    return found


def of_clock(found: clock_offset.Discipline, num_nodes: int) -> list[Check]:
    """Return whether a time daemon keeps the clock; among several nodes it should."""
    is_loose = found.is_synchronised is not True or bool(found.advice)
    verdict: Any = "warn" if num_nodes > 1 and is_loose else "ok"
    return [Check(name="time daemon", verdict=verdict, value=found.said, advice=found.advice)]


def _code_digest() -> str:
    """Return a digest of the code that runs here: a node with another checkout is found by it."""
    digest = hashlib.sha256()
    for package in ("trainer", "vidcurate"):
        for path in sorted((CODE / package).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def versions() -> dict[str, str]:
    """Return what must be the same on all ranks: name → version, as read in this process."""
    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "vidcurate": __version__,
        "code": _code_digest(),
    }
    if torch.cuda.is_available():
        found["CUDA"] = str(torch.version.cuda)
        found["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
        found["driver"] = _driver()
    return found


def _driver() -> str:
    """Return the driver's version as the kernel tells it, which cannot hang."""
    for path in ("/sys/module/nvidia/version", "/proc/driver/nvidia/version"):
        try:
            text = Path(path).read_text()
        except OSError:
            continue
        numbers = [word for word in text.split() if word[:1].isdigit() and "." in word]
        if numbers:
            return numbers[0]
    return "?"
