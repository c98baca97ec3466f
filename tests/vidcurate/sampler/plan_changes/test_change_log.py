"""Change log: a deliberate change alters no earlier step, and every cell resumes exactly where it was."""

import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.journal_runs import SPEC, SPEC_TEXT, Clips, Run, clips
from vidcurate.errors import StateError
from vidcurate.recipe.recipe import parse
from vidcurate.sampler import order
from vidcurate.sampler.order_state import MAX_BYTES
from vidcurate.sampler.plan_changes import change_log
from vidcurate.sampler.spec import PlanSpec


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


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(4, 40), changes)
def test_nothing_of_the_past_changes_and_every_cell_finishes_what_is_unseen(
    count: int, steps: list[Step]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), clips(range(count)))
        at, reported = 0, []
        unseen: dict[str, set[str]] = {}
        for number, step in enumerate([*steps, Step(12, 0, 0, 0, None, None, None)], 1):
            end = at + step.steps
            reported += run.reported(end, at)
            live = {cell.name: set(run.names(run.plan, cell.rows.tolist())) for cell in run.plan.cells}
            with_gaps = any(change.with_gaps for change in run.changes)
            for name, batch in run.reported(end, at):
                assert len(set(batch)) == len(batch)
                assert set(batch) <= live[name]
                for clip in batch if not with_gaps else ():
                    unseen[name] = unseen.get(name) or set(live[name])
                    assert clip in unseen[name]
                    unseen[name].remove(clip)
            at = end
            shown = {name for name, _ in reported}
            made, spec = changed(run, step, number), SPEC.model_copy(update=respecified(step))
            run.resume(at, made, spec, mixed_by=step.mixed_by)
            assert run.reported(at) == reported
            for cell in run.plan.cells:
                now = set(run.names(run.plan, cell.rows.tolist()))
                if cell.name in shown:
                    unseen[cell.name] = unseen.get(cell.name, set()) & now | (
                        now - live.get(cell.name, set())
                    )
            state = run.state(at)
            assert len(state.to_json()) < MAX_BYTES
        for world in (1, 2, 3, 5):
            shares = order.shares(run.plan, at + 3, world)
            assert sorted(p for share in shares for p in share) == list(order.positions(run.plan, at + 3))
        assert [order.step_of(run.plan, p) for p in order.positions(run.plan, at + 1)] == [at + 1] * len(
            order.positions(run.plan, at + 1)
        )


def test_clips_removed_keep_their_places_through_fallbacks(tmp_path: Path) -> None:
    run = Run(tmp_path, clips(range(60)))
    undisturbed = run.reported(40)
    gone = {"clip/3", "clip/17"}
    run.resume(7, {name: clip for name, clip in run.made.items() if name not in gone}, mixed_by=1)
    assert [change.with_gaps for change in run.changes] == [False, True]
    reported = run.reported(40)
    hits = 0
    first = order.positions(run.plan, 7).start
    for number, ((cell, batch), (was_cell, was)) in enumerate(zip(reported, undisturbed, strict=True)):
        assert cell == was_cell
        kept = [clip if clip not in gone or number < first else None for clip in was]
        assert all(due in (clip, None) for clip, due in zip(batch, kept, strict=True))
        hits += kept.count(None)
        if number >= first:
            live = next(c for c in run.plan.cells if c.name == cell)
            assert set(batch) <= set(run.names(run.plan, live.rows.tolist()))
            assert len(set(batch)) == len(batch)
    assert hits > 5
    again = run.resume(21, {name: clip for name, clip in run.made.items() if name != "clip/9"})
    assert run.changes[-1].with_gaps
    assert run.reported(21) == reported[: len(run.reported(21))]
    assert not any({"clip/9", *gone} & set(batch) for _, batch in run.reported(40, 21))
    # The next change that makes a plan anew lets go of the places.
    run.resume(30, {**run.made, **clips([100])})
    assert not run.changes[-1].with_gaps
    assert all(not len(cell.resumed.missing) for cell in run.plan.cells if cell.resumed)
    assert again.num_clips == run.plan.num_clips - 1


def test_a_cell_that_would_run_short_is_made_anew_without_the_removed(tmp_path: Path) -> None:
    run = Run(tmp_path, clips(range(6)))
    assert min(len(cell.rows) for cell in run.plan.cells) == 1
    (name,) = run.names(run.plan, min(run.plan.cells, key=lambda cell: len(cell.rows)).rows.tolist())
    reported = run.reported(5)
    run.resume(5, {other: clip for other, clip in run.made.items() if other != name})
    assert not run.changes[-1].with_gaps
    assert run.reported(5) == reported
    assert not any(name in batch for _, batch in run.reported(20, 5))


