"""The order is exact, even, random and a function of (plan, position) alone."""

from collections.abc import Iterable
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.call_count import calls_of
from tests.order_plans import bucket, plan, plans, rows_of, settings_of_plans, stream
from vidcurate import rng as vidcurate_rng
from vidcurate.errors import InputError
from vidcurate.sampler import order
from vidcurate.sampler import plan as sampler_plan
from vidcurate.sampler.plan import MicroBatchPlan, Plan

WORLDS = (1, 2, 3, 5, 8, 12, 64)

# (clips, micro-batch size, weight): from fewer clips than a micro-batch holds to many times as many.
cells = st.lists(
    st.tuples(st.integers(1, 60), st.integers(1, 12), st.integers(1, 1000)), min_size=1, max_size=6
)


# ── the golden order: a change here is a new ALGORITHM_VERSION ──────────────────────────────────────────────

GOLDEN_CELLS = [(3, 5, 2), (10, 4, 7), (7, 4, 3), (5000, 3, 11)]
GOLDEN_STEP_0 = [(0, [7, 12, 6, 3]), (1, [2231, 4986, 4905]), (2, [13, 17, 15, 19]), (3, [3607, 3942, 145])]
GOLDEN_STEP_BILLION = [
    (4000000000, [989, 4867, 2603]),
    (4000000001, [13, 18, 14, 15]),
    (4000000002, [1978, 3945, 1358]),
    (4000000003, [11, 7, 10, 6]),
]
GOLDEN_500_STEPS = "4ebcacd1bad2e532b0931407bcc70b2e"
GOLDEN_SHARES = ((12,), (14,), (13, 15))
GOLDEN_FALLBACKS = [4732, 689, 2643, 3950, 3570]
GOLDEN_SLOT_SEED = 11480818216416551618
GOLDEN_FINGERPRINT = "7d669a5e0461a3e56ff93097eb274302"


def test_the_order_of_algorithm_version_1_never_changes() -> None:
    assert sampler_plan.ALGORITHM_VERSION == 1
    golden = plan(GOLDEN_CELLS, micro_batches_per_step=4, seed=42)
    assert rows_of(golden, 0) == GOLDEN_STEP_0
    assert rows_of(golden, 10**9) == GOLDEN_STEP_BILLION
    assert vidcurate_rng.hash_text([str(rows_of(golden, step)) for step in range(500)]) == GOLDEN_500_STEPS
    assert order.shares(golden, 3, 3) == GOLDEN_SHARES
    assert [
        row
        for row, _ in zip(
            order.fallback_clips(golden, order.micro_batch(golden, 5), 1), range(5), strict=False
        )
    ] == (GOLDEN_FALLBACKS)
    assert order.slot_seed(42, 5, 1, "noise") == GOLDEN_SLOT_SEED
    assert golden.fingerprint == GOLDEN_FINGERPRINT


# ── exact ───────────────────────────────────────────────────────────────────────────────────────────────────


@given(plans)
def test_every_clip_is_read_once_per_epoch_and_never_twice_in_a_micro_batch(one: Plan) -> None:
    streams: dict[int, list[int]] = {number: [] for number in range(len(one.cells))}
    for position in range(120):
        batch = order.micro_batch(one, position)
        assert len(set(batch.rows.tolist())) == len(batch.rows) == one.cells[batch.cell].micro_batch_size
        streams[batch.cell] += batch.rows.tolist()
    for number, rows in streams.items():
        clips = sorted(one.cells[number].rows.tolist())
        for first in range(0, len(rows) - len(clips) + 1, len(clips)):
            assert sorted(rows[first : first + len(clips)]) == clips
        rest = rows[len(rows) - len(rows) % len(clips) :]
        assert len(set(rest)) == len(rest)


def plainly(batches: Iterable[MicroBatchPlan]) -> list[tuple[int, int, list[int], list[int]]]:
    return [(b.position, b.cell, b.rows.tolist(), b.epochs.tolist()) for b in batches]


@given(plans, st.integers(0, 10**6))
def test_the_micro_batches_of_a_step_are_those_of_its_positions(one: Plan, step: int) -> None:
    alone = [order.micro_batch(one, position) for position in order.positions(one, step)]
    assert plainly(order.step_micro_batches(one, step)) == plainly(alone)


@given(plans, st.integers(0, 200))
def test_exposures_within_a_cell_differ_by_at_most_one(one: Plan, steps: int) -> None:
    shown = np.zeros(one.num_clips, dtype=int)
    for step in range(steps % 25):
        for batch in order.step_micro_batches(one, step):
            shown[batch.rows] += 1
    for cell, (least, most) in zip(one.cells, order.exposures(one, steps % 25), strict=True):
        counts = shown[cell.rows]
        assert (counts.min(), counts.max()) == (least, most)
        assert most - least <= 1


