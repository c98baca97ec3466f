"""Frame masks: what each name gives, on clips of every length."""

import numpy as np
import pytest
import torch

from trainer.model import frame_masks, rng

LENGTHS = [1, 2, 3, 4, 5, 9, 15, 30, 60]


def source(number: int) -> np.random.Generator:
    return rng.generator(number, "mask")


@pytest.mark.parametrize("strategy", frame_masks.STRATEGIES)
@pytest.mark.parametrize("num_frames", LENGTHS)
def test_every_strategy_leaves_something_to_generate(strategy: str, num_frames: int) -> None:
    for number in range(40):
        mask = frame_masks.frame_mask(strategy, num_frames, source(number))
        assert mask.shape == (num_frames,)
        assert mask.dtype == np.bool_
        assert mask.any()
        if num_frames == 1 or strategy == "identity":
            assert mask.all()


@pytest.mark.parametrize("num_frames", [4, 15, 30, 60])
def test_the_names_mean_what_was_published(num_frames: int) -> None:
    quarters = set()
    for number in range(200):
        drawn = {
            name: frame_masks.frame_mask(name, num_frames, source(number)) for name in frame_masks.STRATEGIES
        }
        given = {name: np.flatnonzero(~mask).tolist() for name, mask in drawn.items()}
        last = num_frames - 1
        assert given["image_head"] == [0]
        assert given["image_tail"] == [last]
        assert given["image_head_tail"] == [0, last]
        assert len(given["image_random"]) == 1
        assert given["interpolate"] in (list(range(0, num_frames, 2)), list(range(1, num_frames, 2)))
        head, tail = given["quarter_head"], given["quarter_tail"]
        assert head == list(range(len(head)))
        assert tail == list(range(num_frames - len(tail), num_frames))
        both = len(given["quarter_head_tail"]) // 2
        assert given["quarter_head_tail"] == [*range(both), *range(num_frames - both, num_frames)]
        middle = given["quarter_random"]
        assert middle == list(range(middle[0], middle[0] + len(middle)))
        quarters |= {len(head), len(tail), both, len(middle)}
    assert quarters == set(range(1, num_frames // 4 + 1))


def test_random_gives_between_a_tenth_and_nine_tenths() -> None:
    shares = [1 - frame_masks.frame_mask("random", 200, source(number)).mean() for number in range(300)]
    assert min(shares) < 0.2
    assert max(shares) > 0.8
    assert np.mean(shares) == pytest.approx(0.5, abs=0.05)


def test_the_rest_of_the_ratios_is_identity() -> None:
    ratios = frame_masks.check_ratios({"random": 0.05, "image_head": 0.2})
    assert list(ratios) == list(frame_masks.STRATEGIES)
    assert ratios["identity"] == pytest.approx(0.75)
    assert frame_masks.check_ratios({"random": 0.0})["identity"] == 1.0
    assert sum(frame_masks.check_ratios({"identity": 0.5, "random": 0.5}).values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("ratios", "message"),
    [
        ({"intepolate": 0.1}, "intepolate is not a mask strategy; they are identity, random, interpolate"),
        ({"random": -0.1}, "mask ratio random is -0.1; a ratio lies between 0 and 1"),
        ({"random": 0.7, "image_head": 0.5}, "mask ratios sum to 1.2"),
        ({"identity": 0.5, "random": 0.1}, "mask ratios sum to 0.6"),
    ],
)
def test_ratios_that_do_not_fit_are_named(ratios: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        frame_masks.check_ratios(ratios)


def test_strategies_come_as_often_as_their_ratios_say() -> None:
    ratios = {"random": 0.05, "interpolate": 0.005, "image_head": 0.2, "quarter_tail": 0.1}
    clips = [f"clip-{number}" for number in range(4000)]
    _, names = frame_masks.draw_masks(ratios, 15, seed=1, step=2, clip_ids=clips)
    for name, ratio in frame_masks.check_ratios(ratios).items():
        spread = 4 * (ratio * (1 - ratio) / len(clips)) ** 0.5
        assert names.count(name) / len(clips) == pytest.approx(ratio, abs=spread + 1e-9)


def test_a_draw_at_the_end_falls_on_a_strategy_that_may_be_drawn() -> None:
    assert frame_masks.choose({"random": 0.1, "image_head": 0.2}, 1.0) == "image_head"
    assert frame_masks.choose({"random": 0.0}, 0.999999) == "identity"


def test_a_clips_mask_belongs_to_the_clip_and_not_to_its_batch() -> None:
    ratios = {"random": 0.5, "quarter_random": 0.5}
    clips = ["a", "b", "c", "12.10"]
    together, names = frame_masks.draw_masks(ratios, 15, seed=3, step=7, clip_ids=clips)
    for row, clip in enumerate(clips):
        alone, name = frame_masks.draw_masks(ratios, 15, seed=3, step=7, clip_ids=[clip])
        assert torch.equal(alone[0], together[row])
        assert name == (names[row],)
    other, _ = frame_masks.draw_masks(ratios, 15, seed=3, step=8, clip_ids=clips)
    assert not torch.equal(other, together)
