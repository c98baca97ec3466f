"""Command `python -m trainer gpus`: print this host's GPUs and driver errors."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict

from trainer.cli import commands
from trainer.health.gpu import MIB, SMI_SECONDS, Hardware, concerns, read_gpus
from trainer.health.xid_log import XidLog, read_xids
from vidcurate.errors import counted


def to_json(hardware: Hardware, log: XidLog) -> dict[str, object]:
    """Return facts, Xids with their policy, and what is wrong, as plain values."""
    return {
        **asdict(hardware),
        "concerns": [asdict(concern) for concern in concerns(hardware)],
        "xids": [asdict(event) | asdict(event.policy) for event in log.events],
        "xid_source": log.source,
        "xid_problem": log.problem,
    }


def _figure(value: float | None, unit: str) -> str:
    return "?" if value is None else f"{value:,.0f} {unit}"


def to_text(hardware: Hardware, log: XidLog) -> str:
    """Return the facts as people read them, a line a GPU."""
    lines = [
        f"{hardware.host}: {counted(len(hardware.gpus), 'GPU')}, driver {hardware.driver or 'not there'}"
    ]
    for gpu in hardware.gpus:
        used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
        lines.append(
            f"  {gpu.index} {gpu.name}  {_figure(gpu.power_watts, 'W')}  "
            f"{_figure(gpu.temperature_celsius, 'C')}  {_figure(gpu.utilisation_percent, '%')}  "
            f"{_figure(gpu.sm_clock_mhz, 'MHz')}  {_figure(used and used / MIB, 'MiB')} of "
            f"{_figure(total and total / MIB, 'MiB')}"
        )
        for process in gpu.processes:
            memory = _figure(process.memory_bytes and process.memory_bytes / MIB, "MiB")
            lines.append(f"    process {process.pid} of {process.user or '?'}: {process.name}, {memory}")
    for concern in concerns(hardware):
        where = "" if concern.gpu is None else f"GPU {concern.gpu}: "
        lines.append(f"  {concern.action}: {where}{concern.text}; {concern.advice}")
    for event in log.events:
        lines.append(
            f"  {event.policy.action}: Xid {event.number} on {event.bus_id}, {event.policy.meaning}; "
            f"{event.policy.advice}"
        )
    return "\n".join([*lines, *([f"  {log.problem}"] if log.problem else [])])


def main(words: Sequence[str]) -> int:
    parser = commands.parser(
        "gpus",
        "The GPUs of this host, and what their driver complains of.",
        "  python -m trainer gpus --json",
    )
    parser.add_argument("--json", action="store_true", help="print the facts as JSON")
    parser.add_argument(
        "--seconds", type=float, default=SMI_SECONDS, metavar="S", help="limit of nvidia-smi (20)"
    )
    given: argparse.Namespace = parser.parse_args(words)

    def act() -> None:
        hardware, log = read_gpus(given.seconds), read_xids()
        commands.print_answer(to_json(hardware, log), to_text(hardware, log), as_json=given.json)

    return commands.run_short_command(act)
