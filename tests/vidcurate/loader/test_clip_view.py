"""Which part of a clip is shown, and under which caption, follows from the clip and the pass alone."""

from pathlib import Path

import numpy as np
import pytest

from tests.loader_runs import clips, make, plan_of, spec
from tests.order_plans import plan as made_plan
from vidcurate.loader import clip_view
from vidcurate.loader.loader import Loader, MicroBatch
from vidcurate.sampler import order
from vidcurate.shards.index import Index


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return make(tmp_path_factory.mktemp("views"))


def all_passes(opened: Index, *, steps: int, seed: int = 5, **settings: object) -> list[MicroBatch]:
    with Loader(opened, plan_of(opened, seed=seed), spec(), **settings) as loader:  # type: ignore[arg-type]
        return [batch for step in range(steps) for batch in loader.step(step)]


def test_a_micro_batch_says_in_which_pass_each_of_its_clips_stands() -> None:
    plan = made_plan([(7, 3, 1), (25, 4, 2), (2, 4, 1)])
    shown: dict[int, int] = {}
    for position in range(60):
        part = order.micro_batch(plan, position)
        for row, number in zip(part.rows.tolist(), part.epochs.tolist(), strict=True):
            assert number == shown.get(row, 0)
            shown[row] = number + 1
    assert min(shown.values()) > 2
    assert not any(number for part in order.one_epoch(plan) for number in part.epochs)


def test_views_lie_far_apart_and_more_of_them_leave_the_first_as_they_are() -> None:
    starts = np.array(
        [[clip_view.first_frame(f"clip {n}", view, 1000) for view in range(5)] for n in range(200)]
    )
    assert starts.min() >= 0
    assert starts.max() < 1000
    for count in range(2, 6):
        ordered = np.sort(starts[:, :count], axis=1)
        gaps = np.diff(np.concatenate([ordered, ordered[:, :1] + 1000], axis=1), axis=1)
        assert gaps.min() > 0.5 * 1000 / count  # golden-ratio multiples; at random some would be 0
    assert abs(starts[:, 0].mean() - 500) < 80
    assert clip_view.first_frame("one", 3, 1) == 0


def test_views_take_turns_and_each_caption_meets_every_view() -> None:
    seen = [
        (clip_view.view_number(number, 2), clip_view.caption_number(number, 2, 3)) for number in range(12)
    ]
    assert sorted(seen[:6]) == [(view, caption) for view in range(2) for caption in range(3)]
    assert seen[6:] == seen[:6]
    assert [clip_view.caption_number(number, None, 2) for number in range(4)] == [0, 1, 0, 1]


def test_with_views_a_clip_has_that_many_start_frames_whatever_the_seed(opened: Index) -> None:
    starts: dict[tuple[str, str], set[int]] = {}
    for seed in (5, 6):
        for batch in all_passes(opened, steps=16, seed=seed, num_views=2):
            for clip_id, start in zip(batch.clip_ids, batch.start_frame.tolist(), strict=True):
                starts.setdefault((clip_id, batch.bucket.name), set()).add(start)
    facts = {fact["clip_id"]: fact["num_frames"] for fact in clips()}
    for (clip_id, bucket), found in starts.items():
        last = facts[clip_id] - int(bucket.split("-")[1].removesuffix("f"))
        assert found == {clip_view.first_frame(clip_id, view, last + 1) for view in (0, 1)}
    assert any(len(found) == 2 for found in starts.values())


def test_captions_take_turns_and_a_clip_without_one_keeps_its_caption(opened: Index) -> None:
    captions: dict[str, set[str]] = {}
    for batch in all_passes(opened, steps=16, captions=("caption", "short_caption")):
        for clip_id, caption in zip(batch.clip_ids, batch.captions, strict=True):
            captions.setdefault(clip_id, set()).add(caption)
    for fact in clips():
        if fact["fold"] == "train":
            given = {fact["caption"], fact.get("short_caption", fact["caption"])}
            assert captions[fact["clip_id"]] == given


