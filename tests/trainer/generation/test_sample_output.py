"""The command `sample` writes beside the run, and over nothing."""

from pathlib import Path

import pytest

from tests.trainer.shards_for_tests import make_shards, smoke
from trainer.generation import sample_command
from trainer.run_folder import sample_rounds
from trainer.train import train

SMALL = ["--prompt", "a red square", "--size", "2x16x16", "--steps", "1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("sampled")
    train(smoke(make_shards(home / "shards"), home / "run", "stages.0.steps=2", "sample=null"))
    return home / "run"


def test_clips_lie_in_the_run_and_a_second_command_keeps_the_first(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sample_command.main([str(run), *SMALL]) == 0
    first = run / "samples" / "requested" / "step-00000002-00-0.mp4"
    before = first.read_bytes()

    assert sample_command.main([str(run / "step-00000002"), *SMALL, "--guidance", "2"]) == 0

    second = first.with_name("step-00000002-00-0-2.mp4")
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()] == [str(first), str(second)]
    assert first.read_bytes() == before
    assert second.stat().st_size > 0
    assert not list(tmp_path.iterdir())
    assert sample_rounds.rounds(run) == []


def test_out_overwrites_nothing(run: Path, tmp_path: Path) -> None:
    kept = tmp_path / "00-0.mp4"
    kept.write_bytes(b"mine")

    assert sample_command.main([str(run), *SMALL, "--out", str(tmp_path)]) == 0

    assert kept.read_bytes() == b"mine"
    assert (tmp_path / "00-0-2.mp4").stat().st_size > 0


def test_a_size_that_the_encoder_cuts_is_named(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(run), "--prompt", "a", "--steps", "1", "--out", str(tmp_path), "--size"]

    assert sample_command.main([*words, "2x18x35"]) == 0
    assert capsys.readouterr().err.startswith("note: a sample of [18, 35] is made as [16, 32]; ")
    assert sample_command.main([*words, "2x16x16"]) == 0
    assert capsys.readouterr().err == ""


def test_a_size_beyond_the_memory_is_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(run), "--prompt", "a", "--out", str(tmp_path), "--size", "8x4000000x4000000"]

    assert sample_command.main(words) == 1

    said = capsys.readouterr().err.splitlines()
    assert said == [
        "error: 8 frames of 4000000 x 4000000 px need more memory than is free; give a smaller --size."
    ]
    assert list(tmp_path.iterdir()) == []
