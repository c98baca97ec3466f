"""Training step: from a rank's micro-batches to updated weights and metrics.

What a micro-batch adds is `trainer.training.micro_batch`'s. The step's loss is the mean over its clips on all
ranks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.data import stages as data_stages
from trainer.data.model_inputs import Batch
from trainer.data.stages import StageData, StepPlan
from trainer.distributed import mesh
from trainer.health.watch import throughput
from trainer.health.watch.throughput import OwnSeconds, Stopwatch
from trainer.model import flops, routing
from trainer.model.routing import RoutingSpec
from trainer.run_folder import metrics
from trainer.training import micro_batch, step_balance
from trainer.training.guard.decide import Halted
from trainer.training.micro_batch import StepContext
from trainer.training.optim import adamw, schedule
from trainer.training.state import TrainState
from trainer.training.step_balance import Prediction
from vidcurate.sampler import order

NAMED_CLIPS = 8  # in an error message


def routing_now(state: TrainState, stage: StageData) -> RoutingSpec | None:
    """Return the routing of the next update; None computes dense."""
    return routing.at_step(stage.stage.routing, state.stage_step, stage.num_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSync:
    """Values reduced over all ranks in one step.

    `stop`: a rank has to stop. `save_failed`: a rank could not write a checkpoint in the background.
    `num_events`: number of pending loader events. `own`: each rank's own seconds in the step.
    """

    stop: bool
    save_failed: bool
    num_events: int
    own: tuple[OwnSeconds, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """A step before its update: values of its n clips, equal on all ranks; the model holds the gradient.

    `losses`, `timesteps`, `text_tokens` and `seconds` are [n]; `seconds` is the time of a clip's micro-batch.
    `predicted` is the step's cost by the plan; `delivered` the ids of the clips that were read. `grad_norm`
    is the norm of the gradient, which the update clips, `rank_norms` that of each rank's own gradient, before
    the sum.
    """

    plan: StepPlan
    losses: NDArray[np.float64]
    timesteps: NDArray[np.float64]
    text_tokens: NDArray[np.float64]
    seconds: NDArray[np.float64]
    predicted: Prediction
    delivered: tuple[str, ...]
    grad_norm: float
    rank_norms: tuple[float, ...]
    reported: StepSync

    @property
    def loss(self) -> float:
        """The step's loss: the mean over its clips."""
        return metrics.mean(self.losses)


# Checks a step before its update: True to make the update, False to skip it; may raise.
Check = Callable[[Computed], bool]


def gradient(
    state: TrainState,
    context: StepContext,
    stage: StageData,
    plan: StepPlan,
    batches: Sequence[Batch],
    *,
    stop: bool = False,
    save_failed: bool = False,
    num_events: int = 0,
    data_seconds: float = 0.0,
) -> Computed:
    """Compute the gradient of the mean loss over all `plan.clip_ids`; the model holds it.

    `batches` are this rank's. Raises VidcurateError if no rank delivered a clip of the step.
    """
    world = context.world
    num_clips = len(plan.clip_ids)
    # Each rank fills in its clips, zeros elsewhere, so the sum over ranks is exact.
    reported = torch.zeros(5 * num_clips + 5 * world.size + 3, dtype=torch.float64)
    of_clips, of_ranks = (
        reported[: 5 * num_clips].view(num_clips, 5),
        reported[5 * num_clips : -3].view(-1, 5),
    )
    reported[-3:] = torch.tensor([stop, save_failed, num_events], dtype=torch.float64)
    done: list[tuple[int, Tensor, Tensor, Tensor, Tensor]] = []
    adamw.drop_gradients(state.masters)
    context.layout.begin_step()
    context.pulse.phase("forward_backward")
    stopwatch, routed = Stopwatch(world), routing_now(state, stage)
    for batch in sorted(batches, key=lambda batch: batch.position):
        with micro_batch.memory_named(context, batch):
            found = micro_batch.add_gradient(
                context, stage.stage, batch, state.step, num_clips=num_clips, routed=routed
            )
        first = plan.slots[batch.position]
        rows = torch.tensor(data_stages.rows_delivered(stage, plan, first, batch.clip_ids)) + 1
        done.append((first, rows, found.losses, found.timesteps, found.text_tokens))
        stopwatch.mark()
    own_norm = (
        context.layout.local_grad_norm() if world.size > 1 else None
    )  # with one rank it equals the norm of the sum
    context.pulse.phase("update")  # from here on the ranks wait for each other
    context.layout.reduce_gradients()
    predicted = step_balance.predict(stage, state.stage_step, world.size)  # computed while the GPU works
    norm = adamw.gradient_norm(state.masters)  # the first call that waits for the GPU
    seconds = stopwatch.seconds()
    for (first, *columns), lasted in zip(done, seconds, strict=True):
        mine = of_clips[first : first + len(columns[0])]
        mine[:, :4] = torch.stack([c.double().cpu() for c in columns], dim=1)
        mine[:, 4] = lasted
    own = [data_seconds, sum(seconds), _own_flops(context, plan, of_clips, routed)]
    norms_here = [norm if own_norm is None else float(own_norm), norm]
    of_ranks[world.rank] = torch.tensor([*norms_here, *own], dtype=torch.float64)
    reported = mesh.sum_over_ranks(reported, world).cpu()
    own_norms, norms, *own_seconds = reported[5 * num_clips : -3].view(-1, 5).T.tolist()
    rows_of_all, losses, timesteps, text_tokens, took = reported[: 5 * num_clips].view(num_clips, 5).T.numpy()
    return Computed(
        plan=plan,
        losses=losses,
        timesteps=timesteps,
        text_tokens=text_tokens,
        seconds=took,
        predicted=predicted,
        delivered=data_stages.delivered(stage, plan, rows_of_all.astype(int) - 1, state.step + 1),
        grad_norm=norms[0],  # rank 0's on all ranks: every rank must decide alike
        rank_norms=tuple(own_norms),
        reported=StepSync(
            stop=bool(reported[-3]),
            save_failed=bool(reported[-2]),
            num_events=int(reported[-1]),
            own=tuple(map(OwnSeconds, *own_seconds)),
        ),
    )


