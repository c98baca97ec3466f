"""Random part of the order: permutations, epochs, slot seeds, hashes of ids."""

import numpy as np
import pytest

from tests.order_plans import plan, stream
from vidcurate import rng as vidcurate_rng
from vidcurate.errors import InputError
from vidcurate.sampler import order


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100, vidcurate_rng.SMALL, vidcurate_rng.SMALL + 1, 65_537])
def test_a_permutation_is_one_and_can_be_undone(count: int) -> None:
    places = np.arange(count)
    values = vidcurate_rng.permute(count, vidcurate_rng.key("a", count), places)
    assert sorted(values.tolist()) == places.tolist()
    assert np.array_equal(vidcurate_rng.unpermute(count, vidcurate_rng.key("a", count), values), places)


@pytest.mark.parametrize("count", [1000, 10_000])
def test_permutations_are_spread_evenly_and_do_not_resemble_each_other(count: int) -> None:
    table = np.zeros((10, 10))
    places = np.arange(count)
    for number in range(50):
        values = vidcurate_rng.permute(count, vidcurate_rng.key("even", number), places)
        table += np.histogram2d(places, values, bins=10)[0]
        assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 5 / np.sqrt(count)
        assert np.sum(values == vidcurate_rng.permute(count, vidcurate_rng.key("other", number), places)) < 12
    expected = table.sum() / 100
    assert ((table - expected) ** 2 / expected).sum() < 81 * 1.7


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    one, other = plan([(500, 5, 1)], seed=1), plan([(500, 5, 1)], seed=2)
    first, second = stream(one, 200)[:500], stream(one, 200)[500:]
    assert sum(a == b for a, b in zip(first, second, strict=True)) < 10
    assert sum(a == b for a, b in zip(first, stream(other, 100), strict=True)) < 10


def test_a_cell_keeps_its_order_when_another_cell_is_added() -> None:
    alone, together = plan([(40, 4, 1)]), plan([(40, 4, 1), (30, 3, 1)])
    mine = [order.micro_batch(together, k) for k in range(40)]
    assert [b.rows.tolist() for b in mine if b.cell == 0][:20] == [
        order.micro_batch(alone, k).rows.tolist() for k in range(20)
    ]


def test_slot_seeds_do_not_repeat() -> None:
    seeds = {order.slot_seed(s, k, i, p) for s in (0, 1) for k in range(30) for i in range(30) for p in "ab"}
    assert len(seeds) == 2 * 30 * 30 * 2


def test_ids_hash_alike_however_they_come() -> None:
    import pyarrow as pa

    ids = [
        "",
        "a",
        "12.1",
        "12.10",
        "abcdefgh",
        "abcdefghi",
        "日本",
        "x" * 300,
        *(f"clip{i}" for i in range(500)),
    ]
    hashes = vidcurate_rng.id_hashes(ids)
    assert len(set(hashes.tolist())) == len(ids)
    array = pa.array(ids)
    for form in (array, array.cast(pa.large_string()), pa.chunked_array([array[:3], array[3:]])):
        assert np.array_equal(vidcurate_rng.id_hashes(form), hashes)
    assert np.array_equal(vidcurate_rng.id_hashes(array[5:20]), hashes[5:20])
    # Golden: every draw and every order depends on these.
    assert hashes[[0, 1, 5]].tolist() == [0xE220A8397B1DCDAF, 0x5E025F9ADE9EAF3E, 0xCBE0B0512E86AB3B]
    with pytest.raises(InputError, match="1 of 2 clips have no id"):
        vidcurate_rng.id_hashes(pa.array(["a", None]))


def test_hashes_are_sorted_as_numpy_sorts_them_also_where_their_beginnings_are_the_same() -> None:
    rng = np.random.default_rng(3)
    for count in (0, 1, 1000, 70_000, 1 << 17):
        hashes = rng.integers(0, 1 << 64, count, dtype=np.uint64)
        same = rng.integers(0, count, count // 100 + (count > 0))
        hashes[same] &= np.uint64((1 << 44) - 1)  # many share the bits that the quick way looks at
        assert np.array_equal(hashes[vidcurate_rng.sort_by_hash(hashes)], np.sort(hashes))
        assert np.array_equal(np.sort(vidcurate_rng.sort_by_hash(hashes)), np.arange(count))
        by_hash, firsts = np.argsort(hashes, kind="stable"), np.unique(hashes)
        if len(firsts) == count:
            assert np.array_equal(vidcurate_rng.sort_by_hash(hashes), by_hash)


def test_many_ids_are_hashed_by_several_threads_as_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [f"clip/{number}" for number in range(1000)]
    one = vidcurate_rng.id_hashes(ids)
    monkeypatch.setattr(vidcurate_rng, "_ROWS_PER_CHUNK", 7)
    assert np.array_equal(vidcurate_rng.id_hashes(ids), one)