@given(plans, st.integers(0, 6), st.integers(0, 6), st.integers(0, 6))
def test_exposures_leave_out_the_windows_of_steps_that_are_skipped(
    one: Plan, first: int, length: int, apart: int
) -> None:
    skipped = [(first, first + length), (first + length + apart, first + length + apart + 2)]
    end = first + length + apart + 5
    shown = np.zeros(one.num_clips, dtype=int)
    for step in range(end):
        if not any(begin <= step < behind for begin, behind in skipped):
            for batch in order.step_micro_batches(one, step):
                shown[batch.rows] += 1
    for cell, found in zip(one.cells, order.exposures(one, end, skipped), strict=True):
        assert found == (shown[cell.rows].min(), shown[cell.rows].max())


@pytest.mark.parametrize(
    ("clips", "size"), [(8, 4), (9, 4), (11, 4), (7, 4), (5, 4), (4, 4), (100, 33), (13, 1)]
)
def test_a_pass_boundary_repeats_nothing(clips: int, size: int) -> None:
    for seed in range(40):
        one = plan([(clips, size, 1)], seed=seed)
        rows = stream(one, 60)
        for first in range(0, len(rows), size):
            assert len(set(rows[first : first + size])) == size
        for first in range(0, len(rows) - clips + 1, clips):
            assert len(set(rows[first : first + clips])) == clips


