"""Samples belong to (seed, prompt's number) and the weights, and lie whole or not at all in the run."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.trainer.shards_for_tests import events, make_shards, smoke
from trainer.generation import sample_clips, sample_command
from trainer.run_folder import sample_rounds
from trainer.run_folder.checkpoint import checkpoint, checksum
from trainer.train import train
from vidcurate.errors import CheckpointError
from vidcurate.media import decode

PROMPTS = ("a red square moves right", "a blue square moves down")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sampled")
    shards = make_shards(folder / "shards")
    more = ("stages.0.steps=4", "stages.0.checkpoint_every=2", "sample.every=2", "sample.seeds=[0, 5]")
    train(smoke(shards, folder / "run <&> 1", *more))
    return folder / "run <&> 1"


def clips(run: Path, prompts: tuple[str, ...] = PROMPTS, seed: int = 0, **options: object) -> np.ndarray:  # type: ignore[type-arg]
    model, recipe, _ = sample_clips.load_model(run)
    assert recipe.sample is not None
    spec = recipe.sample.model_copy(update=options)
    return sample_clips.sample_clips(
        sample_clips.pipeline_of(recipe.encoding, recipe.flow_of(0), recipe.dtype, model),
        spec,
        prompts,
        seed=seed,
    )


def test_a_run_samples_when_it_is_time(run: Path) -> None:
    rounds = sample_rounds.rounds(run)

    assert [facts["step"] for facts in rounds] == [2, 4]
    entries = rounds[0]["samples"]
    assert [(entry["number"], entry["seed"]) for entry in entries] == [(0, 0), (1, 0), (0, 5), (1, 5)]
    assert [event["step"] for event in events(run, "sample")] == [2, 4]
    for facts in rounds:
        for entry in facts["samples"]:
            frames = decode.read_frames(run / entry["file"], range(8), height=32, width=32)
            assert frames.shape == (8, 32, 32, 3)
    assert not list((run / "samples").glob(".*"))


def test_a_clip_is_the_same_noise_at_every_step_and_beside_any_other(run: Path) -> None:
    alone, together = clips(run, PROMPTS[:1]), clips(run)

    assert alone.dtype == np.uint8
    assert alone.shape == (1, 8, 32, 32, 3)
    assert np.abs(alone[0].astype(int) - together[0]).max() <= 1  # a batch may round the last bit elsewhere
    assert np.array_equal(together, clips(run))
    assert not np.array_equal(together, clips(run, seed=1))


def test_a_clip_of_a_round_is_the_one_that_is_made_by_hand(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sample_command.main([str(run), "--seed", "5", "--out", str(tmp_path)]) == 0

    capsys.readouterr()
    for number in range(2):
        by_hand, in_round = (
            tmp_path / f"{number:02d}-5.mp4",
            run / f"samples/step-00000004/{number:02d}-5.mp4",
        )
        assert by_hand.read_bytes() == in_round.read_bytes()


def test_the_average_is_sampled_unless_the_weights_are_asked_for(run: Path) -> None:
    average, _, _ = sample_clips.load_model(run)
    raw, _, _ = sample_clips.load_model(run, raw=True)
    parts = checkpoint.load(run).parts

    assert checksum.checksum(average.state_dict()) == checksum.checksum(parts["ema"])
    assert checksum.checksum(raw.state_dict()) == checksum.checksum(parts["model"])


def test_weights_beside_the_model_give_what_the_model_with_them_gives(run: Path) -> None:
    average, recipe, _ = sample_clips.load_model(run)
    raw, _, _ = sample_clips.load_model(run, raw=True)
    assert recipe.sample is not None
    replaced = sample_clips.pipeline_of(
        recipe.encoding, recipe.flow_of(0), recipe.dtype, raw, average.state_dict()
    )
    own = sample_clips.pipeline_of(recipe.encoding, recipe.flow_of(0), recipe.dtype, average)

    beside = sample_clips.sample_clips(replaced, recipe.sample, PROMPTS, seed=0)

    assert np.array_equal(beside, sample_clips.sample_clips(own, recipe.sample, PROMPTS, seed=0))


def test_guidance_of_one_is_the_caption_alone_and_prompts_matter(run: Path) -> None:
    assert not np.array_equal(clips(run, guidance=1.0), clips(run, guidance=5.0))
    model, recipe, _ = sample_clips.load_model(run)
    torch.manual_seed(0)
    with torch.no_grad():  # temporal and fps parts are zero at the start; captions already act
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    assert recipe.sample is not None
    pipeline = sample_clips.pipeline_of(recipe.encoding, recipe.flow_of(0), recipe.dtype, model)
    made = [sample_clips.sample_clips(pipeline, recipe.sample, [prompt], seed=0) for prompt in PROMPTS]
    assert not np.array_equal(*made)


def test_the_command_samples_any_prompt(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(run), "--prompt", "a green square moves up", "--out", str(tmp_path), "--size", "4x16x24"]

    assert sample_command.main([*given, "--steps", "2", "--seed", "3", "--raw"]) == 0

    path = tmp_path / "00-3.mp4"
    assert capsys.readouterr().out == f"{path}  a green square moves up\n"
    assert decode.read_frames(path, range(4), height=16, width=24).shape == (4, 16, 24, 3)


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (["nowhere"], "no such checkpoint or run folder", 2),
        (["RUN", "--size", "4x16"], "write it as FRAMESxHEIGHTxWIDTH", 2),
        (["RUN", "--size", "0x16x16"], "write it as FRAMESxHEIGHTxWIDTH", 2),
        (["RUN", "--size", "4x2x2"], "is smaller than the video encoder's blocks", 2),
    ],
)
def test_a_wrong_request_is_refused_in_one_line(
    run: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str, code: int
) -> None:
    assert sample_command.main([word.replace("RUN", str(run)) for word in arguments]) == code
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_damaged_average_is_not_sampled(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    path = copy / "step-00000004" / "ema" / "__0_0.distcp"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")

    with pytest.raises(CheckpointError, match=r"ema/__0_0\.distcp"):
        sample_clips.load_model(copy)
