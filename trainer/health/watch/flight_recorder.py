"""Flight recorder of torch: the collective that ranks wait in, and the late rank.

The recorder is in torch's process groups (gloo's too, torch 2.13): for each group it counts the collectives
that a rank has enqueued, that its GPU has started (NCCL, only with TORCH_NCCL_ENABLE_TIMING=1) and that are
completed, and keeps the last TORCH_FR_BUFFER_SIZE of them. The rank's heartbeat thread reads the recorder,
and only while the rank's phase does not change.
Source: torch, "Flight Recorder for Debugging Stuck Jobs", form of version 2.10.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vidcurate.errors import StateError


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """The last collective that a rank has enqueued in one group, and how far that group has come.

    `group` is the backend, the group's number and what it is called, the same on all its `ranks`. The numbers
    count collectives from 1; `started` is -1 where it is not recorded.
    """

    group: str
    ranks: tuple[int, ...]
    name: str
    enqueued: int
    started: int
    completed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Ranks that wait in one collective, and those that have not come to it: `late`, () where none is known.

    `on_device`: the late ones have enqueued it, but their GPUs have not begun it.
    """

    group: str
    name: str
    number: int
    waiting: tuple[int, ...]
    late: tuple[int, ...]
    on_device: bool = False

    def __str__(self) -> str:
        return f"{self.name} {self.number} of {self.group}"

    @property
    def why(self) -> str:
        """What is said of a late rank."""
        if self.on_device:
            return f"its GPU has not begun the collective in which the others wait ({self})"
        return f"is not in the collective in which the others wait ({self})"


# ── inside a rank ───────────────────────────────────────────────────────────────────────────────────────────


class Recorder:
    """The flight recorder of this process. A look costs under 0.1 ms while collectives make progress.

    Only when they have stood still between two looks are the entries read (0.1 s for 2000 of them), once.
    """

    def __init__(self) -> None:
        self._status: list[Any] = []
        self._found: tuple[Collective, ...] | None = None

    def look(self) -> tuple[Collective, ...]:
        """Return the progress of each group; none while collectives make progress, or without a recorder."""
        dumps = _dumps()
        status = [json.loads(dump(includeCollectives=False)).get("pg_status") for dump in dumps]
        if status != self._status or not status:
            self._status, self._found = status, None
            return ()
        if self._found is None:
            self._found = tuple(
                found for dump in dumps for found in read_trace(json.loads(dump()), _ranks_of_group)
            )
        return self._found


def _dumps() -> list[Callable[..., bytes]]:
    """Return the recorders of this build of torch; none before the ranks have met."""
    import torch.distributed

    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return []
    from torch._C import _distributed_c10d

    names = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
    return [getattr(_distributed_c10d, name) for name in names if hasattr(_distributed_c10d, name)]


def _ranks_of_group(name: str) -> tuple[int, ...]:
    import torch.distributed
    from torch._C._distributed_c10d import _resolve_process_group

    group: Any = name  # a type of its own from torch 2.13 on
    try:
        return tuple(torch.distributed.get_process_group_ranks(_resolve_process_group(group)))
    except (RuntimeError, ValueError):  # a group that is gone
        return ()


def read_trace(
    recorded: Mapping[str, Any], ranks_of_group: Callable[[str], tuple[int, ...]]
) -> list[Collective]:
    """Return what a recorder's dump (JSON or pickle) says of each group that has made a collective.

    `ranks_of_group` is asked where the dump does not say it: gloo's does not. Raises StateError for a dump of
    another form.
    """
    try:
        last: dict[tuple[str, str], Mapping[str, Any]] = {}
        for entry in recorded.get("entries", ()):
            if not entry["is_p2p"]:
                last[entry["profiling_name"].partition(":")[0], str(entry["pg_id"])] = entry
        found = []
        for (backend, number), entry in last.items():
            name, called = entry["process_group"]
            status = recorded["pg_status"][number]
            reported = recorded.get("pg_config", {}).get(name, {}).get("ranks")
            called = "" if called in ("", "undefined") else f" ({called})"
            found.append(
                Collective(
                    group=f"{backend} group {name}{called}",
                    ranks=tuple(json.loads(reported)) if reported else ranks_of_group(name),
                    name=entry["profiling_name"].partition(":")[2],
                    enqueued=int(status["last_enqueued_collective"]),
                    started=int(status["last_started_collective"]),
                    completed=int(status["last_completed_collective"]),
                )
            )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(
            f"flight recorder: not its form ({error!r}); torch 2.13 writes version 2.10, this is "
            f"{recorded.get('version')}."
        ) from error
    return found


# ── of all ranks ────────────────────────────────────────────────────────────────────────────────────────────


def to_json(found: Sequence[Collective]) -> list[dict[str, Any]]:
    """Return them as plain values; `from_json` is the way back."""
    return [asdict(one) for one in found]


def from_json(values: Sequence[Mapping[str, Any]]) -> tuple[Collective, ...]:
    """Return the collectives of `to_json`. Raises StateError."""
    try:
        return tuple(Collective(**{**one, "ranks": tuple(one["ranks"])}) for one in values)
    except (KeyError, TypeError) as error:
        raise StateError(f"not collectives: {error!r}.") from error


def waits(reported: Mapping[int, Sequence[Collective]]) -> list[Wait]:
    """Return where ranks wait for others, from each rank's records; the wait that causes others first.

    Nobody is late in a group with a member without records: that member may be where the others are.
    """
    groups: dict[tuple[str, tuple[int, ...]], dict[int, Collective]] = {}
    for rank, found in reported.items():
        for one in found:
            groups.setdefault((one.group, one.ranks), {})[rank] = one
    every = [
        wait
        for (_, ranks), by_rank in groups.items()
        if (wait := _wait(ranks, by_rank, reported)) is not None
    ]
    # Who is late in one group may itself wait in another: then the other is where it comes from.
    held_up = {rank for wait in every for rank in wait.waiting}
    return sorted(every, key=lambda wait: (not wait.late, not set(wait.late) - held_up, wait.on_device))


def _wait(
    ranks: Sequence[int], by_rank: Mapping[int, Collective], reported: Mapping[int, Sequence[Collective]]
) -> Wait | None:
    number = max(one.enqueued for one in by_rank.values())
    there = {rank: one for rank, one in by_rank.items() if one.enqueued == number}
    late = [rank for rank in ranks if rank in reported and rank not in there]
    on_device = False
    begun = [rank for rank, one in there.items() if one.started == number]
    if not late and begun and len(begun) < len(there):
        late = [rank for rank in there if rank not in begun]
        on_device = True
    waiting = sorted(rank for rank, one in there.items() if one.completed < number and rank not in late)
    if not waiting:
        return None
    one = there[waiting[0]]
    is_known = set(ranks) <= set(reported)
    return Wait(
        group=one.group,
        name=one.name,
        number=number,
        waiting=tuple(waiting),
        late=tuple(late) if is_known else (),
        on_device=on_device,
    )