def test_drawn_captions_come_as_often_as_their_weights_say_and_weight_nothing_else() -> None:
    draws = [order.slot_seed(5, position, 0, "caption") for position in range(4000)]
    shown = np.bincount([clip_view.drawn_caption(draw, (1.0, 3.0, 4.0)) for draw in draws], minlength=3)
    assert np.abs(shown / 4000 - np.array([1, 3, 4]) / 8).max() < 0.03
    assert {clip_view.drawn_caption(draw, (2.5,)) for draw in draws} == {0}
    assert clip_view.drawn_caption(2**64 - 1, (0.1, 0.2, 0.3)) == 2
    assert clip_view.drawn_caption(0, (1e-300, 1.0)) == 0


def test_drawn_captions_depend_on_the_position_alone(opened: Index) -> None:
    drawn = {"captions": ("caption", "short_caption"), "caption_weights": (1.0, 1.0)}

    def shown(steps: range, world_size: int) -> dict[int, tuple[str, ...]]:
        found = {}
        for rank in range(world_size):
            with Loader(opened, plan_of(opened), spec(), rank=rank, world_size=world_size, **drawn) as loader:  # type: ignore[arg-type]
                for step in steps:
                    found |= {batch.position: batch.captions for batch in loader.step(step)}
        return found

    whole = shown(range(6), 1)

    assert shown(range(6), 4) == whole
    assert shown(range(3, 6), 2).items() <= whole.items()  # resumed, with other ranks
    captions = [caption for batch in whole.values() for caption in batch]
    is_short = [caption in {fact.get("short_caption") for fact in clips()} for caption in captions]
    assert 0.15 < np.mean(is_short) < 0.65  # three clips in four have the short one


def test_weights_of_captions_change_at_their_step_for_any_number_of_ranks(opened: Index) -> None:
    drawn = {
        "captions": ("caption", "short_caption"),
        "caption_weights": (1.0, 0.0),
        "caption_weights_from": {2: (0.0, 1.0), 4: (1.0, 0.0)},
    }
    short = {fact.get("short_caption") for fact in clips()} - {None}

    def shown(steps: range, world_size: int) -> dict[int, list[bool]]:
        found: dict[int, list[bool]] = {}
        for rank in range(world_size):
            with Loader(opened, plan_of(opened), spec(), rank=rank, world_size=world_size, **drawn) as loader:  # type: ignore[arg-type]
                for step in steps:
                    for batch in loader.step(step):
                        found.setdefault(step, []).extend(caption in short for caption in batch.captions)
        return {step: sorted(each) for step, each in found.items()}

    whole = shown(range(6), 1)

    assert not any(is_short for step in (0, 1, 4, 5) for is_short in whole[step])
    assert np.mean(whole[2] + whole[3]) > 0.5  # three clips in four have the short one
    assert shown(range(2, 6), 3) == {step: whole[step] for step in range(2, 6)}  # resumed, with other ranks


def test_a_caption_of_weight_zero_is_never_drawn() -> None:
    draws = (0, 2**63, 2**64 - 1)
    assert {clip_view.drawn_caption(draw, (0.0, 0.1, 0.2, 0.0)) for draw in draws} == {1, 2}


def test_without_views_every_number_is_as_it_was(opened: Index, tmp_path: Path) -> None:
    plain, one_caption = all_passes(opened, steps=4), all_passes(opened, steps=4, captions=("caption",))
    for batch, other in zip(plain, one_caption, strict=True):
        assert batch.start_frame.tolist() == other.start_frame.tolist()
        for slot, start in enumerate(batch.start_frame.tolist()):
            seed = order.slot_seed(5, batch.position, slot, "start_frame")
            count = next(f["num_frames"] for f in clips() if f["clip_id"] == batch.clip_ids[slot])
            assert start == seed * (count - batch.bucket.num_frames + 1) >> 64
