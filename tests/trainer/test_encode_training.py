"""Training on the published encoders, small: the whole act, from recipe to samples."""

from pathlib import Path

import pytest

from tests.trainer.encoders_for_tests import WIDTH, make_t5, make_vae
from tests.trainer.shards_for_tests import make_shards, numbers, smoke
from trainer.loop import train
from trainer.recipe import TrainRecipe


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a VAE, a T5 and shards of clips of 22 frames."""
    folder = tmp_path_factory.mktemp("published")
    make_vae(folder / "vae")
    make_t5(folder / "t5", ["a red square moves right", "a green square moves down", "blue, white, left, up"])
    make_shards(folder / "shards", num_frames=22)
    return folder


def recipe(made: Path, run: Path, *more: str) -> TrainRecipe:
    return smoke(
        made / "shards",
        run,
        "stages.0.data.buckets.table={32px: {17: [1.0, 2]}}",
        "stages.0.steps=2",
        f"video_encoder={{kind: vae, source: {made / 'vae'}, dtype: float32, posterior: sample}}",
        f"text_encoder={{kind: t5, source: {made / 't5'}, caption_channels: {WIDTH}, model_max_length: 40}}",
        "model.in_channels=4",
        f"model.caption_channels={WIDTH}",
        "model.model_max_length=40",
        "sample={prompts: [a red square], every: 2, steps: 2, num_frames: 17, height: 32, width: 32}",
        *more,
    )


def test_the_tiny_model_trains_and_samples_on_the_vae_and_t5(made: Path, tmp_path: Path) -> None:
    train(recipe(made, tmp_path / "run"))
    train(recipe(made, tmp_path / "again", "video_encoder.micro_batch_size=17"))
    train(recipe(made, tmp_path / "mean", "video_encoder.posterior=mean", "sample=null"))

    first, again, mean = (
        [line["loss"] for line in numbers(tmp_path / name)] for name in ("run", "again", "mean")
    )
    assert len(first) == 2
    assert again == pytest.approx(first, rel=1e-4)  # draws belong to the clips
    assert mean != pytest.approx(first, rel=1e-4)
    assert (tmp_path / "run" / "samples" / "step-00000002" / "00-0.mp4").stat().st_size > 0
