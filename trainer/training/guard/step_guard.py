"""Guard in the training loop: check each step before its update, and act.

All ranks check the same values and decide alike. Rank 0 writes each decision as one `guard` event and one
console line. `detect` and `decide` hold the checks, `rerun_step` computes a step again, `rollback` restores a
checkpoint.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainer.data import stages as data_stages
from trainer.data.model_inputs import Batch
from trainer.data.stages import StageData
from trainer.recipe import guard_spec
from trainer.run_folder import jsonl, metrics
from trainer.training import log as training_log
from trainer.training.guard import bad_clips, detect, rerun_step
from trainer.training.guard.decide import BadNode, Decision, Halted, LostRank, RollbackRequested, decide
from trainer.training.guard.detect import Problem
from trainer.training.guard.history import StepStats
from trainer.training.guard.rerun_step import Read, RerunVerdict
from trainer.training.micro_batch import StepContext
from trainer.training.optim import schedule
from trainer.training.state import TrainState
from trainer.training.step import Computed
from vidcurate.sampler import order

NAMED_CLIPS = 16  # in an event
COMPUTED_AGAIN = ("nonfinite", "spike", "gradient")
DONE = {
    "warn": "the run continues",
    "skip": "the guard skips the update",
    "scale_lr": "the guard scales the learning rate",
    "rollback": "the run rolls back",
    "drain": "the run ends; restart without that node",
    "stop": "the run stops; nothing of this step is saved",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGuard:
    """The guard of one stage. `read` reads micro-batches by position, for a rerun."""

    state: TrainState
    context: StepContext
    stage: StageData
    read: Read

    def check(self, computed: Computed, batches: Sequence[Batch]) -> bool:
        """Return whether to make the update. Raises RollbackRequested, Halted, BadNode, LostRank."""
        state, spec = self.state, self.context.recipe.guard
        memory = state.guard.memory
        stats = StepStats(
            step=state.step + 1,
            losses=computed.losses,
            buckets=computed.plan.buckets,
            bins=metrics.timestep_bins(computed.timesteps),
            grad_norm=computed.grad_norm,
            rank_norms=computed.rank_norms,
        )
        found = [*detect.find_problems(memory, stats, spec.thresholds), *self._learning_rate()]
        decision = decide(found, spec, state.guard)
        verdict: RerunVerdict | None = None
        if decision is not None:
            if any(each.kind in COMPUTED_AGAIN for each in (decision.found, *decision.others)):
                self.context.pulse.phase("rerun")  # a rerun takes several times as long as the step
                verdict = rerun_step.again(state, self.context, self.stage, computed, batches, self.read)
                decision = self._with_hardware(decision, verdict, stats.step)
            self._act(decision, verdict, computed)
            if decision.action == "skip":
                memory.loud.append((stats.step, spec.thresholds.spike_z))
                return False
        detect.update_history(memory, stats, found, spec.thresholds)
        return True

    def check_weights(self, line: dict[str, Any]) -> None:
        """Check the weights' norm, if the step's line has one. Raises what `check` raises."""
        if "weight_norm" not in line:
            return
        memory, spec = self.state.guard.memory, self.context.recipe.guard
        found = detect.weight_norm(memory, self.state.step, line["weight_norm"], spec.thresholds)
        decision = decide([found], spec, self.state.guard) if found else None
        if decision is not None:
            self._act(decision, None, None)
        detect.update_weight_history(memory, self.state.step, line["weight_norm"])

    def _learning_rate(self) -> list[Problem]:
        """Compare the last update's learning rate with the current schedule."""
        state, stage = self.state, self.stage
        if state.stage_step == 0:
            return []
        due = schedule.learning_rate(stage.stage.optim, state.stage_step - 1, stage.num_steps)
        found = detect.learning_rate(state.step + 1, state.lr, due * state.guard.factor(state.step))
        return [found] if found else []

    def _with_hardware(self, decision: Decision, verdict: RerunVerdict, step: int) -> Decision:
        """Return the decision, or a hardware decision if the rerun blames a device."""
        if verdict.cause != "hardware":
            return decision
        who = ", ".join(
            f"rank {rank} ({host}, {device})"
            for rank, host, device in zip(verdict.ranks, verdict.hosts, verdict.devices, strict=True)
        )
        found = Problem(
            kind="hardware",
            reason=f"{decision.found.reason}; {who}: {verdict.reason}",
            first_step=step,
            figures=decision.found.figures,
            clips=decision.found.clips,
        )
        if self.context.recipe.watch.on_hardware == "warn":
            return replace(decision, found=replace(decision.found, reason=found.reason))
        others = (decision.found, *decision.others)
        return Decision(action="drain", policy="drain", found=found, others=others)

    def _act(self, decision: Decision, verdict: RerunVerdict | None, computed: Computed | None) -> None:
        """Record a decision and carry it out; `rollback` records a rollback once its target is known."""
        state, context, action = self.state, self.context, decision.action
        # Before the update the guard checks the coming step, after the update the last one.
        step = state.step if computed is None else state.step + 1
        facts = self._facts(decision, verdict, computed)
        if action == "rollback":
            raise RollbackRequested(decision, step, facts)
        if action == "scale_lr":
            first, last = state.step + 1, state.step + guard_spec.LR_STEPS
            facts["lr_factor"], facts["lr_steps"] = guard_spec.LR_FACTOR, [first, last]
            state.guard.scales += ((first, last, guard_spec.LR_FACTOR),)
        state.guard.counts[action] = state.guard.counts.get(action, 0) + 1
        record(decision, step, facts, context)
        kept = "the update is not saved" if computed is None else "no weight was updated"
        text = f"step {step}: {decision.found.reason}; {kept}. {_of_clips(facts['clip_ids'])}"
        if action == "stop":
            raise Halted(
                f"{text} The guard stops the run. To choose another action, set guard.{decision.found.kind}."
            )
        if action == "drain":
            assert verdict is not None
            is_it = context.world.rank in verdict.ranks
            raise (BadNode if is_it else LostRank)(f"{text} Restart without {', '.join(verdict.hosts)}.")

    def _facts(
        self, decision: Decision, verdict: RerunVerdict | None, computed: Computed | None
    ) -> dict[str, Any]:
        """Return the event's facts: statistics, position and clips of the step."""
        state, stage = self.state, self.stage
        number = state.stage_step - (computed is None)  # from 0
        clips: list[str] = []
        if computed is not None:
            clips = [
                computed.plan.clip_ids[place] for place in self._places(decision.found, verdict, computed)
            ]
        return {
            "stage": stage.stage.name,
            "stage_step": number + 1,
            "data_step": data_stages.data_step(stage, number) + 1,
            "figures": decision.found.figures,
            "clip_ids": clips,
            "num_clips": len(clips),
            "others": [{"finding": each.kind, "reason": each.reason} for each in decision.others],
            "verdict": verdict.to_json() if verdict else None,
        }

    def _places(self, found: Problem, verdict: RerunVerdict | None, computed: Computed) -> Sequence[int]:
        """Return the positions of the clips concerned: those found, else those of non-finite micro-batches or
        ranks."""
        if found.clips:
            return found.clips
        plan = self.stage.plan
        size, step = self.context.world.size, data_stages.data_step(self.stage, self.state.stage_step)
        positions = list(verdict.micro_batches) if verdict else []
        if not positions:
            shares = order.shares(plan, step, size)
            bad = [rank for rank, norm in enumerate(computed.rank_norms) if not math.isfinite(norm)]
            positions = [position for rank in bad for position in shares[rank]]
        first = {slot: position for position, slot in computed.plan.slots.items()}
        places, position = [], -1
        for place in range(len(computed.plan.clip_ids)):
            position = first.get(place, position)
            if not positions or position in positions:
                places.append(place)
        return places


def record(decision: Decision, step: int, facts: dict[str, Any], context: StepContext) -> None:
    """Write the decision to events.jsonl and print it."""
    found = decision.found
    if context.world.is_first:
        jsonl.record_event(
            context.recipe.output,
            "guard",
            step,
            action=decision.action,
            finding=found.kind,
            shape=found.shape or None,
            reason=found.reason,
            policy=decision.policy,
            first_step=found.first_step,
            **facts | {"clip_ids": facts["clip_ids"][:NAMED_CLIPS]},
        )
        bad_clips.append(context.recipe.output, step, found.kind, found.reason, facts)
    done = DONE[decision.action]
    training_log.print_line(context.world, f"guard: step {step}: {found.reason} → {decision.action}: {done}")


def stop_instead(decision: Decision, why: str) -> Decision:
    """Return the decision to stop, for an action that cannot be carried out."""
    found = replace(decision.found, reason=f"{decision.found.reason}; {why}")
    return replace(decision, action="stop", found=found)


def _of_clips(ids: Sequence[str]) -> str:
    if not ids:
        return ""
    return f"Its clips: {', '.join(ids[:8])}{', …' * (len(ids) > 8)}."
