"""The kinds of plans: curricula, one bucket for a node or a step, blocks of shards; their golden orders."""

import dataclasses
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.order_plans import curricula, plan, plans, rows_of, settings_of_plans
from vidcurate import rng
from vidcurate.errors import InputError, StateError
from vidcurate.sampler import order, shard_blocks
from vidcurate.sampler import plan as sampler_plan
from vidcurate.sampler.curriculum import Phase
from vidcurate.sampler.plan import Plan
from vidcurate.sampler.plan_changes import plan_file
from vidcurate.sampler.plan_changes.transition import continue_with

CELLS = [(30, 5, 2), (90, 4, 7), (41, 4, 3), (5000, 3, 11)]
RAMP = [
    Phase(first=0, weights={"cell-00": 3, "cell-01": 1}),
    Phase(first=40, weights={"cell-01": 2, "cell-02": 5, "cell-03": 1}, ramp_turns=60, ramp="cosine"),
    Phase(first=200, weights={"cell-03": 1}),
    Phase(first=400, weights={"cell-00": 1, "cell-02": 1}, ramp_turns=200),
]

# Of algorithm version 1; a change here is a new ALGORITHM_VERSION.
GOLDEN_KINDS = {
    "ramp": ({"phases": RAMP}, "1313037082ef347f7b04aaba18731be3"),
    "one bucket per node": ({"run": 2}, "c35c79e98680d3b6dcae3627cc3178dc"),
    "one bucket per step": ({"run": 4, "phases": RAMP}, "1d32d15bb15d67ce20328a4fd66ad65a"),
    "blocks": ({"clips_per_block": 100, "blocks_together": 3}, "5ecbfee9ab8043bb1d0424b97eb00e86"),
}


@pytest.mark.parametrize("kind", GOLDEN_KINDS)
def test_the_order_of_each_kind_never_changes(kind: str) -> None:
    more, wanted = GOLDEN_KINDS[kind]
    assert sampler_plan.ALGORITHM_VERSION == 1
    golden = plan(CELLS, micro_batches_per_step=4, seed=42, **more)  # type: ignore[arg-type]
    steps = [rows_of(golden, step) for step in (*range(160), 10**9)]
    found = rng.hash_text([golden.fingerprint, *map(str, steps), str(order.shares(golden, 3, 4))])
    assert found == wanted


def test_every_kind_is_a_plan_of_its_own() -> None:
    kinds = [
        {},
        {"phases": RAMP},
        {"phases": RAMP[:3]},
        {"phases": [*RAMP[:3], dataclasses.replace(RAMP[3], ramp="cosine")]},
        {"run": 2},
        {"run": 4},
        {"clips_per_block": 100},
        {"clips_per_block": 50},
        {"clips_per_block": 100, "blocks_together": 3},
    ]
    assert len({plan(CELLS, **kind).fingerprint for kind in kinds}) == len(kinds)  # type: ignore[arg-type]


@st.composite
def two_kinds(draw: st.DrawFn) -> tuple[Plan, Plan, int]:
    """Return two plans over the same clips, of any kinds, and a step."""
    before, after = draw(settings_of_plans()), draw(settings_of_plans())
    after |= {name: before[name] for name in ("seed", "clips_per_block", "blocks_together")}
    after["cells"] = [
        (clips, draw(st.integers(1, 12)), draw(st.integers(1, 50))) for clips, _, _ in before["cells"]
    ]
    after["phases"] = draw(st.one_of(st.just(()), curricula(len(before["cells"]), after["run"])))
    return plan(**before), plan(**after), draw(st.integers(1, 25))


@settings(max_examples=20)
@given(two_kinds())
def test_a_plan_of_another_kind_resumes_at_any_step_and_repeats_nothing(case: tuple[Plan, Plan, int]) -> None:
    before, after, step = case
    one = continue_with(before, after, step)
    assert [rows_of(one, past) for past in range(step)] == [rows_of(before, past) for past in range(step)]
    shown = np.zeros(one.num_clips, dtype=int)
    for now in range(step + 20):
        for batch in order.step_micro_batches(one, now):
            assert len(set(batch.rows.tolist())) == len(batch.rows)
            shown[batch.rows] += 1
    for cell in after.cells:
        assert np.ptp(shown[cell.rows]) <= 1


def test_blocks_that_begin_or_cease_in_a_run_are_refused() -> None:
    kinds = [plan(CELLS), plan(CELLS, clips_per_block=50), plan(CELLS, clips_per_block=50, blocks_together=2)]
    for before in kinds:
        for after in kinds:
            if before is not after:
                with pytest.raises(StateError, match=r"cell-00: the run uses data\.blocks"):
                    continue_with(before, after, 3)


@settings(max_examples=15)
@given(plans)
def test_a_plan_of_any_kind_comes_back_from_its_file(one: Plan) -> None:
    hashes = rng.id_hashes([f"clip-{row}" for row in range(one.num_clips)])
    row_of = {int(word): row for row, word in enumerate(hashes)}
    with tempfile.TemporaryDirectory() as folder:
        name = plan_file.write_plan(Path(folder), one, hashes)
        back = plan_file.read_plan(Path(folder), name, lambda some: np.array([row_of[int(w)] for w in some]))
    assert back.fingerprint == one.fingerprint
    for step in (0, 3, 40, 10**6):
        assert rows_of(back, step) == rows_of(one, step)
        assert order.shares(back, step, 6) == order.shares(one, step, 6)


