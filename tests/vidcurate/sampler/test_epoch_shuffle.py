"""Epoch shuffle: a stream resumes exactly at a change, without early repeats or changes of earlier places."""

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from vidcurate.sampler import epoch_shuffle
from vidcurate.sampler.epoch_shuffle import Stream
from vidcurate.sampler.plan_changes import changed_stream
from vidcurate.sampler.shard_blocks import Blocks


@dataclass
class Change:
    """After `micro_batches`: so many clips new, so many (of those that there are) removed, another size."""

    micro_batches: int
    added: int
    removed: int
    size: int
    pick: int = 0


changes = st.lists(
    st.builds(
        Change,
        micro_batches=st.integers(0, 30),
        added=st.integers(0, 25),
        removed=st.integers(0, 12),
        size=st.integers(1, 9),
        pick=st.integers(0, 1000),
    ),
    max_size=4,
)


def stream(count: int, size: int, seed: int = 3, in_blocks: bool = False) -> Stream:
    sizes = np.full(-(-count // 4), 4)
    sizes[-1] -= sizes.sum() - count
    return Stream(
        seed=seed,
        name="cell",
        count=count,
        micro_batch_size=min(size, count),
        blocks=Blocks(sizes, 3) if in_blocks else None,
    )


def alive(one: Stream) -> np.ndarray:
    return np.setdiff1d(np.arange(one.num_ordinals), one.dead)


def apply(one: Stream, change: Change) -> Stream:
    there = alive(one)
    number = min(change.removed, len(there) - 1 + change.added)
    removed = np.sort(np.random.default_rng(change.pick).permutation(there)[:number])
    return changed_stream.changed(
        one,
        change.micro_batches * one.micro_batch_size,
        num_added=change.added,
        removed=removed,
        micro_batch_size=min(change.size, len(there) + change.added - len(removed)),
    )


def read(one: Stream, first: int, number: int) -> list[list[int]]:
    return [epoch_shuffle.micro_batch(one, first + k)[0].tolist() for k in range(number)]


@given(st.integers(1, 60), st.integers(1, 9), changes, st.integers(0, 30), st.booleans())
def test_nothing_is_shown_again_before_all_that_is_unseen_was_shown_once(
    count: int, size: int, made: list[Change], more: int, in_blocks: bool
) -> None:
    one = stream(count, size, in_blocks=in_blocks)
    unseen: set[int] = set()  # of the open pass
    for change in [*made, Change(micro_batches=more, added=0, removed=0, size=size)]:
        for batch in read(one, 0, change.micro_batches):
            assert len(set(batch)) == len(batch) == one.micro_batch_size
            for ordinal in batch:
                unseen = unseen or set(alive(one).tolist())
                assert ordinal in unseen
                unseen.remove(ordinal)
        after = apply(one, change)
        unseen |= set(range(one.num_ordinals, after.num_ordinals))
        unseen -= set(after.dead.tolist())
        if after.partial is None:  # nothing was shown yet
            unseen = set()
        one = after


@given(st.integers(1, 60), st.integers(1, 9), changes, st.booleans())
def test_after_the_lead_every_pass_is_exact_and_no_micro_batch_holds_a_clip_twice(
    count: int, size: int, made: list[Change], in_blocks: bool
) -> None:
    one = stream(count, size, in_blocks=in_blocks)
    for change in made:
        one = apply(one, change)
    number = (one.partial_size + 3 * one.count) // one.micro_batch_size + 1
    batches = read(one, 0, number)
    assert all(len(set(batch)) == len(batch) == one.micro_batch_size for batch in batches)
    reported = [ordinal for batch in batches for ordinal in batch]
    there = alive(one).tolist()
    lead = reported[: one.partial_size]
    assert len(set(lead)) == len(lead)
    assert set(lead) <= set(there)
    for number in range(3):
        first = one.partial_size + number * one.count
        assert sorted(reported[first : first + one.count]) == there
        assert set(epoch_shuffle.epochs_at(one, np.arange(first, first + one.count)).tolist()) == {
            one.first_epoch + number
        }
    assert np.array_equal(epoch_shuffle.ordinals_at(one, np.arange(len(reported))), reported)
    for place in (
        0,
        one.partial_size // 2,
        one.partial_size,
        one.partial_size + one.count // 2,
        len(reported),
    ):
        counts = np.zeros(one.num_ordinals, dtype=int)
        if one.partial:
            before = epoch_shuffle.times_shown(one.partial.previous, one.partial.place)
            counts[: len(before)] = before
        np.add.at(counts, np.array(reported[:place], dtype=int), 1)
        assert np.array_equal(epoch_shuffle.times_shown(one, place), counts)


@settings(max_examples=40)
@given(st.integers(1, 60), st.integers(1, 9), changes, st.booleans())
def test_a_clip_is_found_in_the_micro_batches_that_hold_it(
    count: int, size: int, made: list[Change], in_blocks: bool
) -> None:
    one = stream(count, size, in_blocks=in_blocks)
    for change in made:
        one = apply(one, change)
    batches = read(one, 0, (one.partial_size + 2 * one.count) // one.micro_batch_size + 1)
    for ordinal in range(one.num_ordinals):
        wanted = [number for number, batch in enumerate(batches) if ordinal in batch]
        found = [k for k, _ in zip(epoch_shuffle.occurrences(one, ordinal), wanted, strict=False)]
        assert found == wanted
    for ordinal in one.dead.tolist():
        assert list(epoch_shuffle.occurrences(one, ordinal)) == []


def test_clips_of_one_cohort_are_never_more_than_one_showing_apart() -> None:
    one, cohorts = stream(23, 4), [range(23)]
    shown = np.zeros(0, dtype=int)
    for added, micro_batches in ((9, 7), (1, 1), (30, 11), (2, 20), (0, 40)):
        for taken in range(micro_batches + 1):
            counts = epoch_shuffle.times_shown(one, taken * one.micro_batch_size)
            for cohort in cohorts:
                of_cohort = counts[list(cohort)]
                assert of_cohort.max() - of_cohort.min() <= 1
        assert (counts[: len(shown)] >= shown).all()
        shown = counts
        cohorts.append(range(one.num_ordinals, one.num_ordinals + added))
        one = changed_stream.changed(
            one,
            micro_batches * one.micro_batch_size,
            num_added=added,
            removed=epoch_shuffle.NONE,
            micro_batch_size=4,
        )


def test_a_change_on_the_boundary_of_a_pass_shows_the_new_clips_first() -> None:
    one = stream(12, 4)
    after = changed_stream.changed(one, 12, num_added=5, removed=epoch_shuffle.NONE, micro_batch_size=4)
    assert after.partial_size == 5
    reported = epoch_shuffle.ordinals_at(after, np.arange(5 + 17))
    assert sorted(reported[:5].tolist()) == [12, 13, 14, 15, 16]
    assert sorted(reported[5:].tolist()) == list(range(17))
    assert epoch_shuffle.epochs_at(after, np.array([0, 4, 5])).tolist() == [0, 0, 1]


def test_with_another_size_alone_the_open_pass_resumes_in_its_order() -> None:
    one = stream(40, 4)
    after = changed_stream.changed(one, 24, num_added=0, removed=epoch_shuffle.NONE, micro_batch_size=5)
    rest = epoch_shuffle.ordinals_at(one, np.arange(24, 40))
    assert np.array_equal(epoch_shuffle.ordinals_at(after, np.arange(16)), rest)
    without = changed_stream.changed(one, 24, num_added=0, removed=np.sort(rest[[2, 9]]), micro_batch_size=4)
    assert np.array_equal(epoch_shuffle.ordinals_at(without, np.arange(14)), np.delete(rest, [2, 9]))


def test_a_changed_stream_of_millions_is_asked_at_once_anywhere() -> None:
    one = stream(2_000_000, 16)
    for number in range(4):
        one = (
            changed_stream.changed(
                one,
                1600 * (number + 1),
                num_added=100_000,
                removed=np.arange(number, 5000, 7),
                micro_batch_size=16,
            )
            if number
            else changed_stream.changed(
                one, 1600, num_added=100_000, removed=epoch_shuffle.NONE, micro_batch_size=16
            )
        )
    batch, epochs = epoch_shuffle.micro_batch(one, 10**9)
    assert len(set(batch.tolist())) == 16
    assert not set(batch.tolist()) & set(one.dead.tolist())
    ordinal = int(batch[5])
    place = 10**9 * 16 + 5
    assert epoch_shuffle.ordinals_at(one, np.array([place])) == [ordinal]
    assert epochs.min() > 1000
