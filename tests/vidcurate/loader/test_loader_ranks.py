"""Ranks, workers, resumed and resharded runs read the clips that one process reads."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.loader_runs import (
    clips,
    plan_of,
    read,
    reported,
    spec,
    tasks_of,
    videos,
    write_shards,
)
from vidcurate.errors import InputError
from vidcurate.loader.loader import Loader
from vidcurate.sampler import order
from vidcurate.sampler.order_state import LoaderState, check_state, state_of
from vidcurate.sampler.plan import Plan
from vidcurate.shards.index import Index


@pytest.mark.parametrize("num_workers", [1, 4])
def test_workers_and_prefetching_change_nothing(
    opened: Index, plan: Plan, undisturbed: dict[int, Any], num_workers: int
) -> None:
    assert read(opened, plan, range(6), num_workers=num_workers) == undisturbed
    assert read(opened, plan, range(2), num_workers=num_workers, prefetch_bytes=0) == {
        step: undisturbed[step] for step in range(2)
    }


@pytest.fixture(scope="module")
def wide(opened: Index) -> tuple[Plan, dict[int, list[tuple[Any, ...]]]]:
    """Steps of twelve micro-batches, and what one rank without workers reads in the first two."""
    made = plan_of(opened, micro_batches_per_step=12)
    return made, read(opened, made, range(2))


@pytest.mark.parametrize(
    ("world_size", "num_workers"), [(2, 1), (2, 0), (3, 0), (5, 0), (8, 0), (12, 0), (64, 0)]
)
def test_ranks_together_read_the_step(
    opened: Index, wide: tuple[Plan, dict[int, Any]], world_size: int, num_workers: int
) -> None:
    found = read(opened, wide[0], range(2), world_size=world_size, num_workers=num_workers)
    assert found == wide[1]


@given(
    world_size=st.sampled_from((1, 2, 3, 5, 8, 12, 64)) | st.integers(1, 200),
    per_step=st.integers(1, 48),
    step=st.integers(0, 10**12),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=25, deadline=None)
def test_the_tasks_of_all_ranks_are_those_of_one(
    opened: Index, world_size: int, per_step: int, step: int, seed: int
) -> None:
    """Each clip, start frame, caption and size, at any step: what workers are given is all that they read."""
    made = plan_of(opened, micro_batches_per_step=per_step, seed=seed)
    alone = tasks_of(opened, made, step, 1)
    assert [position for position, _ in alone] == list(range(step * per_step, (step + 1) * per_step))
    assert tasks_of(opened, made, step, world_size) == alone


def test_every_step_of_a_plan_can_be_resumed_at(opened: Index, plan: Plan) -> None:
    steps = range(3 * order.steps_for_epochs(plan, 1))
    whole = read(opened, plan, steps)
    for step in steps:
        saved = LoaderState.from_json(state_of(opened, plan, step).to_json())
        again = plan_of(opened)
        check_state(saved, opened, again)
        for world_size in (1, 3):
            assert read(opened, again, [saved.step], world_size=world_size) == {step: whole[step]}
            for later in (step + 1, step + 2):
                assert tasks_of(opened, again, later, world_size) == tasks_of(opened, plan, later, 1)


def test_any_step_may_be_asked_for_in_any_order(
    opened: Index, plan: Plan, undisturbed: dict[int, Any]
) -> None:
    with Loader(opened, plan, spec(num_workers=2)) as loader:
        for step in (3, 3, 0, 5, 1, 4, 3, 2):
            assert sorted(map(reported, loader.step(step))) == undisturbed[step]


def test_a_rank_without_a_micro_batch_gets_an_empty_list(opened: Index, plan: Plan) -> None:
    with Loader(opened, plan, spec(num_workers=1), rank=8, world_size=9) as loader:
        assert [loader.step(step) for step in range(3)] == [[], [], []]
    with pytest.raises(InputError, match="rank 2 of 2"):
        Loader(opened, plan, spec(), rank=2, world_size=2)


def test_resharded_and_moved_clips_are_read_as_before(
    folder: Path, opened: Index, plan: Plan, undisturbed: dict[int, Any]
) -> None:
    facts = clips()[::-1]
    payloads = {name: path.read_bytes() for name, path in videos(folder / "videos", facts).items()}
    moved = write_shards(folder / "moved" / "shards", facts, payloads, per_shard=5)
    other = plan_of(moved)
    check_state(state_of(opened, plan, 3), moved, other)
    assert read(moved, other, range(6)) == undisturbed


def test_evaluation_reads_every_clip_of_its_fold_once(opened: Index) -> None:
    held_out = plan_of(opened, fold="validation")
    seen: list[str] = []
    for rank in range(2):
        with Loader(opened, held_out, spec(num_workers=1)) as loader:
            for part in order.one_epoch(held_out, rank, 2):
                (batch,) = loader.load([part])
                assert len(batch.clip_ids) == len(batch.frames) == len(part.rows)
                seen += batch.clip_ids
    assert sorted(seen) == ["clip/11.0", "clip/23.0"]