@given(st.integers(0, 25), st.integers(1, 12))
@settings(max_examples=12)
def test_each_clip_added_is_shown_once_before_any_clip_of_its_cell_is_shown_again(
    at: int, added: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), clips(range(30)))
        run.resume(at, {**run.made, **clips(range(100, 100 + added))})
        shown: dict[str, list[str]] = {}
        for cell, batch in run.reported(at + 40, at):
            shown.setdefault(cell, []).extend(batch)
        for cell in run.plan.cells:
            new = {name for name in run.names(run.plan, cell.rows.tolist()) if int(name[5:]) >= 100}
            reported = shown[cell.name]
            again = next(n for n, clip in enumerate(reported) if clip in reported[:n])
            assert new <= set(reported[:again])


def test_a_cell_that_was_away_and_a_clip_that_comes_back_resume(tmp_path: Path) -> None:
    run = Run(tmp_path, clips(range(24)))
    run.resume(5, spec=SPEC.model_copy(update={"levels": (1,)}))
    run.resume(9, {name: clip for name, clip in run.made.items() if name != "clip/2"}, run.spec)
    assert not any(cell.startswith("level-2") for cell, _ in run.reported(12, 5))
    run.resume(12, clips(range(24)), SPEC)  # clip/2, of level 2, too
    shown: dict[str, list[str]] = {}
    for cell, batch in run.reported(60):
        shown.setdefault(cell, []).extend(batch)
    for cell in run.plan.cells:
        names = run.names(run.plan, cell.rows.tolist())
        assert set(names) <= set(shown[cell.name])
        if cell.name.startswith("level-2") and "clip/2" not in names:  # as if it had never been away
            for first in range(0, len(shown[cell.name]) - len(names) + 1, len(names)):
                assert sorted(shown[cell.name][first : first + len(names)]) == sorted(names)
    # A clip that a fallback clip had replaced, and which is back.
    run.resume(60, {name: clip for name, clip in run.made.items() if name != "clip/4"})
    assert run.changes[-1].with_gaps
    run.resume(66, clips(range(24)))
    assert not any("clip/4" in batch for _, batch in run.reported(66, 60))
    assert any("clip/4" in batch for _, batch in run.reported(90, 66))


def test_only_edited_content_changes_nothing_of_the_order(tmp_path: Path) -> None:
    run = Run(tmp_path, clips(range(20)))
    reported = run.reported(30)
    run.resume(4, {**run.made, "clip/2": replace(run.made["clip/2"], caption="edited")})
    assert run.reported(30) == reported
    assert [change.to_text() for change in run.changes] == ["step 4: 1 content"]
    assert [path.suffix for path in run.journal_folder.iterdir()] == [".json"]
    # A change of the clips after it begins the journal of the order.
    run.resume(9, {**run.made, **clips([50])})
    assert [change.kinds for change in run.changes] == [("begin",), ("content",), ("added",)]


def test_other_weights_leave_the_stream_of_every_cell_as_it_was(tmp_path: Path) -> None:
    run = Run(tmp_path, clips(range(40)))
    undisturbed: dict[str, list[list[str]]] = {}
    for cell, batch in run.reported(200):
        undisturbed.setdefault(cell, []).append(batch)
    run.resume(11, spec=SPEC.model_copy(update={"weights": {"1": 1.0, "2": 5.0}}))
    shown: dict[str, list[list[str]]] = {}
    for cell, batch in run.reported(50):
        shown.setdefault(cell, []).append(batch)
    for cell, batches in shown.items():
        assert batches == undisturbed[cell][: len(batches)]
    assert shown.keys() == undisturbed.keys()


