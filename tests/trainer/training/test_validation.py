"""The validation loss: the same clips, noise and timesteps in every round, and no trace in the training."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.trainer.shards_for_tests import make_shards, numbers, smoke
from trainer.data import open_stage
from trainer.data import stages as data_stages
from trainer.data.latents.precompute import encode_ahead, request_of
from trainer.run_folder import jsonl, metrics
from trainer.train import train
from trainer.training import validation
from trainer.training.validation import TIMESTEPS
from vidcurate.errors import InputError

ON = (
    "validation.every=2",
    "stages.0.log_every=1",
    "stages.0.steps=4",
    "stages.0.checkpoint_every=2",
    "sample=null",
)
HELD_OUT = (8, 9, 10, 11)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("made") / "shards", validation=HELD_OUT)


@pytest.fixture(scope="module")
def run(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("validated") / "run"
    train(smoke(shards, run, *ON))
    return run


def rounds(run: Path) -> list[dict[str, object]]:
    lines = metrics.read_metrics(run / metrics.VALIDATION)
    return [{key: value for key, value in line.items() if key not in ("time", "seconds")} for line in lines]


def test_the_timesteps_are_the_ten_of_the_published_evaluation() -> None:
    assert np.allclose(TIMESTEPS, [1000 * k / 11 for k in range(1, 11)])


def test_a_round_before_the_first_step_every_so_many_and_after_the_last(run: Path) -> None:
    lines = metrics.read_metrics(run / metrics.VALIDATION)

    assert [line["step"] for line in lines] == [0, 2, 4]
    for line in lines:
        assert set(line["loss_by_clip"]) == {f"clip-{number:03d}" for number in HELD_OUT}
        assert line["clips_by_bucket"] == {"32px-8f-0.50": 2, "32px-8f-1.00": 2}
        assert len(line["loss_by_timestep"]) == 10
        of_clips = np.array(list(line["loss_by_clip"].values()))
        assert line["loss"] == pytest.approx(of_clips.mean(), rel=1e-6)
        assert line["loss"] == pytest.approx(np.mean(list(line["loss_by_timestep"].values())), rel=1e-6)
        assert line["standard_error"] == pytest.approx(of_clips.std(ddof=1) / 2)
        assert (line["weights"], line["clips_substituted"]) == ("ema", 0)
    first, second = lines[0]["loss_by_clip"], lines[1]["loss_by_clip"]
    change = np.array([second[name] - first[name] for name in first])
    assert lines[1]["change"] == pytest.approx(change.mean())
    assert 0 < lines[1]["change_standard_error"] < lines[1]["standard_error"]  # the same noise cancels
    assert "change" not in lines[0]


def test_a_loss_is_that_of_the_formula_written_out(shards: Path, run: Path) -> None:
    from trainer.model import rectified_flow, rng
    from trainer.model.encoders.registry import text_encoder, video_encoder
    from trainer.model.stdit import STDiT3

    recipe = smoke(shards, run, *ON)
    (given,) = validation.plan_rounds(recipe.validation, data_stages.open_stages(recipe), recipe.seed)
    model = STDiT3(recipe.model, recipe.seed)  # of step 0, when the average is the weights
    with open_stage.open_loader(
        given.data, recipe.loader, recipe.video_encoder, rank=0, world_size=1, on_event=pytest.fail
    ) as loader:
        batch = next(batch for batch in loader.load(given.parts) if "clip-009" in batch.clip_ids)
    row = batch.clip_ids.index("clip-009")
    latent = video_encoder(recipe.video_encoder).encode(open_stage.pixels(batch, torch.device("cpu")))[
        row : row + 1
    ]
    y, mask = text_encoder(recipe.text_encoder).encode([batch.captions[row]])
    losses = []
    for number, timestep in enumerate(TIMESTEPS):
        noises = rng.normal(recipe.seed, "validation", number, ["clip-009"], tuple(latent.shape[1:]))
        x = rectified_flow.add_noise(latent, noises, torch.tensor([timestep]))
        side = torch.tensor([32.0])
        with torch.no_grad():
            out = model(
                x, torch.tensor([timestep]), y, mask, fps=torch.tensor([8.0]), height=side, width=side
            )
        losses.append(float((out[:, : latent.shape[1]] - (latent - noises)).square().mean()))

    line = metrics.read_metrics(run / metrics.VALIDATION)[0]
    assert line["loss_by_clip"]["clip-009"] == pytest.approx(np.mean(losses), rel=1e-5)


def test_training_with_and_without_it_is_the_same_bit_for_bit(
    shards: Path, run: Path, tmp_path: Path
) -> None:
    train(smoke(shards, tmp_path / "without", *ON[1:]))

    assert numbers(tmp_path / "without") == numbers(run)  # the norm of all weights in every step among them


def test_a_resumed_run_has_the_same_rounds_and_each_once(shards: Path, run: Path, tmp_path: Path) -> None:
    half = tmp_path / "half"
    train(smoke(shards, half, *ON, "stages.0.steps=2"))
    # Killed behind step 3, whose line and the round of step 4 it had written already.
    for name in (metrics.METRICS, metrics.VALIDATION):
        last = metrics.read_metrics(half / name)[-1]
        jsonl.append_line(half / name, last | {"step": 4, "loss": 7.0})

    train(smoke(shards, half, *ON))

    assert rounds(half) == rounds(run)
    assert numbers(half) == numbers(run)


def test_a_round_that_a_kill_prevented_is_made_up_for(shards: Path, run: Path, tmp_path: Path) -> None:
    half = tmp_path / "half"
    train(smoke(shards, half, *ON[1:], "stages.0.steps=2"))
    (half / metrics.VALIDATION).unlink(missing_ok=True)

    train(smoke(shards, half, *ON))

    assert [line["step"] for line in rounds(half)] == [2, 4]
    assert [line["loss_by_clip"] for line in rounds(half)] == [
        line["loss_by_clip"] for line in rounds(run)[1:]
    ]


def test_the_number_of_clips_and_the_shapes_can_be_chosen(shards: Path, tmp_path: Path) -> None:
    more = (
        "validation.every=9",
        "validation.clips_per_bucket=1",
        "stages.0.steps=1",
    )
    table = "validation.buckets={sizes: {16px: {'1.00': [16, 16]}}, table: {16px: {4: [1.0, 3]}}}"
    train(smoke(shards, tmp_path / "run", *more, "sample=null", table))

    lines = metrics.read_metrics(tmp_path / "run" / metrics.VALIDATION)
    assert [line["step"] for line in lines] == [0, 1]
    # One of each level, as each level is a cell of its own.
    assert [line["clips_by_bucket"] for line in lines] == [{"16px-4f-1.00": 2}] * 2
    assert lines[1]["loss_by_clip"] != lines[0]["loss_by_clip"]


def test_shards_without_such_clips_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    shards = make_shards(tmp_path / "shards", num_clips=4)

    with pytest.raises(
        InputError,
        match=r"no clip is in the fold validation \(clips by fold: train 4\)\. .*validation_fraction",
    ):
        train(smoke(shards, tmp_path / "run", *ON))

    assert not (tmp_path / "run").exists()


def test_levels_named_for_validation_are_read_in_every_stage_whatever_it_trains(
    shards: Path, tmp_path: Path
) -> None:
    one = smoke(shards, tmp_path / "run", *ON, "stages.0.data.levels=[1]")
    both = smoke(shards, tmp_path / "run", *ON, "stages.0.data.levels=[1]", "validation.levels=[1, 2]")

    (of_stage,) = validation.plan_rounds(one.validation, data_stages.open_stages(one), one.seed)
    (of_all,) = validation.plan_rounds(both.validation, data_stages.open_stages(both), both.seed)

    assert set(of_stage.clip_ids) == {"clip-008", "clip-010"}
    assert set(of_all.clip_ids) == {"clip-008", "clip-009", "clip-010", "clip-011"}
    assert set(
        data_stages.step_plan(
            data_stages.open_stages(both)[0], 0, both.video_encoder, both.model.patch_size
        ).levels
    ) == {"1"}


def test_a_round_over_latents_may_end_within_a_micro_batch(shards: Path, tmp_path: Path) -> None:
    one = ("validation.clips_per_bucket=1", "stages.0.data.views=1", "stages.0.steps=1")
    encode_ahead(request_of(smoke(shards, tmp_path / "line", *ON, *one)), tmp_path / "latents")
    ahead = smoke(shards, tmp_path / "ahead", *ON, *one, f"stages.0.data.latents={tmp_path / 'latents'}")

    train(smoke(shards, tmp_path / "line", *ON, *one))
    train(ahead)

    assert [line["clips"] for line in rounds(tmp_path / "ahead")] == [4, 4]  # one of each cell
    assert rounds(tmp_path / "ahead") == rounds(tmp_path / "line")
