"""Node facts from the kernel: load, memory, disks, network traffic.

Read from /proc and /sys, which need no permissions. Missing values are None or left out.
"""

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

DISK_SECONDS = 3.0  # a network file system may never answer
PORT_WORD_BYTES = 4  # InfiniBand counts data in units of four bytes

# The counters of a port: the file, and its name here. *_bytes become rates.
ETHERNET = {
    "rx_bytes": "received_bytes",
    "tx_bytes": "sent_bytes",
    "rx_errors": "errors_received",
    "tx_errors": "errors_sent",
    "rx_dropped": "dropped",
}
INFINIBAND = {
    "port_rcv_data": "received_bytes",
    "port_xmit_data": "sent_bytes",
    "port_rcv_errors": "errors_received",
    "symbol_error": "symbol_errors",
    "link_error_recovery": "link_recoveries",
    "link_downed": "link_downed",
    "port_xmit_discards": "dropped",
}


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text().strip()
    return ""


def ports(system: Path = Path("/sys")) -> dict[str, dict[str, Any]]:
    """Return the counters of the network ports that are up, by name (eth0, mlx5_0/1), without `lo`."""
    found: dict[str, dict[str, Any]] = {}
    for folder in sorted((system / "class/net").glob("*")):
        is_up = _text(folder / "operstate") in ("up", "unknown")
        if folder.name == "lo" or not is_up or not (folder / "statistics").is_dir():
            continue
        found[folder.name] = _counters(folder / "statistics", ETHERNET, 1) | {"kind": "ethernet"}
    for folder in sorted((system / "class/infiniband").glob("*/ports/*")):
        name = f"{folder.parents[1].name}/{folder.name}"
        state = _text(folder / "state").partition(": ")[2] or "?"
        facts = {"kind": "infiniband", "state": state, "rate": _text(folder / "rate")}
        found[name] = _counters(folder / "counters", INFINIBAND, PORT_WORD_BYTES) | facts
    return found


def _counters(folder: Path, names: dict[str, str], word_bytes: int) -> dict[str, Any]:
    texts = {name: _text(folder / file) for file, name in names.items()}
    return {
        name: int(text) * (word_bytes if name.endswith("_bytes") else 1)
        for name, text in texts.items()
        if text.isdigit()
    }


def port_rates(
    before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]], seconds: float
) -> dict[str, dict[str, Any]]:
    """Return each port's traffic between two readings: bytes per second, and errors since boot.

    A counter that decreased, because it was reset or wrapped, gives None.
    """
    rates: dict[str, dict[str, Any]] = {}
    for name, now in after.items():
        then = before.get(name, {})
        line: dict[str, Any] = {key: value for key, value in now.items() if not key.endswith("_bytes")}
        for key in ("received_bytes", "sent_bytes"):
            grown = now[key] - then[key] if key in now and key in then else -1
            line[f"{key}_per_second"] = grown / seconds if grown >= 0 else None
        counts = [key for key in (*ETHERNET.values(), *INFINIBAND.values()) if not key.endswith("_bytes")]
        line["new_errors"] = {
            key: now[key] - then[key] for key in counts if key in now and now[key] > then.get(key, now[key])
        }
        rates[name] = line
    return rates


def cpu_ticks() -> tuple[int, int]:
    """Return the ticks that all cores have worked, and all their ticks, since boot (proc(5))."""
    fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return sum(fields) - idle, sum(fields)


def memory(path: Path = Path("/proc/meminfo")) -> dict[str, int]:
    """Return total_bytes and available_bytes of the machine's memory."""
    facts = {name: int(rest.split()[0]) << 10 for name, _, rest in _lines(path) if rest.split()[0].isdigit()}
    return {"total_bytes": facts["MemTotal"], "available_bytes": facts["MemAvailable"]}


def _lines(path: Path) -> list[tuple[str, str, str]]:
    return [line.partition(":") for line in path.read_text().splitlines() if line.partition(":")[2].strip()]


def disk(folder: Path) -> dict[str, Any]:
    """Return free_bytes, total_bytes and free inodes of the disk of `folder`; or `problem`, one line.

    A file system that does not answer within DISK_SECONDS is a problem, and leaves a thread behind.
    """
    reported: dict[str, Any] = {}

    def look() -> None:
        near = folder
        while not near.exists() and near != near.parent:
            near = near.parent
        try:
            facts = os.statvfs(near)
        except OSError as error:
            reported.update(problem=f"{folder}: {error.strerror}")
            return
        reported.update(
            free_bytes=facts.f_bavail * facts.f_frsize,
            total_bytes=facts.f_blocks * facts.f_frsize,
            free_inodes=facts.f_favail if facts.f_files else None,
            is_writable=os.access(near, os.W_OK),
        )

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(DISK_SECONDS)
    if not reported:
        reported = {"problem": f"{folder}: its file system did not answer within {DISK_SECONDS:g} s"}
    return {"folder": str(folder), **reported}


def machine(folders: Sequence[Path]) -> dict[str, Any]:
    """Return the load, the cores, the memory and the disks of `folders`."""
    return {
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "memory": memory(),
        "disks": [disk(folder) for folder in folders],
    }
