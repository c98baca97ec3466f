"""Guard decisions: choose an action from the findings, within policy limits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainer.cli import exit_codes
from trainer.recipe.guard_spec import CHOICES, FIRMNESS, GuardSpec, Kind, Policy
from trainer.training.guard.detect import Problem
from trainer.training.guard.history import GuardState
from vidcurate.errors import VidcurateError


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The action taken about a step: `policy` is the recipe's, `action` what its limits leave of it."""

    action: Policy
    policy: Policy
    found: Problem
    others: tuple[Problem, ...] = ()


class Halted(VidcurateError):
    """The guard stopped the run. A restart would stop the same way: a person has to look."""

    exit_code = exit_codes.HALT


class BadNode(VidcurateError):
    """A rank computed wrong results: restart without its node."""

    exit_code = exit_codes.BAD_NODE


class LostRank(VidcurateError):
    """Another rank computed wrong results; this one is healthy and can restart."""

    exit_code = exit_codes.RESTART


class RollbackRequested(Exception):
    """Request to roll back, raised on all ranks in step `step`; not an error, the training continues.

    `facts` are written with the event.
    """

    def __init__(self, decision: Decision, step: int, facts: dict[str, Any]) -> None:
        super().__init__(decision.found.reason)
        self.decision, self.step, self.facts = decision, step, facts


def stricter(kind: Kind, policy: Policy) -> Policy:
    """Return the next stricter action for a kind of finding; the strictest stays."""
    choices = CHOICES[kind]
    return choices[min(choices.index(policy) + 1, len(choices) - 1)]


def action_for(kind: Kind, spec: GuardSpec, state: GuardState) -> Policy:
    """Return the action for a kind of finding: its policy, or a stricter one once its limit is used up."""
    action = spec.policy(kind)
    while (most := spec.most(action)) is not None and state.used(action) >= most:
        if (harder := stricter(kind, action)) == action:
            break
        action = harder
    return action


def decide(found: Sequence[Problem], spec: GuardSpec, state: GuardState) -> Decision | None:
    """Return the strictest action that the findings ask for; None if none asks for any."""
    asked = [(action_for(each.kind, spec, state), each) for each in found]
    reported = [(action, each) for action, each in asked if action != "ignore"]
    if not reported:
        return None
    action, chosen = max(reported, key=lambda pair: FIRMNESS.index(pair[0]))
    others = tuple(each for _, each in reported if each is not chosen)
    return Decision(action=action, policy=spec.policy(chosen.kind), found=chosen, others=others)