# ── who runs what ───────────────────────────────────────────────────────────────────────────────────────────


@given(plans, st.integers(0, 60))
def test_micro_batches_come_in_runs_of_one_cell(one: Plan, step: int) -> None:
    cells = [batch.cell for batch in order.step_micro_batches(one, step)]
    for first in range(0, len(cells), one.run):
        assert len(set(cells[first : first + one.run])) == 1


@settings(max_examples=40)
@given(st.sampled_from([1, 2, 3, 4]), st.integers(1, 6), st.integers(1, 5), st.integers(0, 30))
def test_the_ranks_of_a_node_always_run_one_shape(run: int, runs: int, nodes: int, step: int) -> None:
    one = plan(CELLS, micro_batches_per_step=run * runs, run=run)
    for costs in (None, (7, 1, 3, 90)):
        shares = order.shares(dataclasses.replace(one, costs=costs), step, run * nodes)
        for first in range(0, run * nodes, run):
            shapes = [
                [order.micro_batch(one, position).cell for position in share]
                for share in shares[first : first + run]
            ]
            assert all(shape == shapes[0] for shape in shapes)
        assert sorted(sum(shares, ())) == list(order.positions(one, step))


def test_a_step_of_one_cell_leaves_no_rank_waiting() -> None:
    one = plan(CELLS, micro_batches_per_step=12, run=12)
    for world in (1, 2, 3, 4, 6, 12):
        for step in range(20):
            shares = order.shares(one, step, world)
            assert {len(share) for share in shares} == {12 // world}
            assert len({order.cell_at(one, position)[0] for position in sum(shares, ())}) == 1


@pytest.mark.parametrize("world", [5, 7, 8, 24])
def test_ranks_that_do_not_divide_the_step_share_the_remainder(world: int) -> None:
    one = plan(CELLS, micro_batches_per_step=12, run=4)
    sizes = [len(share) for share in order.shares(one, 9, world)]
    assert sum(sizes) == 12
    assert max(sizes) - min(sizes) <= 1


def test_runs_that_do_not_fill_a_step_are_refused() -> None:
    with pytest.raises(InputError, match="micro_batches_per_step is 6; it must be a multiple of 4"):
        plan(CELLS, micro_batches_per_step=6, run=4)


# ── blocks of shards ────────────────────────────────────────────────────────────────────────────────────────

sizes = st.lists(st.sampled_from([0, 1, 2, 5, 40, 5000]), min_size=1, max_size=12).filter(any)


@settings(max_examples=60)
@given(sizes, st.integers(1, 5), st.integers(0, 2**40))
def test_a_pass_over_blocks_is_a_permutation_and_can_be_undone(
    sizes: list[int], together: int, key: int
) -> None:
    blocks = shard_blocks.Blocks(np.array(sizes), together)
    places = np.arange(sum(sizes))
    ordinals = shard_blocks.permute(blocks, key, key + 1, places)
    assert np.array_equal(np.sort(ordinals), places)
    assert np.array_equal(shard_blocks.unpermute(blocks, key, key + 1, ordinals), places)
    some = places[key % 3 :: 7]
    assert np.array_equal(shard_blocks.permute(blocks, key, key + 1, some), ordinals[some])


def test_a_pass_reads_a_few_blocks_at_a_time_and_cells_read_the_same_ones() -> None:
    cells = [(2000, 4, 1), (2000, 4, 1), (2000, 4, 1)]
    one = plan(cells, micro_batches_per_step=6)
    # Block b has the clips b·50 … of every cell, as a shard has clips of all buckets.
    blocked = [
        dataclasses.replace(cell, blocks=shard_blocks.Blocks(np.full(40, 50), 4)) for cell in one.cells
    ]
    one = sampler_plan.make_plan(blocked, seed=3, micro_batches_per_step=6)
    place = np.empty(6000, dtype=int)
    for cell in one.cells:
        place[cell.rows] = np.arange(2000) // 50
    read = [
        {int(b) for batch in order.step_micro_batches(one, step) for b in place[batch.rows]}
        for step in range(500)
    ]
    for first in range(0, 240, 10):
        assert len(set().union(*read[first : first + 10])) <= 12  # of 40: a group of 4 and its neighbours
    passes = [set().union(*read[first : first + 250]) for first in (0, 250)]
    assert passes == [set(range(40))] * 2
    assert read[:250] != read[250:]  # another order in another pass


def test_blocks_resume_without_clips_and_with_new_ones() -> None:
    blocks = shard_blocks.Blocks(np.array([4, 0, 3, 5]), 2)
    changed = blocks.changed(np.array([0, 3, 4, 11]), 12)
    assert changed.sizes.tolist() == [2, 0, 2, 4, 4, 4, 4]
    assert blocks.changed(np.array([], dtype=int), 0).sizes.tolist() == [4, 0, 3, 5]
