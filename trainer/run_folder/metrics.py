"""Metrics of a run: metrics.jsonl (per step), validation.jsonl, events.jsonl.

All reports and trackers are derived from these files. Losses are float32 means of per-clip losses, written
with all digits, so that two runs can be compared bit for bit. Step numbers count finished updates: line 100
and the checkpoint `step-00000100` belong together.
"""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.run_folder import line_forms
from trainer.run_folder.jsonl import EVENTS, append_line, record_event
from vidcurate.errors import InputError, MissingError, StorageError
from vidcurate.storage import atomic_file, regular_file

METRICS = "metrics.jsonl"
VALIDATION = "validation.jsonl"
DAMAGED_LINES = "damaged-lines.jsonl"

# Keys that differ between two runs of the same recipe; all other values of a line are equal.
CLOCK_KEYS = (
    "time",
    "seconds",
    "data_seconds",
    "tokens_per_second",
    "tflops_per_device",
    "mfu",
    "peak_gib",
    "rank_seconds",
    "bucket_seconds",
    "rank_balance",
)

TIMESTEP_BINS = 10


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a JSONL file; none without a file. Skip a last line that a kill truncated.

    Raises StorageError for a line that is no JSON object, or is unlike what a run writes.
    """
    found = []
    for number, line in enumerate(_whole_lines(path), 1):
        parsed, fault = _parsed(line, path.name)
        if parsed is None:
            raise StorageError(
                f"{path}: line {number} is damaged ({fault}); remove it: sed -i {number}d {path}"
            )
        found.append(parsed)
    return found


def read_undamaged(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a JSONL file without damaged ones."""
    read = (_parsed(line, path.name) for line in _whole_lines(path))
    return [parsed for parsed, _ in read if parsed is not None]


def set_aside_damaged_lines(run: Path) -> dict[str, list[int]]:
    """Move damaged lines of a run's files to RUN/damaged-lines.jsonl; return file → numbers of the lines.

    One damaged byte of a log must not end an unattended run. Raises StorageError.
    """
    found = {}
    for name in (METRICS, VALIDATION, EVENTS):
        kept, numbers = [], []
        for number, line in enumerate(_whole_lines(run / name), 1):
            if _parsed(line, name)[0] is not None:
                kept.append(line + b"\n")
                continue
            numbers.append(number)
            text = line.decode("utf-8", "backslashreplace")
            append_line(run / DAMAGED_LINES, {"file": name, "line": number, "text": text})
        if numbers:
            atomic_file.write_bytes(run / name, b"".join(kept))
            found[name] = numbers
    return found


def _whole_lines(path: Path) -> list[bytes]:
    try:
        data = regular_file.read_bytes(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror}).") from error
    return data[: data.rfind(b"\n") + 1].split(b"\n")[:-1]


def _parsed(line: bytes, name: str) -> tuple[dict[str, Any] | None, str]:
    """Return the object of a line of the file `name`, and ""; None and what is wrong for a damaged line."""
    try:
        found = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None, repr(line[:40].decode("utf-8", "replace"))
    fault = line_forms.fault_of(found, name)
    return (None, fault) if fault else (found, "")


def forget_after(run: Path, step: int) -> int:
    """Drop the lines of metrics and validation after `step`, and lines that a kill truncated.

    Return the number of dropped steps. The event `steps_dropped` records it, with the time in which these
    steps and their validation rounds ran. A killed run had continued after its last checkpoint; the resumed
    run trains and writes those steps again.
    """
    _keep(run / EVENTS, read_metrics(run / EVENTS))
    lines, rounds = read_metrics(run / METRICS), read_metrics(run / VALIDATION)
    gone = [line for line in lines if line["step"] > step]
    if any("time" in line for line in gone):
        facts = {
            "steps": len(gone),
            "lost_seconds": round(math.fsum(line["seconds"] for line in gone), 3),
            "lost_from": round(min(line["time"] - line["seconds"] for line in gone), 3),
            "lost_until": max(line["time"] for line in (*gone, *(it for it in rounds if it["step"] > step))),
        }
        record_event(run, "steps_dropped", step, **facts)
    _keep(run / METRICS, [line for line in lines if line["step"] <= step])
    _keep(run / VALIDATION, [line for line in rounds if line["step"] <= step])
    return len(gone)


def _keep(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Rewrite a JSONL file with these lines, if they differ."""
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    if path.exists() and text != path.read_text(encoding="utf-8"):
        atomic_file.write_text(path, text)


def mean(losses: Iterable[float]) -> float:
    """Return the float32 mean of per-clip losses, summed in float64 in the order given."""
    values = np.fromiter(losses, dtype=np.float64)
    return float(np.float32(values.sum() / len(values)))


def mean_by(losses: NDArray[np.float64], names: Sequence[str]) -> dict[str, float]:
    """Return the mean loss of each name (a bucket, a level), sorted by name."""
    groups: dict[str, list[float]] = {}
    for name, loss in zip(names, losses, strict=True):
        groups.setdefault(name, []).append(float(loss))
    return {name: mean(groups[name]) for name in sorted(groups)}


def timestep_bins(timesteps: NDArray[np.float64]) -> list[str]:
    """Return the bin of each timestep, a tenth of [0, 1000] such as "300-400"; 1000 is in the last."""
    return [timestep_bin(timestep) for timestep in timesteps.tolist()]


def timestep_bin(timestep: float) -> str:
    """Return the bin of one timestep, as `timestep_bins`."""
    width = 1000 // TIMESTEP_BINS
    number = int(min(max(timestep // width, 0), TIMESTEP_BINS - 1))
    return f"{number * width}-{(number + 1) * width}"


def seconds_as_text(seconds: float) -> str:
    """Return a duration as text: 8 s, 3 min 20 s, 5 h 12 min."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def console_line(line: dict[str, Any], last_step: int, seconds_per_step: float, width: int = 0) -> str:
    """Return the console line of a metrics line; at a terminal's `width` without what does not fit.

    Step, loss and time left always stay; 0: no limit.
    """
    mfu = f"  MFU {100 * line['mfu']:.1f} %" if "mfu" in line else ""
    parts = {
        "step": f"{line['stage']}  step {line['step']}/{last_step}  loss {line['loss']:.6f}",
        "lr": f"lr {line['lr']:.3g}",
        "grad": f"grad {line['grad_norm']:.3g}",
        "speed": f"{line['tokens_per_second']:,.0f} tokens/s{mfu}",
        "data": f"data {100 * line['data_seconds'] / max(line['seconds'], 1e-9):.0f} %",
        "left": f"{seconds_as_text((last_step - line['step']) * seconds_per_step)} left",
    }
    for name in ("lr", "data", "grad", "speed"):
        if width and len("  ".join(parts.values())) > width:
            del parts[name]
    return "  ".join(parts.values())


def check_is_run(folder: Path) -> None:
    """Raise InputError unless a training writes or has written here, or a copy of it is arriving."""
    if not folder.is_dir():
        raise MissingError(f"{folder}: no such run folder.")
    is_run = any((folder / name).exists() for name in (EVENTS, METRICS, ".lock"))
    if not is_run and not any(folder.glob("step-*")):
        raise InputError(
            f"{folder}: is no run folder (no {EVENTS} and no step-… in it). Give the folder that `output` "
            "named, once its training or its copy has started."
        )
