"""Draws belong to (seed, purpose, step, clip), and to nothing else."""

import numpy as np
import pytest
import torch

from tests.call_count import calls_of
from trainer.model import rng

SHAPE = (4, 3, 5, 6)
KNOWN_INTEGERS = [7170180282396608750, 595404594123066438]
KNOWN_NORMALS = [-1.2376747, -2.1944835]


def test_a_draw_does_not_depend_on_the_batch_it_is_made_in() -> None:
    clips = ["a", "b", "c", "d"]
    whole = rng.normal(1, "noise", 10, clips, SHAPE)
    for ranks in (1, 2, 4):
        parts = [rng.normal(1, "noise", 10, clips[rank::ranks], SHAPE) for rank in range(ranks)]
        for rank, part in enumerate(parts):
            assert torch.equal(part, whole[rank::ranks])
    drops = rng.caption_drops(1, 10, clips, 0.5)
    assert torch.equal(rng.caption_drops(1, 10, clips[::-1], 0.5), drops.flip(0))


def test_torchs_and_numpys_own_generators_are_neither_read_nor_moved() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index]
    first = rng.normal(1, "noise", 0, ["a"], SHAPE)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # type: ignore[index]
    torch.manual_seed(99)
    assert torch.equal(rng.normal(1, "noise", 0, ["a"], SHAPE), first)


def test_every_part_of_the_key_matters() -> None:
    keys = [(1, "noise", 2, "a"), (2, "noise", 2, "a"), (1, "posterior", 2, "a"), (1, "noise", 3, "a")]
    keys += [(1, "noise", 2, "b"), (1, "noise", 2, "2a"), (1, "noise", 22, "a"), (1, "noise", 2, "")]
    draws = {float(rng.generator(*key).random()) for key in keys}  # type: ignore[arg-type]
    assert len(draws) == len(keys)


def test_the_numbers_stay_the_same_over_time() -> None:
    source = rng.generator(42, "noise", 7, "12.10")
    assert source.integers(0, 2**63, size=2).tolist() == KNOWN_INTEGERS
    drawn = rng.normal(42, "noise", 7, ["12.10"], (2,))
    torch.testing.assert_close(drawn, torch.tensor([KNOWN_NORMALS]), rtol=0, atol=1e-7)


def test_draws_have_their_distribution() -> None:
    normal = rng.normal(0, "noise", 0, [str(number) for number in range(50)], (1000,))
    assert normal.dtype == torch.float32
    assert float(normal.mean()) == pytest.approx(0, abs=0.02)
    assert float(normal.std()) == pytest.approx(1, abs=0.02)
    clips = [str(number) for number in range(4000)]
    uniform = rng.scalars(0, "timestep", 0, clips, "uniform")
    assert 0 <= float(uniform.min()) < 0.01 < 0.99 < float(uniform.max()) < 1
    assert float(rng.scalars(0, "timestep", 0, clips, "normal").std()) == pytest.approx(1, abs=0.05)
    drops = rng.caption_drops(0, 0, clips, 0.1)
    assert drops.dtype == torch.bool
    assert float(drops.float().mean()) == pytest.approx(0.1, abs=0.02)
    assert not rng.caption_drops(0, 0, clips, 0.0).any()
    assert bool(rng.caption_drops(0, 0, clips, 1.0).all())


def test_a_purpose_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="'noises' is no purpose of a draw; the purposes are noise, "):
        rng.generator(0, "noises")  # type: ignore[arg-type]


def test_a_clips_noise_is_drawn_without_a_call_for_each_number() -> None:
    found, calls = calls_of(lambda: rng.normal(0, "noise", 0, ["clip"], (4, 15, 30, 53)))
    assert found.shape == (1, 4, 15, 30, 53)
    assert calls < 1000  # milliseconds
