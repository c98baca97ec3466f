"""The two encoders that need no download, and that they are what the trainer asks of an encoder."""

import numpy as np
import pytest
import torch

from trainer.model.encoders.registry import TextEncoder, VideoEncoder, draw, text_encoder, video_encoder
from trainer.model.encoders.space_to_depth import SpaceToDepth, SpaceToDepthSpec, block_transform
from trainer.model.encoders.word_hash import END, WordHash, WordsSpec, word_vector, words_of

KNOWN_RED = [-0.1952, -0.6424, 0.6424, -1.5368, 0.6424, 0.1952, 0.1952, -1.0896]


def pixels(frames: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    """Return uint8 [1, 3, T, H, W]: a smooth picture that moves, with some grain."""
    source = np.random.default_rng(seed)
    t, y, x = np.meshgrid(np.arange(frames), np.arange(height), np.arange(width), indexing="ij")
    picture = [128 + 90 * np.sin((x + 2 * t) / 9 + colour) * np.cos(y / 13) for colour in (0.0, 0.3, 0.6)]
    video = np.stack(picture) + source.normal(0, 2, (3, frames, height, width))
    return torch.from_numpy(video.clip(0, 255).astype(np.uint8))[None]


@pytest.mark.parametrize(("spatial", "temporal"), [(4, 1), (8, 1), (2, 1), (8, 4), (1, 1)])
@pytest.mark.parametrize("frames", [1, 3, 8])
def test_pixels_come_back_to_the_last_bit(spatial: int, temporal: int, frames: int) -> None:
    encoder = SpaceToDepth(spatial=spatial, temporal=temporal)
    video = pixels(frames, 32, 48)
    latent = encoder.encode(video)
    assert latent.dtype == torch.float32
    assert tuple(latent.shape[1:]) == encoder.latent_shape(frames, 32, 48)
    decoded = encoder.decode(latent, num_frames=frames)
    assert decoded.shape == video.shape
    assert torch.equal(((decoded + 1) * 127.5).round().to(torch.uint8), video)
    as_float = video / 127.5 - 1
    torch.testing.assert_close(encoder.encode(as_float), latent)
    torch.testing.assert_close(decoded, as_float, atol=1e-5, rtol=0)


def test_sizes_are_cut_to_whole_blocks() -> None:
    encoder = SpaceToDepth(spatial=8)
    video = pixels(2, 30, 53)
    assert encoder.latent_shape(2, 30, 53) == (192, 2, 3, 6)
    torch.testing.assert_close(encoder.encode(video), encoder.encode(video[..., :24, :48]))


def test_the_transform_is_orthogonal_and_sorts_by_detail() -> None:
    matrix, scale = block_transform(4, 2)
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(96), atol=5e-6, rtol=0)
    assert scale.argmax() == 0
    assert bool((scale > 0).all())
    flat = torch.full((1, 3, 2, 4, 4), 0.5)
    latent = SpaceToDepth(spatial=4, temporal=2).encode(flat).flatten()
    assert float(latent[0]) == pytest.approx(1.0)
    assert float(latent[1:].abs().max()) < 1e-4


def test_latents_of_video_have_a_variance_near_one() -> None:
    latent = SpaceToDepth(spatial=4).encode(pixels(4, 64, 64))
    assert 0.5 < float(latent[:, 0].std()) < 2.0
    assert float(latent.std()) < 2.0


def test_space_to_depth_has_a_posterior_without_variance() -> None:
    encoder = SpaceToDepth(spatial=4)
    video = pixels(2, 16, 16)
    mean, variance = encoder.posterior(video)
    assert torch.equal(mean, encoder.encode(video))
    assert not variance.any()
    assert torch.equal(draw(mean, variance, seed=1, step=2, clip_ids=["a"]), mean)


def test_a_draw_from_the_posterior_belongs_to_seed_step_and_clip() -> None:
    mean, variance = torch.full((3, 4, 2, 5, 6), 7.0), torch.full((3, 4, 2, 5, 6), 4.0)
    torch.manual_seed(0)
    together = draw(mean, variance, seed=1, step=2, clip_ids=["a", "b", "c"])
    torch.manual_seed(99)
    alone = draw(mean[:1], variance[:1], seed=1, step=2, clip_ids=["b"])
    assert torch.equal(together[1:2], alone)
    assert not torch.equal(together[0], together[1])
    assert not torch.equal(alone, draw(mean[:1], variance[:1], seed=1, step=3, clip_ids=["b"]))
    assert not torch.equal(alone, draw(mean[:1], variance[:1], seed=2, step=2, clip_ids=["b"]))
    assert float(together.mean()) == pytest.approx(7, abs=0.4)
    assert float(together.std()) == pytest.approx(2, abs=0.3)


def test_a_word_is_the_same_vector_wherever_it_stands() -> None:
    encoder = WordHash(caption_channels=64, model_max_length=16)
    features, mask = encoder.encode(["A red circle moves left", "the left side is Red.", ""])
    assert features.shape == (3, 1, 16, 64)
    assert mask.dtype == torch.bool
    assert torch.equal(features[0, 0, 1], features[1, 0, 4])  # red, Red.
    assert torch.equal(features[0, 0, 4], features[1, 0, 1])  # left
    assert encoder.tokens("A red circle") == ["a", "red", "circle", "a red", "red circle", END]
    assert mask.sum(1).tolist() == [10, 10, 1]
    assert not features[0, 0, 10:].any()
    again, _ = WordHash(caption_channels=64, model_max_length=40).encode(["red"])
    assert torch.equal(again[0, 0, 0], features[0, 0, 1])


def test_an_adjective_finds_its_noun() -> None:
    encoder = WordHash()
    first, second = (
        set(encoder.tokens(text)) for text in ("red circle, blue square", "blue circle, red square")
    )
    assert first != second
    without = WordHash(pairs=False)
    assert sorted(without.tokens("red circle, blue square")) == sorted(
        without.tokens("blue circle, red square")
    )


def test_long_captions_lose_pairs_before_words() -> None:
    encoder = WordHash(model_max_length=5)
    assert encoder.tokens("one two three") == ["one", "two", "three", "one two", END]
    assert encoder.tokens("one two three four five") == ["one", "two", "three", "four", END]


def test_words_of_like_spelling_lie_near_and_others_do_not() -> None:
    def near(first: str, second: str) -> float:
        a, b = word_vector(first, 4096), word_vector(second, 4096)
        return float(a @ b / np.sqrt((a @ a) * (b @ b)))

    assert near("circle", "circles") > 0.12
    assert abs(near("circle", "square")) < 0.08
    for word in ("a", "red", "kaleidoscopically", "猫", "\ud800"):
        assert float(word_vector(word, 4096).std()) == pytest.approx(1, abs=0.15)


def test_vectors_are_the_same_on_every_machine() -> None:
    assert word_vector("red", 8).tolist() == pytest.approx(KNOWN_RED, abs=1e-4)


def test_words_are_split_in_any_script() -> None:
    assert words_of("Don't re-encode ＦＵＬＬ width, café—été! 12.10 猫が走る") == [
        "don't", "re-encode", "full", "width", "café", "été", "12", "10", "猫が走る",
    ]  # fmt: skip
    assert words_of(" \n\t…") == []


def test_recipes_name_the_encoders() -> None:
    video: VideoEncoder = video_encoder(SpaceToDepthSpec(spatial=8, temporal=4))
    assert video.latent_channels == 3 * 8 * 8 * 4
    text: TextEncoder = text_encoder(WordsSpec(caption_channels=16, model_max_length=8))
    assert (text.caption_channels, text.model_max_length) == (16, 8)