def test_steps_of_a_clip_and_exposures_hold_over_changes(tmp_path: Path) -> None:
    run = Run(tmp_path, clips(range(30)))
    run.resume(6, {**run.made, **clips(range(100, 105))})
    run.resume(13, {name: clip for name, clip in run.made.items() if name not in ("clip/4", "clip/101")})
    run.resume(19, spec=SPEC.model_copy(update={"micro_batches_per_step": 2}))
    for step in range(40):
        alone = [order.micro_batch(run.plan, position) for position in order.positions(run.plan, step)]
        for one, of_step in zip(alone, order.step_micro_batches(run.plan, step), strict=True):
            assert (one.position, one.cell) == (of_step.position, of_step.cell)
            assert one.rows.tolist() == of_step.rows.tolist()  # with fallback clips for removed ones
            assert one.epochs.tolist() == of_step.epochs.tolist()
    seen: dict[str, list[int]] = {}
    last = order.positions(run.plan, 39).stop
    for position in range(last):
        for name in run.names(run.plan, order.micro_batch(run.plan, position).rows.tolist()):
            seen.setdefault(name, []).append(position)
    planned: dict[str, int] = {}
    spared = set()
    for row in range(len(run.index) + len(run.plan.gone)):
        (name,) = run.names(run.plan, [row])
        found = []
        for position in order.positions_of_row(run.plan, row):
            if position >= last:
                break
            found.append(position)
        assert set(found) <= set(seen[name])
        planned[name] = len(found)
        spared |= set(seen[name]) - set(found)
    begin, end = order.positions(run.plan, 13).start, order.positions(run.plan, 19).start
    assert all(begin <= position < end for position in spared)  # until the next plan
    for cell, (least, most) in zip(run.plan.cells, order.exposures(run.plan, 40), strict=True):
        counts = [planned[name] for name in run.names(run.plan, cell.rows.tolist())]
        assert (least, most) == (min(counts), max(counts))
    skipped = [(2, 4), (5, 8), (18, 25), (30, 31)]
    unread = [order.positions(run.plan, step) for first, behind in skipped for step in range(first, behind)]
    for row in range(len(run.index) + len(run.plan.gone)):
        (name,) = run.names(run.plan, [row])
        for position in order.positions_of_row(run.plan, row):
            if position >= last:
                break
            planned[name] -= any(position in each for each in unread)
    for cell, found in zip(run.plan.cells, order.exposures(run.plan, 40, skipped), strict=True):
        counts = [planned[name] for name in run.names(run.plan, cell.rows.tolist())]
        assert found == (min(counts), max(counts))
    reported = sum(len(order.micro_batch(run.plan, position).rows) for position in range(last))
    assert order.clips_before(run.plan, 40) == reported


def test_a_journal_that_is_missing_or_altered_is_refused(tmp_path: Path) -> None:
    run = Run(tmp_path, clips(range(20)))
    fresh = run.resume(4, {**run.made, **clips([50])})
    plan = next(change.plan_file for change in run.changes)
    for path in (run.journal_folder / f"{run.name}.json", run.journal_folder / f"{plan}.parquet"):
        data = path.read_bytes()
        path.write_bytes(data[:-3] + b"xyz")
        with pytest.raises(StateError, match="was altered after the run wrote it"):
            run.replayed(fresh)
        path.unlink()
        with pytest.raises(StateError, match="Copy the journal folder of the run that made the changes"):
            run.replayed(fresh)
        os.mkfifo(path)  # was waited for without end
        with pytest.raises(StateError, match="cannot read this file"):
            run.replayed(fresh)
        path.unlink()
        path.write_bytes(data)
    copied = tmp_path / "copied"
    change_log.copy_change_log(run.journal_folder, copied, run.name)
    assert sorted(path.name for path in copied.iterdir()) == sorted(
        path.name for path in run.journal_folder.iterdir()
    )


def test_a_plan_that_cannot_be_rebuilt_is_refused(tmp_path: Path) -> None:
    run = Run(tmp_path, clips(range(20)))
    run.spec = SPEC.model_copy(update={"micro_batches_per_step": 5})  # not what the state was saved with
    with pytest.raises(StateError, match="cannot rebuild the plan"):
        run.resume(4, {**run.made, **clips([50])})


CURRICULUM = """
    curriculum:
      - {levels: [1], steps: 4}
      - {weights: {"1": 1, "2": 3}, ramp_steps: 5, steps: 9}
      - {levels: [1, 2], ramp_steps: 3, ramp: cosine}
    blocks: {shards_per_block: 1, blocks_together: 2}
"""


def test_a_curriculum_in_blocks_of_shards_resumes_after_a_change(tmp_path: Path) -> None:
    spec = parse(SPEC_TEXT + CURRICULUM, PlanSpec)
    run = Run(tmp_path, clips(range(60)), spec=spec)
    reported = run.reported(8)
    run.resume(8, {**run.made, **clips(range(100, 120))})
    assert run.reported(8) == reported
    first = run.reported(40, 8)
    fresh = run.replayed(run.plan)
    assert [order.micro_batch(fresh, k).rows.tolist() for k in range(60)] == [
        order.micro_batch(run.plan, k).rows.tolist() for k in range(60)
    ]
    level_2 = [cell.startswith("level-2") for cell, _ in first]
    assert 0.6 < sum(level_2[: 3 * 6]) / 18 < 0.95  # steps 8 to 13: the ramp's end and three of four
    for _, batch in first:
        assert len(set(batch)) == len(batch)
