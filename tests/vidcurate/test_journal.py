"""After a deliberate change the past is what it was, and every cell goes on exactly where it stood."""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.journal_runs import SPEC, Clips, Run, clips
from vidcurate import order
from vidcurate.loader_state import MAX_BYTES


@dataclass(frozen=True)
class Step:
    """One change after so many more steps: clips added, removed, edited; the recipe and the shards, too."""

    steps: int
    added: int
    removed: int
    edited: int
    per_step: int | None
    size: int | None
    mixed_by: int | None


changes = st.lists(
    st.builds(
        Step,
        steps=st.integers(0, 14),
        added=st.sampled_from([0, 0, 1, 5, 19]),
        removed=st.sampled_from([0, 0, 1, 4]),
        edited=st.sampled_from([0, 0, 2]),
        per_step=st.sampled_from([None, None, 1, 4]),
        size=st.sampled_from([None, None, 1, 4]),
        mixed_by=st.sampled_from([None, 1, 2]),
    ),
    min_size=1,
    max_size=4,
)


def changed(run: Run, step: Step, number: int) -> Clips:
    """Return the clips after a change; those that go are chosen by its number."""
    random = Random(number)
    made = dict(run.made)
    for name in random.sample(list(made), min(step.removed, len(made) - 1)):
        del made[name]
    for name in random.sample(list(made), min(step.edited, len(made))):
        made[name] = replace(made[name], caption=f"edited {number}")
    return {**made, **clips(range(1000 * number, 1000 * number + step.added))}


def respecified(step: Step) -> dict[str, object]:
    more: dict[str, object] = {}
    if step.per_step:
        more["micro_batches_per_step"] = step.per_step
    if step.size:
        table = {"32px": {"4": (1.0, step.size), "8": ((1.0, 0.6), 2)}}
        more["buckets"] = SPEC.buckets.model_copy(update={"table": table})
    return more


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(4, 40), changes)
def test_nothing_of_the_past_changes_and_every_cell_finishes_what_is_unseen(
    count: int, steps: list[Step]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), clips(range(count)))
        at, told = 0, []
        unseen: dict[str, set[str]] = {}
        for number, step in enumerate([*steps, Step(12, 0, 0, 0, None, None, None)], 1):
            end = at + step.steps
            told += run.told(end, at)
            live = {cell.name: set(run.names(run.plan, cell.rows.tolist())) for cell in run.plan.cells}
            with_gaps = any(change.with_gaps for change in run.changes)
            for name, batch in run.told(end, at):
                assert len(set(batch)) == len(batch)
                assert set(batch) <= live[name]
                for clip in batch if not with_gaps else ():
                    unseen[name] = unseen.get(name) or set(live[name])
                    assert clip in unseen[name]
                    unseen[name].remove(clip)
            at = end
            shown = {name for name, _ in told}
            made, spec = changed(run, step, number), SPEC.model_copy(update=respecified(step))
            run.go_on(at, made, spec, mixed_by=step.mixed_by)
            assert run.told(at) == told
            for cell in run.plan.cells:
                now = set(run.names(run.plan, cell.rows.tolist()))
                if cell.name in shown:
                    unseen[cell.name] = unseen.get(cell.name, set()) & now | (
                        now - live.get(cell.name, set())
                    )
            state = run.state(at)
            assert len(state.as_json()) < MAX_BYTES
        for world in (1, 2, 3, 5):
            shares = order.shares(run.plan, at + 3, world)
            assert sorted(p for share in shares for p in share) == list(order.positions(run.plan, at + 3))
        assert [order.step_of(run.plan, p) for p in order.positions(run.plan, at + 1)] == [at + 1] * len(
            order.positions(run.plan, at + 1)
        )
