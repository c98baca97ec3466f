"""Rerun of a suspicious step, to separate bad data from a faulty device.

Every rank computes its share of the step again, and the share of the previous rank, which it reads again. A
rank whose second result differs from its first is suspect. If all ranks reproduce their own results but
disagree with each other, the rank whose results are larger in both of its pairs is suspect. Otherwise the
data is.
"""

import math
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from trainer.data import stages as data_stages
from trainer.data.model_inputs import Batch
from trainer.data.stages import StageData
from trainer.distributed import mesh
from trainer.recipe import guard_spec
from trainer.training.micro_batch import StepContext, add_gradient
from trainer.training.optim import adamw
from trainer.training.state import TrainState
from trainer.training.step import Computed, routing_now
from vidcurate.sampler import order

Read = Callable[[Sequence[int]], Sequence[Batch]]
"""Read the micro-batches at these positions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A rank's part of a step as one rank has computed it.

    `losses`: micro-batch position → losses of its clips. `norms`: position → norm of the gradient summed up
    to that position.
    """

    losses: dict[int, list[float]]
    norms: dict[int, float]

    @property
    def norm(self) -> float:
        return list(self.norms.values())[-1] if self.norms else 0.0

    @property
    def size(self) -> float:
        """A size for comparisons; infinite if any value is not finite."""
        values = [*(loss for losses in self.losses.values() for loss in losses), self.norm]
        return sum(values) if all(map(math.isfinite, values)) else math.inf

    @property
    def not_finite(self) -> list[int]:
        """Positions of micro-batches with non-finite losses, or that made the gradient non-finite."""
        bad_norms = [position for position, norm in self.norms.items() if not math.isfinite(norm)][:1]
        bad = [place for place, losses in self.losses.items() if not all(map(math.isfinite, losses))]
        return sorted({*bad, *bad_norms})


@dataclass(frozen=True, slots=True, kw_only=True)
class RerunVerdict:
    """`cause`: data (all agree), hardware (of `ranks`), or unclear. `hosts` and `devices` are the ranks'.

    `micro_batches`: positions of those that are not finite when their own rank computes them again.
    """

    cause: Literal["data", "hardware", "unclear"]
    reason: str
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    micro_batches: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compute(
    state: TrainState, context: StepContext, stage: StageData, computed: Computed, batches: Sequence[Batch]
) -> Share:
    """Compute micro-batches of the step again, on all ranks together; the model keeps its gradient."""
    learns = state.masters.learns
    held = {name: parameter.grad for name, parameter in learns.items()}
    adamw.drop_gradients(state.masters)
    losses: dict[int, list[float]] = {}
    norms: dict[int, float] = {}
    layout, routed, num_clips = context.layout, routing_now(state, stage), len(computed.plan.clip_ids)
    layout.begin_step()
    for batch in sorted(batches, key=lambda batch: batch.position):
        found = add_gradient(context, stage.stage, batch, state.step, num_clips=num_clips, routed=routed)
        losses[batch.position] = found.losses.double().cpu().tolist()
        norms[batch.position] = float(layout.local_grad_norm())
    layout.discard_gradients()
    for name, parameter in learns.items():
        parameter.grad = held[name]
    return Share(losses=losses, norms=norms)


def _first(computed: Computed, rank: int, share: Share) -> Share:
    """Return a rank's share from the step itself, which kept only the last gradient norm."""
    slots = computed.plan.slots
    losses = {
        position: computed.losses[slots[position] : slots[position] + len(again)].tolist()
        for position, again in share.losses.items()
    }
    return Share(losses=losses, norms=dict.fromkeys(list(losses)[-1:], computed.rank_norms[rank]))


def _differ(one: Share, other: Share, tolerance: float) -> bool:
    pairs = [
        pair
        for position in one.losses
        for pair in zip(one.losses[position], other.losses[position], strict=True)
    ]
    return any(not _same(a, b, tolerance) for a, b in [*pairs, (one.norm, other.norm)])


def _same(one: float, other: float, tolerance: float) -> bool:
    if math.isfinite(one) != math.isfinite(other):
        return False
    return not math.isfinite(one) or abs(one - other) <= tolerance * max(abs(one), abs(other))


def compare_reruns(
    first: Sequence[Share], own: Sequence[Share], other: Sequence[Share], tolerance: float
) -> tuple[Literal["data", "hardware", "unclear"], str, tuple[int, ...]]:
    """Return cause, reason and suspect ranks; `other[rank]` is that rank's share by the next rank."""
    size = len(own)
    unstable = tuple(rank for rank in range(size) if _differ(first[rank], own[rank], tolerance))
    if unstable and len(unstable) < size:
        others = "another rank's does not" if size == 2 else "the other ranks' do not"
        return "hardware", f"its result changes when it is computed again, {others}", unstable
    if unstable:
        return "unclear", "no rank's result stays the same when it is computed again", unstable
    accused: Counter[int] = Counter()
    for rank in range(size):
        helper = (rank + 1) % size
        if helper != rank and _differ(own[rank], other[rank], tolerance):
            accused[rank if own[rank].size > other[rank].size else helper] += 1
    if not accused:
        others = " and by another rank" if size > 1 else ""
        return "data", f"it comes out the same computed again{others}: the data, or the model", ()
    suspects = tuple(rank for rank, count in sorted(accused.items()) if count == 2)
    if suspects:
        return (
            "hardware",
            "its results, for its own clips and for another's, are not those of others",
            suspects,
        )
    return "unclear", "two ranks differ, and neither is alone with its results", tuple(sorted(accused))


def again(
    state: TrainState,
    context: StepContext,
    stage: StageData,
    computed: Computed,
    batches: Sequence[Batch],
    read: Read,
) -> RerunVerdict:
    """Compute a step again, each share on its own rank and on the next; all ranks call it together."""
    world, tolerance = context.world, guard_spec.RERUN_TOLERANCE
    own = compute(state, context, stage, computed, batches)
    other = own
    if world.size > 1:
        positions = order.shares(stage.plan, data_stages.data_step(stage, state.stage_step), world.size)
        theirs = positions[(world.rank - 1) % world.size]
        found: list[Batch] = []
        mesh.run_on_all_ranks(lambda: found.extend(read(theirs)), world)
        other = compute(state, context, stage, computed, found)
    place = (socket.gethostname(), mesh.device_name(world))
    everyone = mesh.all_gather((own, other, place), world)
    shares = [mine for mine, _, _ in everyone]
    by_next = [everyone[(rank + 1) % world.size][1] for rank in range(world.size)]
    first = [_first(computed, rank, share) for rank, share in enumerate(shares)]
    cause, reason, ranks = compare_reruns(first, shares, by_next, tolerance)
    return RerunVerdict(
        cause=cause,
        reason=reason,
        ranks=ranks,
        hosts=tuple(everyone[rank][2][0] for rank in ranks),
        devices=tuple(everyone[rank][2][1] for rank in ranks),
        micro_batches=tuple(sorted(place for share in shares for place in share.not_finite)),
    )
