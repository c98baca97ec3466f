"""GPUs of this host: read nvidia-smi, list hardware faults the driver reports.

nvidia-smi runs with a time-out, because the driver itself can hang. A value that is missing, unsupported or
unreadable is None; a tool that hangs or prints garbage is one line, `problem`. Nothing here needs root or
torch, or raises.
"""

import re
import socket
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from trainer.health import xid
from trainer.health.timed_command import CommandResult, last_line, run_command
from trainer.run_folder import process_table

MIB = 1 << 20
SMI_SECONDS = 20.0
"""how long nvidia-smi may take: 8 GPUs without the persistence daemon were seen to need more than 10 s"""
BROKEN = ("err!", "unknown error")
"""words that the driver puts where a reading failed; "N/A" and its like mean that there is nothing to read"""
LOST = ("gpu is lost", "gpu requires reset")
"""words that the driver puts where the GPU itself does not answer"""

# Reasons to run slower that are a fault of cooling or power, not of load.
BAD_THROTTLES = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process on a GPU. `user` is None where /proc has no such process (another container's)."""

    pid: int
    name: str
    user: str | None
    memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU. None: not supported or not reported.

    `unreadable` names readings that failed; `is_lost`: the driver reports a lost GPU in place of a reading.
    """

    index: int
    name: str
    uuid: str | None
    bus_id: str | None
    power_watts: float | None
    power_limit_watts: float | None
    temperature_celsius: float | None
    utilisation_percent: float | None
    sm_clock_mhz: float | None
    max_sm_clock_mhz: float | None
    throttle_reasons: tuple[str, ...]
    memory_total_bytes: int | None
    memory_used_bytes: int | None
    ecc_corrected: int | None
    """since the driver was loaded"""
    ecc_uncorrected: int | None
    """since the driver was loaded"""
    ecc_uncorrected_ever: int | None
    rows_remapped: int | None
    remap_pending: bool | None
    remap_failed: bool | None
    reset_required: bool | None
    pcie_gen: int | None
    pcie_gen_max: int | None
    pcie_width: int | None
    pcie_width_max: int | None
    processes: tuple[GpuProcess, ...]
    unreadable: tuple[str, ...] = ()
    is_lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The GPUs of one host. `has_tool` False and no `problem`: a host without GPUs, which is no fault.

    `device_files`: GPUs that have one; more than `gpus` where one is lost, or a batch system hides some.
    """

    host: str
    has_tool: bool
    driver: str | None = None
    cuda: str | None = None
    gpus: tuple[Gpu, ...] = ()
    device_files: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Concern:
    """Something wrong with a host's hardware: on which GPU (None: the host), what, and the policy for it."""

    gpu: int | None
    text: str
    action: xid.Action
    advice: str


# ── reading nvidia-smi ──────────────────────────────────────────────────────────────────────────────────────


def device_files() -> int:
    """Return how many GPUs have a device file here (/dev/nvidia0, …); they stay when a GPU is lost."""
    return len([path for path in Path("/dev").glob("nvidia[0-9]*") if path.name[6:].isdigit()])


def read_gpus(seconds: float = SMI_SECONDS) -> Hardware:
    """Return the facts of this host's GPUs, within `seconds` and a second more."""
    host = socket.gethostname()
    said = run_command(["nvidia-smi", "-q", "-x"], seconds)
    if said.kind == "missing":
        files = device_files()
        problem = f"{said.problem}, but {files} GPUs have device files" if files else ""
        return Hardware(host=host, has_tool=False, problem=problem)
    if said.kind == "hung":
        return Hardware(host=host, has_tool=True, problem=said.problem)
    return parse(said, host)


def parse(said: CommandResult, host: str) -> Hardware:
    """Return what `nvidia-smi -q -x` said; a broken answer is a `problem`, beside what could be read."""
    begin = said.text.find("<?xml")
    try:
        root = ElementTree.fromstring(said.text[begin:] if begin >= 0 else said.text)
    except ElementTree.ParseError:
        if "no devices were found" in said.text.lower() and not device_files():
            return Hardware(host=host, has_tool=True)
        words = said.problem or f"nvidia-smi: its answer is no XML ({last_line(said.text) or 'empty'})"
        return Hardware(host=host, has_tool=True, problem=words)
    gpus = tuple(_gpu(element, index) for index, element in enumerate(root.findall("gpu")))
    return Hardware(
        host=host,
        has_tool=True,
        driver=_text(root, "driver_version"),
        cuda=_text(root, "cuda_version"),
        gpus=gpus,
        device_files=device_files(),
        problem=said.problem,
    )


def _text(element: ElementTree.Element, *paths: str) -> str | None:
    """Return the first of `paths` that holds something; drivers of several ages name things differently."""
    for path in paths:
        text = (element.findtext(path) or "").strip()
        if text and text.strip("[]").lower() not in ("n/a", "not supported", "unknown", "none"):
            return text
    return None


def _number(element: ElementTree.Element, *paths: str) -> float | None:
    text = _text(element, *paths)
    match = re.match(r"-?\d+(\.\d+)?", text or "")
    return float(match[0]) if match else None


def _whole(element: ElementTree.Element, *paths: str) -> int | None:
    value = _number(element, *paths)
    return None if value is None else int(value)


def _mebibytes(element: ElementTree.Element, *paths: str) -> int | None:
    value = _number(element, *paths)
    return None if value is None else int(value) * MIB


def _is_yes(element: ElementTree.Element, *paths: str) -> bool | None:
    text = _text(element, *paths)
    return {"yes": True, "no": False}.get((text or "").lower())


def _sum(element: ElementTree.Element, group: str, word: str) -> int | None:
    """Add up the counters of a group whose name holds `word`: sram_…, dram_…, or the older …/total."""
    found = [child for child in element.findall(f"ecc_errors/{group}/*") if f"_{word}" in f"_{child.tag}"]
    counts = [count for child in found if (count := _whole(child, ".")) is not None]
    if not counts:
        older = "single_bit" if word == "correctable" else "double_bit"
        return _whole(element, f"ecc_errors/{group}/{older}/total")
    return sum(counts)


def _throttles(element: ElementTree.Element) -> tuple[str, ...]:
    """Return why the GPU runs below its clocks now, as hw_slowdown, sw_power_cap, …"""
    found = [*element.findall("clocks_event_reasons/*"), *element.findall("clocks_throttle_reasons/*")]
    names = [re.sub(r"^clocks_(event|throttle)_reason_", "", child.tag) for child in found]
    active = [(child.text or "").strip().lower() == "active" for child in found]
    return tuple(name for name, is_on in zip(names, active, strict=True) if is_on)


def _user(pid: int) -> str | None:
    try:
        return process_table.user_name(Path(f"/proc/{pid}").stat().st_uid)
    except OSError:
        return None


def _processes(element: ElementTree.Element) -> tuple[GpuProcess, ...]:
    found = []
    for process in element.findall("processes/process_info"):
        pid = _whole(process, "pid")
        if pid is not None:
            name = _text(process, "process_name") or "?"
            memory = _mebibytes(process, "used_memory")
            found.append(GpuProcess(pid=pid, name=name, user=_user(pid), memory_bytes=memory))
    return tuple(found)


def _tags_that_say(element: ElementTree.Element, words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(
        sorted(
            {part.tag for part in element.iter() if any(word in (part.text or "").lower() for word in words)}
        )
    )


def _gpu(element: ElementTree.Element, index: int) -> Gpu:
    link = "pci/pci_gpu_link_info"
    return Gpu(
        index=index,
        name=_text(element, "product_name") or "?",
        uuid=_text(element, "uuid"),
        bus_id=element.get("id") or _text(element, "pci/pci_bus_id"),
        power_watts=_number(
            element,
            "gpu_power_readings/instant_power_draw",
            "gpu_power_readings/power_draw",
            "gpu_power_readings/average_power_draw",
            "power_readings/power_draw",
        ),
        power_limit_watts=_number(
            element,
            "gpu_power_readings/current_power_limit",
            "gpu_power_readings/power_limit",
            "power_readings/power_limit",
        ),
        temperature_celsius=_number(element, "temperature/gpu_temp"),
        utilisation_percent=_number(element, "utilization/gpu_util"),
        sm_clock_mhz=_number(element, "clocks/sm_clock"),
        max_sm_clock_mhz=_number(element, "max_clocks/sm_clock"),
        throttle_reasons=_throttles(element),
        memory_total_bytes=_mebibytes(element, "fb_memory_usage/total"),
        memory_used_bytes=_mebibytes(element, "fb_memory_usage/used"),
        ecc_corrected=_sum(element, "volatile", "correctable"),
        ecc_uncorrected=_sum(element, "volatile", "uncorrectable"),
        ecc_uncorrected_ever=_sum(element, "aggregate", "uncorrectable"),
        rows_remapped=_whole(element, "remapped_rows/remapped_row_unc"),
        remap_pending=_is_yes(element, "remapped_rows/remapped_row_pending"),
        remap_failed=_is_yes(element, "remapped_rows/remapped_row_failure"),
        reset_required=_is_yes(element, "gpu_reset_status/reset_required"),
        pcie_gen=_whole(element, f"{link}/pcie_gen/current_link_gen"),
        pcie_gen_max=_whole(element, f"{link}/pcie_gen/max_link_gen"),
        pcie_width=_whole(element, f"{link}/link_widths/current_link_width"),
        pcie_width_max=_whole(element, f"{link}/link_widths/max_link_width"),
        processes=_processes(element),
        unreadable=_tags_that_say(element, BROKEN),
        is_lost=bool(_tags_that_say(element, LOST)),
    )


# ── what is wrong with it ───────────────────────────────────────────────────────────────────────────────────


def concerns(hardware: Hardware) -> tuple[Concern, ...]:
    """Return the hardware faults that the driver reports for a host's GPUs, whatever runs on them.

    The PCIe generation is not checked, because an idle GPU lowers it to save power; the width is.
    """
    found = [] if not hardware.problem else [_of_tool(hardware)]
    if hardware.gpus and hardware.device_files > len(hardware.gpus):
        text = f"{len(hardware.gpus)} GPUs answer of {hardware.device_files} that have device files"
        advice = "one is lost, unless the batch system hides it from this job"
        found.append(Concern(gpu=None, text=text, action="warn", advice=advice))
    for gpu in hardware.gpus:
        found += [
            Concern(gpu=gpu.index, text=text, action=action, advice=advice)
            for is_so, text, action, advice in _checked(gpu)
            if is_so
        ]
    return tuple(found)


def _of_tool(hardware: Hardware) -> Concern:
    advice = "look at the kernel's log, and reboot the node if the driver hangs"
    action: xid.Action = "drain_node" if hardware.has_tool else "warn"
    return Concern(gpu=None, text=hardware.problem, action=action, advice=advice)


def _checked(gpu: Gpu) -> list[tuple[bool, str, xid.Action, str]]:
    slow = [reason for reason in gpu.throttle_reasons if reason in BAD_THROTTLES]
    narrow = bool(gpu.pcie_width and gpu.pcie_width_max and gpu.pcie_width < gpu.pcie_width_max)
    failed = xid.policy(64).advice
    return [
        (bool(gpu.remap_failed), "a memory row could not be replaced", "drain_node", failed),
        (bool(gpu.remap_pending), "a memory row waits to be replaced", "drain_node", xid.RESET),
        (bool(gpu.reset_required), "the driver asks for a reset", "drain_node", xid.RESET),
        (
            bool(gpu.ecc_uncorrected),
            f"{gpu.ecc_uncorrected} memory errors that ECC could not correct",
            "drain_node",
            xid.RESET,
        ),
        (bool(slow), f"runs slower ({', '.join(slow)})", "warn", "look at its cooling and power"),
        (
            narrow,
            f"PCIe x{gpu.pcie_width} of x{gpu.pcie_width_max}",
            "warn",
            "look at the card's seat, riser and slot",
        ),
        (
            bool(gpu.unreadable),
            f"the driver cannot read {', '.join(gpu.unreadable[:4])}",
            "warn",
            "look at the kernel's log; a reboot of the node often mends it",
        ),
        (gpu.is_lost, "the GPU is lost", "drain_node", xid.REBOOT),
    ]
