"""Balance report: predicted and measured time per rank and bucket.

Pure functions of the lines that `trainer.training.step_balance` writes. They count the updates of the run's
last number of ranks, without the first ones of each start. A cost table that is wrong by the same factor
everywhere does not change the shares: the ranks are still balanced. A bucket with a different factor costs
time.
"""

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from trainer.report.goodput import BEGINNINGS
from trainer.report.read import RunData
from trainer.run_folder import layout as run_folder_layout
from vidcurate.errors import InputError, StorageError
from vidcurate.sampler import cost_table
from vidcurate.sampler.cost_table import CostTable

UNSTEADY = 3
"""updates after each start that do not count: memory is allocated, kernels are compiled"""
OFF = 0.1
"""a bucket whose factor differs more than this from the run's is reported"""

_BUCKET = re.compile(r"(?P<resolution>.+)-(?P<frames>\d+)f-[\d.]+(-[\d.e+]+fps)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTime:
    """One rank's share of all ranks' work, predicted and measured."""

    rank: int
    predicted: float
    measured: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketTime:
    """A bucket's micro-batches. `predicted` is in the run's unit; `measured` the median seconds of one.

    `factor` is measured / predicted, `off` is factor / the run's factor − 1.
    """

    bucket: str
    micro_batches: int
    predicted: float
    measured: float
    factor: float
    off: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """The balance of `steps` updates on `ranks` ranks.

    `waste_…` is the share of the ranks' time spent waiting for the slowest rank, predicted and measured;
    `correlation` compares both over all (step, rank), None with one rank or equal costs.
    """

    unit: str
    steps: int
    ranks: int
    factor: float
    waste_predicted: float | None
    waste_measured: float | None
    correlation: float | None
    of_ranks: tuple[RankTime, ...]
    of_buckets: tuple[BucketTime, ...]

    @property
    def wrong(self) -> tuple[BucketTime, ...]:
        """The buckets whose cost is off, the worst first."""
        return tuple(
            sorted((one for one in self.of_buckets if abs(one.off) > OFF), key=lambda one: -abs(one.off))
        )


Line = dict[str, Any]


def _counted(lines: Sequence[Line], events: Sequence[Line]) -> list[Line]:
    begun = [event["step"] for event in events if event["event"] in BEGINNINGS]
    known = [line for line in lines if line.get("bucket_seconds") and "cost_unit" in line]
    if not known:
        return []
    last = _kind(known[-1])
    return [
        line
        for line in known
        if _kind(line) == last
        and line["step"] - max((step for step in begun if step < line["step"]), default=0) > UNSTEADY
    ]


def _kind(line: Line) -> tuple[str, int, int]:
    """Return a line's unit, number of ranks and of listed ranks: what lines must share to be compared."""
    found = line.get("rank_balance", {"ranks": 1, "of_ranks": ()})
    return line["cost_unit"], found["ranks"], len(found["of_ranks"])


def balance(lines: Sequence[Line], events: Sequence[Line]) -> Balance | None:
    """Return predicted against measured time; None for a run too short, or of an older version."""
    counted = _counted(lines, events)
    if not counted:
        return None
    unit, ranks, _ = _kind(counted[0])
    buckets = _buckets(counted)
    several = [line["rank_balance"] for line in counted if "rank_balance" in line]
    wastes: list[float | None] = [None, None]
    shares: tuple[RankTime, ...] = ()
    correlation = None
    if several:
        wastes = [
            1 - sum(one[key][0] for one in several) / max(sum(one[key][1] for one in several), 1e-12)
            for key in ("predicted", "measured")
        ]
        both = np.array([one["of_ranks"] for one in several])  # [steps, listed ranks, 2]
        totals = [ranks * sum(one[key][0] for one in several) for key in ("predicted", "measured")]
        of_ranks = both.sum(0) / np.maximum(totals, 1e-12)
        shares = tuple(
            RankTime(rank=rank, predicted=predicted, measured=measured)
            for rank, (predicted, measured) in enumerate(of_ranks.tolist())
        )
        if both[..., 0].std() > 1e-9 * both[..., 0].mean() and both[..., 1].std() > 0:
            correlation = float(np.corrcoef(both[..., 0].ravel(), both[..., 1].ravel())[0, 1])
    return Balance(
        unit=unit,
        steps=len(counted),
        ranks=ranks,
        factor=_factor(buckets),
        waste_predicted=wastes[0],
        waste_measured=wastes[1],
        correlation=correlation,
        of_ranks=shares,
        of_buckets=buckets,
    )


def _factor(buckets: Sequence[BucketTime]) -> float:
    measured = sum(one.micro_batches * one.measured for one in buckets)
    return measured / sum(one.micro_batches * one.predicted for one in buckets)


def _buckets(counted: Sequence[Line]) -> tuple[BucketTime, ...]:
    rows: dict[str, list[list[float]]] = {}
    for line in counted:
        for name, row in line["bucket_seconds"].items():
            rows.setdefault(name, []).append(row)
    found = []
    for name, each in sorted(rows.items()):
        batches = sum(row[0] for row in each)
        predicted = sum(row[2] for row in each) / batches
        measured = statistics.median(row[3] / row[0] for row in each)
        found.append(
            BucketTime(
                bucket=name,
                micro_batches=int(batches),
                predicted=predicted,
                measured=measured,
                factor=measured / predicted,
                off=0.0,
            )
        )
    usual = max(_factor(found), 1e-12)
    return tuple(replace(one, off=one.factor / usual - 1) for one in found)


# ── the cost table anew ─────────────────────────────────────────────────────────────────────────────────────


def new_costs(run: RunData) -> CostTable:
    """Return a cost table from this run's micro-batches; buckets that it did not read keep their entry.

    The constant time per micro-batch cannot be measured from equal numbers of clips, so it is kept, too; 0
    without a table. Raises InputError for a run that has not measured enough, RecipeError for an unreadable
    table.
    """
    counted = _counted(run.lines, run.events)
    if not counted:
        raise InputError(
            f"{run.path}: has no measured micro-batches but those of the first {UNSTEADY} updates of a "
            "start; train a few more."
        )
    old = _table_of(run.path, counted[-1]["stage"])
    fixed = old.seconds_per_micro_batch if old else 0.0
    kinds: dict[tuple[str, str], list[float]] = {}
    for line in counted:
        for name, (batches, clips, _, seconds) in line["bucket_seconds"].items():
            found = _BUCKET.fullmatch(name)
            if found is None:
                raise InputError(f"{run.path}: {name!r} in its lines is not a bucket's name.")
            key = found["resolution"], found["frames"]
            kinds.setdefault(key, []).append((seconds - fixed * batches) / clips)
    table = {name: dict(row) for name, row in old.seconds_per_clip.items()} if old else {}
    for (resolution, frames), values in sorted(kinds.items()):
        row = table.setdefault(resolution, {})
        row[frames] = float(f"{max(statistics.median(values), 1e-6):.6g}")
    return CostTable(
        measured_on=f"the run {run.name}, steps {counted[0]['step']} to {counted[-1]['step']}",
        seconds_per_micro_batch=fixed,
        seconds_per_clip=table,
    )


def _table_of(run: Path, stage: str) -> CostTable | None:
    """Return the cost table by which a stage of the run is balanced; None without one."""
    for each in run_folder_layout.read_recipe(run).get("stages", ()):
        if each.get("name") != stage:
            continue
        try:
            path = each["data"]["buckets"].get("cost_table")
        except (KeyError, TypeError, AttributeError) as error:
            name = run / run_folder_layout.RECIPE
            raise StorageError(f"{name}: stage {stage} has no buckets. Put back the run's recipe.") from error
        return cost_table.read_cost_table(Path(path)) if path else None
    return None


# ── as text ────────────────────────────────────────────────────────────────────────────────────────────────


def to_text(found: Balance) -> list[str]:
    """Return the balance as lines of text."""
    lines = []
    if found.waste_predicted is not None and found.waste_measured is not None:
        reported = "" if found.correlation is None else f", correlation {found.correlation:.2f}"
        lines.append(
            f"{found.ranks} ranks: waiting for the slowest takes {found.waste_measured:.1%} of their time, "
            f"{found.waste_predicted:.1%} by the costs{reported}"
        )
    lines += [
        f"the cost of {one.bucket} is wrong by a factor of {1 + one.off:.2f} beside the other buckets"
        for one in found.wrong
    ]
    return lines
