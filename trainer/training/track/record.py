"""Records of a track: a file a seed, and when a technique enters the table.

A record is what `run.run` returns. Two sets of records are compared by the seconds to the target: the
technique enters if, over three seeds or more each, it is faster with p < 0.01 (Welch's one-sided t-test on
the logarithms, so that a ratio and not a difference is tested).
"""

import json
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vidcurate.errors import InputError, StateError
from vidcurate.storage import atomic_file, lock, regular_file

LEAST_SEEDS = 3
LIMIT_P = 0.01
DATA = ("clips_sha256", "target_loss")
"""What two records must share to be compared."""


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


_FITS: dict[str, Callable[[Any], bool]] = {
    "name": lambda value: isinstance(value, str) and value.isprintable(),
    "seed": lambda value: type(value) is int,
    "recipe": lambda value: isinstance(value, dict),
    "log": lambda value: isinstance(value, list),
    "order_sha256": lambda value: isinstance(value, str),
    "clips_sha256": lambda value: isinstance(value, str),
    "target_loss": lambda value: value is None or _is_number(value),
    "seconds_to_target": lambda value: value is None or (_is_number(value) and value > 0),
    "final_loss": _is_number,
    "seconds": _is_number,
    "prompts": _is_count,
    "prompts_followed": lambda value: value is None or _is_count(value),
}


def record_path(folder: Path, name: str, seed: int) -> Path:
    """Return where the record of a seed lies."""
    return folder / f"{name.replace(' ', '-')}-seed{seed}.json"


@contextmanager
def alone(folder: Path, name: str, seed: int) -> Iterator[None]:
    """Hold the record of a seed, which need not exist, and make its folder.

    Raises StateError when another command runs this seed, StorageError for a folder that cannot be written.
    """
    path = record_path(folder, name, seed)

    def busy(holder: str) -> StateError:
        return StateError(f"{path}: another command ({holder}) runs this seed. Wait until that command ends.")

    with ExitStack() as held:
        with atomic_file.storage_errors(path):
            folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(
                lock.exclusive(folder / f".{path.name}.lock", wait=False, busy=busy, is_removed=True)
            )
        yield


def write_record(folder: Path, record: dict[str, Any]) -> Path:
    """Write a record atomically and return its path. Raises StorageError."""
    path = record_path(folder, record["name"], record["seed"])
    return atomic_file.write_text(path, json.dumps(record, indent=1) + "\n")


def read_record(path: Path) -> dict[str, Any]:
    """Return the record at `path`. Raises InputError for a file that is none, or that was edited or cut."""
    try:
        found = json.loads(regular_file.read_bytes(path))
        if not isinstance(found, dict):
            raise ValueError("no JSON object")
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not a record of the track ({error}).") from error
    for key, fits in _FITS.items():
        if key not in found:
            raise InputError(f"{path}: is not a record of the track; it has no {key}.")
        if not fits(found[key]):
            shown = json.dumps(found[key])[:60]
            raise InputError(f"{path}: is not a record of the track; its {key} is {shown}.")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How many times faster a technique reaches the target (ratio of geometric means), and p of that.

    `enters`: whether seeds and p suffice. `why_not`: empty, or the reason.
    """

    times: float | None
    p: float | None
    why_not: str

    @property
    def enters(self) -> bool:
        return not self.why_not


def compare(records: Sequence[dict[str, Any]], base: Sequence[dict[str, Any]]) -> Comparison:
    """Hold the records of a technique against those of the record so far."""
    for key in DATA:
        if len({json.dumps(one[key]) for one in (*records, *base)}) != 1:
            return Comparison(times=None, p=None, why_not=f"the runs differ in {key}")
    for runs in (records, base):
        if len({one["seed"] for one in runs}) < LEAST_SEEDS:
            return Comparison(times=None, p=None, why_not=f"there are fewer than {LEAST_SEEDS} seeds")
        late = [one["seed"] for one in runs if one["seconds_to_target"] is None]
        if late:
            return Comparison(times=None, p=None, why_not=f"seed {late[0]} did not reach the target")
    ours, theirs = ([math.log(one["seconds_to_target"]) for one in runs] for runs in (records, base))
    times = math.exp(statistics.fmean(theirs) - statistics.fmean(ours))
    p = welch(ours, theirs)
    return Comparison(times=times, p=p, why_not="" if p < LIMIT_P else f"p is {p:.2g}, not below {LIMIT_P}")


def welch(low: Sequence[float], high: Sequence[float]) -> float:
    """Return p of Welch's one-sided test that the mean of `low` is below that of `high`."""
    parts = [statistics.variance(values) / len(values) for values in (low, high)]
    apart = statistics.fmean(high) - statistics.fmean(low)
    if sum(parts) == 0:
        return 0.0 if apart > 0 else 1.0
    freedom = sum(parts) ** 2 / sum(
        part**2 / (len(values) - 1) for part, values in zip(parts, (low, high), strict=True)
    )
    return _beyond(apart / math.sqrt(sum(parts)), freedom)


def _beyond(t: float, freedom: float) -> float:
    """Return the probability that Student's t is above `t`: the density, summed over angles atan(t / √ν)."""
    angles = np.linspace(math.atan(t / math.sqrt(freedom)), math.pi / 2, 20_001)
    density = np.cos(angles) ** (freedom - 1)
    factor = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    return float(factor * np.trapezoid(density, angles))
