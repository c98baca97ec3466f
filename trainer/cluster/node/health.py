"""Node health: findings about this machine, each with its policy."""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainer.cluster.node import facts
from trainer.health import clock_offset, xid, xid_log
from trainer.health import gpu as health_gpu
from trainer.health.gpu import Concern
from vidcurate.errors import counted

GIB = 1 << 30
SMI_SHARE = 0.6  # of the whole limit, for nvidia-smi
SHARE_OF_MEMORY = 0.05  # below it, the next large allocation may kill the run
NVIDIA, DISPLAYS = "0x10de", ("0x0300", "0x0302")
BUSY_PERCENT = 50.0  # a GPU this busy has its link at full speed


def answers(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the one document. `request`: runs (folders), min_disk_bytes."""
    folders = [Path(run) for run in request["runs"]] or [Path.cwd()]
    gpus = health_gpu.read_gpus(request["limit_seconds"] * SMI_SHARE)
    log = xid_log.read_xids()
    machine = facts.machine(folders)
    found = [
        *health_gpu.concerns(gpus),
        *_of_links(gpus),
        *_of_bus(gpus, pci_gpus()),
        *_of_xids(log),
        *_of_machine(machine, request["min_disk_bytes"]),
        *_of_clock(clock_offset.discipline()),
    ]
    yield {
        "concerns": [asdict(concern) for concern in found],
        "num_gpus": len(gpus.gpus),
        "gpu_name": gpus.gpus[0].name if gpus.gpus else None,
        "driver": gpus.driver,
        "gpus": [asdict(gpu) for gpu in gpus.gpus],
        "machine": machine,
        "xid_source": log.source,
        "not_read": [log.problem] if log.problem else [],
    }


def _of_host(text: str, action: xid.Action, advice: str) -> Concern:
    return Concern(gpu=None, text=text, action=action, advice=advice)


def pci_gpus(system: Path = Path("/sys")) -> dict[str, bool]:
    """Return the NVIDIA GPUs on the PCI bus by address, and whether each still answers there."""
    found = {}
    for folder in sorted((system / "bus/pci/devices").glob("*")):
        words = {name: _word(folder / name) for name in ("vendor", "class", "revision")}
        if words["vendor"] == NVIDIA and words["class"].startswith(DISPLAYS):
            found[folder.name] = words["revision"] != "0xff"  # reads so when a card is gone
    return found


def _word(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _of_bus(gpus: health_gpu.Hardware, on_bus: dict[str, bool]) -> Iterator[Concern]:
    for address, answers_there in on_bus.items():
        if not answers_there:
            yield _of_host(f"the GPU at {address} does not answer on the PCI bus", "drain_node", xid.REBOOT)
    if on_bus and not gpus.gpus:
        text = f"{counted(len(on_bus), 'GPU')} on the PCI bus, and nvidia-smi shows none"
        yield _of_host(text, "warn", "load the driver; in a container, pass the GPUs on")


def _of_links(gpus: health_gpu.Hardware) -> Iterator[Concern]:
    """Return a finding for a busy GPU whose PCIe link is slow; an idle GPU lowers its link itself."""
    for gpu in gpus.gpus:
        is_low = gpu.pcie_gen and gpu.pcie_gen_max and gpu.pcie_gen < gpu.pcie_gen_max
        if is_low and (gpu.utilisation_percent or 0.0) >= BUSY_PERCENT:
            text = f"PCIe generation {gpu.pcie_gen} of {gpu.pcie_gen_max} while it works"
            yield Concern(gpu=gpu.index, text=text, action="warn", advice="look at its seat and slot")


def _of_xids(log: xid_log.XidLog) -> Iterator[Concern]:
    """Return one finding per Xid number and GPU, without those that the policy ignores."""
    counts = Counter((event.bus_id, event.number) for event in log.events)
    last = {(event.bus_id, event.number): event for event in log.events}
    for (bus, number), count in counts.items():
        event = last[bus, number]
        if event.policy.action != "ignore":
            ago = "" if event.time is None else f", last {_ago(time.time() - event.time)} ago"
            often = f" {count} times" if count > 1 else ""
            text = f"Xid {number}{often} on {bus}{ago}: {event.policy.meaning}"
            yield _of_host(text, event.policy.action, event.policy.advice)


def _ago(seconds: float) -> str:
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _of_machine(machine: dict[str, Any], min_disk_bytes: int) -> Iterator[Concern]:
    for disk in machine["disks"]:
        where = disk["folder"]
        if "problem" in disk:
            yield _of_host(disk["problem"], "drain_node", "look at the mount and its server")
            continue
        if not disk["is_writable"]:
            yield _of_host(f"{where}: may not be written", "drain_node", "mount it writable")
        if disk["free_bytes"] < min_disk_bytes:
            text = f"{where}: {disk['free_bytes'] / GIB:,.1f} GiB free of {min_disk_bytes / GIB:,.1f} needed"
            yield _of_host(text, "drain_node", "remove old checkpoints, or set --min-disk-gib lower")
        if disk["free_inodes"] == 0:
            yield _of_host(f"{where}: no inode is free", "drain_node", "remove small files")
    memory = machine["memory"]
    if memory["available_bytes"] < SHARE_OF_MEMORY * memory["total_bytes"]:
        free, total = (memory[name] / GIB for name in ("available_bytes", "total_bytes"))
        text = f"{free:,.1f} GiB of {total:,.1f} GiB memory are free"
        yield _of_host(text, "warn", "see who holds it: ps aux --sort -rss")


def _of_clock(kept: clock_offset.Discipline) -> Iterator[Concern]:
    if kept.advice:
        yield _of_host(f"clock: {kept.said}", "warn", kept.advice)
