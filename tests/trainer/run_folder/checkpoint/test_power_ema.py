"""A run's averages of other widths, by the command, against the weights of each of its updates."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.trainer.shards_for_tests import make_shards, smoke
from trainer.model import power_average
from trainer.recipe import recipe as recipes
from trainer.run_folder.checkpoint import checkpoint, convert, convert_command, parts
from trainer.train import train
from trainer.training.state import Origin
from vidcurate.errors import StateError

ON = (
    "stages.0.steps=6",
    "stages.0.checkpoint_every=1",
    "stages.0.keep_last=9",
    "sample=null",
    "power_ema=[0.05, 0.1]",
)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("made") / "shards")


@pytest.fixture(scope="module")
def run(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("power") / "run"
    train(smoke(shards, folder, *ON))
    return folder


def directly(run: Path, width: float, steps: Sequence[int] = range(1, 7)) -> dict[str, Tensor]:
    """Return the average of the weights after each of the updates `steps`, by the update rule."""
    gamma = power_average.exponent(width)
    average: dict[str, Tensor] = {}
    for number, step in enumerate(steps, start=1):
        beta = power_average.decay(gamma, number)
        for name, value in checkpoint.read_part(run / f"step-{step:08d}", "model").items():
            kept = average.get(name, torch.zeros_like(value, dtype=torch.float64))
            average[name] = beta * kept + (1 - beta) * value.double()
    return average


@pytest.mark.parametrize("width", [0.07, 0.2])
def test_export_makes_the_average_of_the_width_that_is_asked_for(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], width: float
) -> None:
    words = ["export", str(run), str(tmp_path / "out"), "--ema", str(width), "--json"]
    assert convert_command.main(words) == 0

    said = json.loads(capsys.readouterr().out)["ema"]
    assert said["width"] == width
    assert said["error"] < 1e-6  # there are as many averages as updates and more
    assert len(said["checkpoints"]) == 6
    made, expected = convert.read_open_sora(tmp_path / "out"), directly(run, width)
    for name, value in expected.items():
        torch.testing.assert_close(made[name].double(), value, rtol=1e-4, atol=1e-6, msg=name)


def test_a_resumed_run_holds_the_averages_of_one_that_never_stopped(
    shards: Path, run: Path, tmp_path: Path
) -> None:
    half = tmp_path / "half"
    shutil.copytree(run, half)
    for number in (4, 5, 6):
        shutil.rmtree(half / f"step-{number:08d}")
    (half / "LATEST").write_text("step-00000003\n")

    train(smoke(shards, half, *ON))

    for part in ("power_ema_narrow", "power_ema_wide", "ema", "model"):
        one, other = (parts.read_part_tensors(folder / "step-00000006" / part) for folder in (run, half))
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_stage_that_takes_weights_alone_begins_its_averages_anew(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = recipes.to_json(smoke(shards, tmp_path / "run", *ON, "stages.0.steps=3"))
    (first,) = document["stages"]
    document["stages"].append(first | {"name": "second", "carry_over": "weights"})
    train(recipes.from_saved(document))

    words = ["export", str(tmp_path / "run"), str(tmp_path / "out"), "--ema", "0.07", "--json"]
    assert convert_command.main(words) == 0

    assert json.loads(capsys.readouterr().out)["ema"]["checkpoints"] == [
        f"step-{step:08d}" for step in (4, 5, 6)
    ]
    made, expected = convert.read_open_sora(tmp_path / "out"), directly(tmp_path / "run", 0.07, (4, 5, 6))
    for name, value in expected.items():
        torch.testing.assert_close(made[name].double(), value, rtol=1e-4, atol=1e-6, msg=name)


def test_a_damaged_average_is_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    (file,) = (copy / "step-00000002" / "power_ema_wide").glob("*.distcp")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))

    assert convert_command.main(["export", str(copy), str(tmp_path / "out"), "--ema", "0.07"]) == 1
    assert "SHA-256 is not the manifest's" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_too_few_checkpoints_and_runs_without_averages_are_refused(
    shards: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, out = tmp_path / "run", str(tmp_path / "out")
    shutil.copytree(run, copy)
    for number in range(1, 6):
        shutil.rmtree(copy / f"step-{number:08d}")

    assert convert_command.main(["export", str(copy), out, "--ema", "0.25"]) == 1
    assert "keep more checkpoints (stages.N.keep_every)" in capsys.readouterr().err
    assert convert_command.main(["export", str(copy), out, "--ema", "0.3"]) == 2
    assert "must be between 0 and" in capsys.readouterr().err

    plain = tmp_path / "plain"
    train(smoke(shards, plain, "stages.0.steps=1", "sample=null"))
    assert convert_command.main(["export", str(plain), out, "--ema", "0.1"]) == 1
    assert "holds no averages" in capsys.readouterr().err
    origin = Origin(load=plain, start_from_scratch=True)
    with pytest.raises(StateError, match="has no averages of power_ema"):
        train(smoke(shards, tmp_path / "new", *ON), origin)