def refuse_nonfinite(computed: Computed, step: int) -> bool:
    """Return True for a finite step; raise Halted otherwise, naming some of its clips."""
    if np.isfinite([*computed.losses, computed.grad_norm]).all():
        return True
    ids = computed.plan.clip_ids
    raise Halted(
        f"step {step}: the loss is {computed.loss} and the gradient's norm {computed.grad_norm}; nothing was "
        f"updated. Its clips: {', '.join(ids[:NAMED_CLIPS])}{', …' * (len(ids) > NAMED_CLIPS)}"
    )


def train_step(
    state: TrainState,
    context: StepContext,
    stage: StageData,
    plan: StepPlan,
    batches: Sequence[Batch],
    *,
    check: Check | None = None,
    stop: bool = False,
    save_failed: bool = False,
    num_events: int = 0,
    data_seconds: float = 0.0,
) -> tuple[dict[str, Any], StepSync]:
    """Make one update; return its metrics and the values reduced over all ranks.

    `check` decides about the gradient before the update; without `check`, a non-finite loss or gradient
    raises Halted. Whatever `check` and `gradient` raise leaves weights and counters unchanged. The last four
    arguments are this rank's contribution to the StepSync.
    """
    flags: dict[str, Any] = {"stop": stop, "save_failed": save_failed, "num_events": num_events}
    flags["data_seconds"] = data_seconds
    computed = gradient(state, context, stage, plan, batches, **flags)
    is_made = check(computed) if check else refuse_nonfinite(computed, state.step + 1)
    return update(state, context, stage, computed, is_made=is_made), computed.reported


def update(
    state: TrainState, context: StepContext, stage: StageData, computed: Computed, *, is_made: bool = True
) -> dict[str, Any]:
    """Update weights, optimizer and EMA from the model's gradient; return the step's metrics.

    With `is_made` False they stay unchanged, but the step counts.
    """
    plan, spec, routed = computed.plan, stage.stage.optim, routing_now(state, stage)
    lr = schedule.learning_rate(spec, state.stage_step, stage.num_steps)
    lr *= state.guard.factor(state.step + 1)
    if is_made:
        clip_factor = adamw.clip_factor(computed.grad_norm, spec.grad_clip)
        decay = context.recipe.ema_decay
        adamw.update(state.masters, spec, lr=lr, ema_decay=decay, clip_factor=clip_factor)
        state.ema_updates += 1
        if state.power_averages:
            state.power_averages.update(state.masters.learns, state.ema_updates)
    else:
        adamw.drop_gradients(state.masters)

    state.step, state.stage_step, state.lr = state.step + 1, state.stage_step + 1, lr
    state.clips_hash = order.rolling_hash(state.clips_hash, plan.clip_ids)
    state.delivered_hash = order.rolling_hash(state.delivered_hash, computed.delivered)
    losses = computed.losses
    return {
        "step": state.step,
        "stage": stage.stage.name,
        "stage_step": state.stage_step,
        "loss": computed.loss,
        "loss_by_bucket": metrics.mean_by(losses, plan.buckets),
        "loss_by_level": metrics.mean_by(losses, plan.levels),
        "loss_by_source": metrics.mean_by(losses, plan.sources),
        "loss_by_timestep": metrics.mean_by(losses, metrics.timestep_bins(computed.timesteps)),
        "grad_norm": computed.grad_norm,
        "lr": lr,
        "clips": len(plan.clip_ids),
        "tokens": plan.num_tokens,
        "model_flops": flops.flops_per_step(
            context.recipe.model, plan.latent_shapes, computed.text_tokens.astype(int).tolist(), routed
        ),
        "clips_hash": state.clips_hash,
        "delivered_hash": state.delivered_hash,
        **step_balance.step_metrics(computed.predicted, plan, computed.seconds, computed.reported.own),
        **(
            {"rank_seconds": throughput.rank_seconds(computed.reported.own)} if context.world.size > 1 else {}
        ),
        **({} if is_made else {"skipped": True}),
    }


def _own_flops(context: StepContext, plan: StepPlan, of_clips: Tensor, routed: RoutingSpec | None) -> float:
    """Return the FLOPs of this rank's clips: those whose row has a non-zero first entry."""
    mine = [number for number, row in enumerate(of_clips[:, 0].tolist()) if row]
    tokens = of_clips[:, 3].tolist()
    shapes = [plan.latent_shapes[number] for number in mine]
    read = [int(tokens[number]) for number in mine]
    return float(flops.flops_per_step(context.recipe.model, shapes, read, routed))