def test_a_large_cell_is_read_exactly_across_its_boundary() -> None:
    one = plan([(10_007, 64, 1)])
    rows = stream(one, 2 * 10_007 // 64 + 1)
    assert sorted(rows[:10_007]) == sorted(rows[10_007:20_014]) == list(range(10_007))


# ── a function of the position, blind to ranks ──────────────────────────────────────────────────────────────


@given(plans, st.integers(0, 10**9))
def test_the_ranks_share_out_exactly_the_step(one: Plan, step: int) -> None:
    whole = rows_of(one, step)
    for world in WORLDS:
        shares = [order.rank_share(one, step, rank, world) for rank in range(world)]
        sizes = [len(share) for share in shares]
        assert max(sizes) - min(sizes) <= 1
        assert sorted((b.position, b.rows.tolist()) for share in shares for b in share) == whole
        for share in shares:
            costs = [one.cells[batch.cell].cost for batch in share]
            assert costs == sorted(costs, reverse=True)


def test_shares_are_balanced_by_cost() -> None:
    one = plan([(100, 8, 1), (100, 4, 1), (100, 2, 1)], micro_batches_per_step=48)
    for world in (2, 3, 4, 6, 8):
        loads = [
            sum(one.cells[b.cell].cost for b in order.rank_share(one, 5, r, world)) for r in range(world)
        ]
        assert max(loads) / (sum(loads) / world) < 1.05


@settings(max_examples=20)
@given(settings_of_plans())
def test_every_step_is_a_resume_point(kind: dict[str, Any]) -> None:
    whole = [rows_of(plan(**kind), step) for step in range(30)]
    for first in (1, 13, 29):
        fresh = plan(**kind)  # nothing is carried over
        assert [rows_of(fresh, step) for step in range(first, 30)] == whole[first:]
    backwards = plan(**kind)
    assert [rows_of(backwards, step) for step in reversed(range(30))] == whole[::-1]


@given(cells, st.randoms(use_true_random=False))
def test_the_rows_of_the_index_do_not_matter(cells: list[tuple[int, int, int]], random: Random) -> None:
    """Re-sharded: the same clips lie in other rows."""
    old = plan(cells)
    ids = [f"clip-{row}" for row in range(old.num_clips)]
    place = list(range(old.num_clips))
    random.shuffle(place)
    moved = []
    for cell in old.cells:
        rows = np.array([place[row] for row in cell.rows])
        shuffled = np.array(sorted(range(len(rows)), key=lambda i: rows[i]))
        hashes = vidcurate_rng.id_hashes([ids[row] for row in cell.rows])
        moved.append(
            sampler_plan.make_cell(cell.name, cell.bucket, rows[shuffled], hashes[shuffled], cell.weight)
        )
    new = sampler_plan.make_plan(moved, seed=old.seed, micro_batches_per_step=old.micro_batches_per_step)
    assert new.fingerprint == old.fingerprint
    for step in range(5):
        for a, b in zip(
            order.step_micro_batches(old, step), order.step_micro_batches(new, step), strict=True
        ):
            assert [place[row] for row in a.rows] == b.rows.tolist()


@given(plans)
def test_a_clip_is_found_at_the_positions_that_show_it(one: Plan) -> None:
    shown: dict[int, list[int]] = {}
    for position in range(100):
        for row in order.micro_batch(one, position).rows.tolist():
            shown.setdefault(row, []).append(position)
    for row in range(0, one.num_clips, 5):
        wanted = shown.get(row, [])
        found = [k for k, _ in zip(order.positions_of_row(one, row), range(len(wanted)), strict=False)]
        assert found == wanted
    assert next(order.positions_of_row(one, one.num_clips), None) is None


def test_a_clip_is_found_in_a_cell_too_large_to_sort() -> None:
    one = plan([(6000, 7, 1), (50, 3, 2)])
    positions = order.positions_of_row(one, 4321)
    for _ in range(3):
        assert 4321 in order.micro_batch(one, next(positions)).rows


def test_a_far_step_of_a_large_plan_is_computed_at_once() -> None:
    one = plan([(200_000, 8, 5), (50_000, 16, 3)], micro_batches_per_step=64)
    found, calls = calls_of(lambda: order.step_micro_batches(one, 10**7))
    assert len(found) == 64
    assert calls < 100_000  # 5 ms; a loop over the steps before would take an hour


# ── random ──────────────────────────────────────────────────────────────────────────────────────────────────


# ── what it amounts to ──────────────────────────────────────────────────────────────────────────────────────


@given(plans, st.sampled_from([1, 2, 3, 7]))
def test_a_finite_pass_reads_every_clip_once(one: Plan, world: int) -> None:
    parts = [list(order.one_epoch(one, rank, world)) for rank in range(world)]
    rows = [row for share in parts for batch in share for row in batch.rows.tolist()]
    assert sorted(rows) == list(range(one.num_clips))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    positions = sorted(batch.position for share in parts for batch in share)
    assert positions == list(range(len(positions)))


@given(plans, st.floats(0.1, 5))
def test_a_length_in_epochs_is_the_fewest_steps_that_show_so_many_clips(one: Plan, epochs: float) -> None:
    steps = order.steps_for_epochs(one, epochs)

    def shown(step: int) -> int:
        counts = order.micro_batches_before(one, step)
        return sum(n * cell.micro_batch_size for n, cell in zip(counts, one.cells, strict=True))

    assert shown(steps) >= epochs * one.num_clips > shown(steps - 1)


def test_fallbacks_are_of_the_cell_and_not_in_the_micro_batch() -> None:
    one = plan([(30, 4, 1), (30, 4, 1)])
    batch = order.micro_batch(one, 11)
    found = list(order.fallback_clips(one, batch, 2))
    own = set(one.cells[batch.cell].rows.tolist())
    assert set(found) == own - set(batch.rows.tolist())
    assert len(found) == 26
    assert found != list(order.fallback_clips(one, batch, 3))


def test_a_full_cell_takes_its_fallbacks_from_another_cell_of_the_same_bucket() -> None:
    shape = bucket(4)
    hashes = vidcurate_rng.id_hashes([f"{i}" for i in range(7)])
    one = sampler_plan.make_plan(
        [
            sampler_plan.make_cell("a", shape, np.arange(4), hashes[:4], 1),
            sampler_plan.make_cell("b", shape, np.arange(4, 7), hashes[4:], 1),
        ],
        seed=0,
        micro_batches_per_step=1,
    )
    batch = next(b for k in range(9) if (b := order.micro_batch(one, k)).cell == 0)
    assert sorted(order.fallback_clips(one, batch, 0)) == [4, 5, 6]


def test_a_cell_with_too_few_clips_gets_smaller_micro_batches_and_says_so() -> None:
    one = plan([(3, 8, 1), (40, 8, 1)])
    assert [cell.micro_batch_size for cell in one.cells] == [3, 8]
    assert one.notes == (
        {
            "event": "small_cell",
            "cell": "cell-00",
            "clips": 3,
            "micro_batch_size_asked": 8,
            "micro_batch_size": 3,
        },
    )


def test_the_fingerprint_covers_what_the_order_depends_on() -> None:
    base = plan([(30, 4, 1), (20, 4, 2)])
    assert plan([(30, 4, 3), (20, 4, 6)]).fingerprint == base.fingerprint  # the same mixture
    assert plan([(30, 4, 1), (20, 4, 2)], seed=9).fingerprint == base.fingerprint  # the state names it itself
    others = [
        plan([(31, 4, 1), (20, 4, 2)]),
        plan([(30, 5, 1), (20, 4, 2)]),
        plan([(30, 4, 2), (20, 4, 2)]),
        plan([(30, 4, 1), (20, 4, 2)], micro_batches_per_step=5),
    ]
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 5


def test_the_rolling_hash_tells_runs_apart() -> None:
    one = order.rolling_hash(order.rolling_hash("", ["a", "b"]), ["c"])
    assert one == order.rolling_hash(order.rolling_hash("", ["a", "b"]), ["c"])
    assert one != order.rolling_hash(order.rolling_hash("", ["b", "a"]), ["c"])
    assert order.rolling_hash("", ["ab"]) != order.rolling_hash("", ["a", "b"])


def test_an_empty_plan_is_refused_with_the_reasons() -> None:
    with pytest.raises(InputError, match=r"no clip fits any bucket \(2 too_small\)"):
        sampler_plan.make_plan([], seed=0, micro_batches_per_step=1, left_out={"too_small": np.arange(2)})
    with pytest.raises(InputError, match="micro_batches_per_step is 0"):
        plan([(3, 1, 1)], micro_batches_per_step=0)
