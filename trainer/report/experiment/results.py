"""Experiment results: read the runs' logs and compare them over the clips seen.

No measured time is used, so the same runs give the same table, interrupted or not. Differences are paired by
seed: for each seed, an arm and the first arm share initial weights, noise and validation. Standard errors are
those of the mean over seeds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.report.experiment.arms import Chain
from trainer.run_folder import metrics
from vidcurate.errors import StateError

Pair = tuple[float, float | None]  # a mean and its standard error, None for a single value


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """One arm with one seed. All lists are by update; `rounds` are (clips seen, loss by clip).

    `marks`: (update after which it stands, clips seen, how the segment behind it begins).
    """

    seed: int
    clips: tuple[float, ...]
    losses: tuple[float, ...]
    grad_norms: tuple[float, ...]
    marks: tuple[tuple[int, float, str], ...]
    rounds: tuple[tuple[float, dict[str, float]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One arm over its seeds. A jump is the mean loss of the window after a mark minus that before it.

    `against`: final validation loss minus the first arm's; `jump_there`: the first arm's jumps at the same
    places; `equals`: earlier arms whose losses are bit-identical at every update of every seed.
    """

    name: str
    what: str
    num_starts: int
    updates: int
    clips: float
    final_loss: Pair
    validation: Pair | None
    validation_clips: int
    against: Pair | None
    jump: Pair | None
    jump_there: Pair | None
    grad_peak: Pair
    equals: tuple[str, ...]


def _measured(value: float | str | None) -> float:
    """Return a loss or a norm of a log, where nan and inf are text; nan for none."""
    return math.nan if value is None else float(value)


def track(chain: Chain) -> Track:
    """Return the losses of a finished chain. Raises StateError for missing updates."""
    clips: list[float] = []
    losses: list[float] = []
    grad_norms: list[float] = []
    marks: list[tuple[int, float, str]] = []
    rounds: list[tuple[float, dict[str, float]]] = []
    seen = 0.0
    for part in chain.parts:
        lines = {line["step"]: line for line in metrics.read_metrics(part.folder / metrics.METRICS)}
        wanted = range(part.first + 1, part.last + 1)
        missing = [step for step in wanted if "clips" not in lines.get(step, ())]
        if missing:
            raise StateError(
                f"{part.folder}: {len(missing)} of {len(wanted)} updates are not in {metrics.METRICS}, the "
                f"first is {missing[0]}. Remove this folder and run the experiment again: it trains it anew."
            )
        if part.begins != "start":
            marks.append((len(losses), seen, part.begins))
        at = {part.first: seen}
        for step in wanted:
            seen += lines[step]["clips"]
            at[step] = seen
            clips.append(seen)
            losses.append(_measured(lines[step]["loss"]))
            grad_norms.append(_measured(lines[step].get("grad_norm")))
        for line in metrics.read_metrics(part.folder / metrics.VALIDATION):
            if line["step"] in at and (line["step"] > part.first or not rounds):
                of_clips = {clip_id: _measured(loss) for clip_id, loss in line["loss_by_clip"].items()}
                rounds.append((at[line["step"]], of_clips))
    return Track(
        seed=chain.seed,
        clips=tuple(clips),
        losses=tuple(losses),
        grad_norms=tuple(grad_norms),
        marks=tuple(marks),
        rounds=tuple(rounds),
    )


def mean(values: Sequence[float]) -> Pair:
    """Return the mean and its standard error."""
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else None
    return float(np.mean(values)), error


def jumps(track: Track, marks: Sequence[tuple[int, float, str]], window: int) -> list[float]:
    """Return, for each mark, the mean loss of the `window` updates after it less that before it."""
    found = []
    for at, _, _ in marks:
        before, after = track.losses[max(0, at - window) : at], track.losses[at : at + window]
        if before and after:
            found.append(float(np.mean(after)) - float(np.mean(before)))
    return found


def common_clips(tracks: Sequence[Track]) -> dict[int, list[str]]:
    """Return, for each seed, the sorted clips that the last rounds of all arms share: those are compared.

    The clips of a round may depend on the seed, as the order of all clips does.
    """
    found: dict[int, set[str]] = {}
    for track in tracks:
        mine = set(track.rounds[-1][1]) if track.rounds else set()
        found[track.seed] = found.get(track.seed, mine) & mine
    return {seed: sorted(ids) for seed, ids in found.items()}


def over(losses: dict[str, float], ids: Sequence[str]) -> float:
    """Return the mean loss over these clips; nan where one is not finite."""
    found = [losses[clip_id] for clip_id in ids]
    return math.fsum(found) / len(ids) if all(map(math.isfinite, found)) else math.nan


def _peak(track: Track) -> float:
    """Return the largest gradient norm after the first tenth, divided by the median there."""
    rest = track.grad_norms[len(track.grad_norms) // 10 :]
    middle = float(np.median(rest))
    return float(np.max(rest)) / middle if middle else math.nan


def _row(
    name: str, what: str, num_starts: int, tracks: Sequence[Track], first: Sequence[Track], **given: Any
) -> Row:
    window, ids = given["window"], given["ids"]
    marks = tracks[0].marks
    is_validated = all(ids.values())
    ends = [over(track.rounds[-1][1], ids[track.seed]) for track in tracks] if is_validated else []
    others = [over(track.rounds[-1][1], ids[track.seed]) for track in first] if is_validated else []
    own = [float(np.mean(jumps(track, marks, window))) for track in tracks] if marks else []
    there = [float(np.mean(found)) for track in first if (found := jumps(track, marks, window))]
    return Row(
        name=name,
        what=what,
        num_starts=num_starts,
        updates=len(tracks[0].losses),
        clips=tracks[0].clips[-1],
        final_loss=mean([float(np.mean(track.losses[-window:])) for track in tracks]),
        validation=mean(ends) if ends else None,
        validation_clips=min(map(len, ids.values())),
        against=None
        if tracks is first or not ends
        else mean([a - b for a, b in zip(ends, others, strict=True)]),
        jump=mean(own) if own else None,
        jump_there=mean(there) if own and there and tracks is not first else None,
        grad_peak=mean([_peak(track) for track in tracks]),
        equals=given["equals"],
    )


@np.errstate(invalid="ignore")  # an arm that diverged has means of inf and nan
def rows(chains: Sequence[Chain], tracks: Sequence[Track], window: int) -> tuple[Row, ...]:
    """Return a row per arm, in the order of the experiment; `tracks` belong to `chains`."""
    arms: dict[str, list[Track]] = {}
    by_name = {}
    for chain, found in zip(chains, tracks, strict=True):
        arms.setdefault(chain.arm.name, []).append(found)
        by_name[chain.arm.name] = chain
    ids = common_clips(tracks)
    first = next(iter(arms.values()))
    table: list[Row] = []
    for name, mine in arms.items():
        same = [
            other.name
            for other in table
            if all(
                np.array_equal(a.losses, b.losses, equal_nan=True)
                for a, b in zip(mine, arms[other.name], strict=True)
            )
        ]
        chain = by_name[name]
        table.append(
            _row(
                name,
                chain.arm.what,
                len(chain.starts),
                mine,
                first,
                window=window,
                ids=ids,
                equals=tuple(same),
            )
        )
    return tuple(table)
