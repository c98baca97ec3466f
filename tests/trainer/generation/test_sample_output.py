"""The command `sample` writes beside the run, and over nothing."""

import shutil
from pathlib import Path

import pytest

from tests.trainer.shards_for_tests import make_shards, smoke
from trainer.generation import sample_command
from trainer.run_folder import sample_rounds
from trainer.train import train
from vidcurate.media import encode

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
    words = [str(run), "--prompt", "a", "--out", str(tmp_path), "--size", "10000x10000x10000"]

    assert sample_command.main(words) == 1

    said = capsys.readouterr().err.splitlines()
    assert said == [
        "error: 10,000 frames of 10000 x 10000 px need more memory than is free; give a smaller --size."
    ]
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_of_the_folder_ends_the_command(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("samples"))
    (own / "samples").mkdir()
    (own / "samples" / "requested").write_text("mine")

    assert sample_command.main([str(own), *SMALL]) == 1

    assert "cannot be written (File exists); give --out FOLDER" in capsys.readouterr().err
    assert (own / "samples" / "requested").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--fps", "nan"], "--fps nan: a number from 0.1 to 240 is needed."),
        (["--fps", "inf"], "--fps inf: "),
        (["--fps=-1"], "--fps -1.0: "),
        (["--steps", "0"], "--steps 0: a whole number from 1 to 1000 is needed."),
        (["--steps=-1"], "--steps -1: "),
        (["--steps", "9" * 400], "--steps 999"),
        (["--seed=-1"], "--seed -1: a whole number from 0 to "),
        (["--size", "10001x8x8"], "--size 10001x8x8: num_frames is 10001; a whole number from 1 to 10000"),
        (["--guidance", "nan"], "--guidance nan: a number from 0 to 100 is needed."),
        (["--guidance", "inf"], "--guidance inf: "),
        (["--prompt", "x\udcff"], "--prompt x\\udcff: has half of a surrogate pair; Unicode text is needed."),
    ],
)
def test_what_serve_refuses_is_refused_here_and_nothing_is_written(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert sample_command.main([str(run), *SMALL, "--out", str(tmp_path / "out"), *words]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {said}")
    assert not (tmp_path / "out").exists()


def test_a_clip_that_cannot_be_written_leaves_no_file(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(encode, "write_video", fail)

    assert sample_command.main([str(run), *SMALL, "--out", str(tmp_path)]) == 1

    assert "No space left on device" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a recipe", "a folder of runs", "nothing"])
def test_what_is_no_run_is_a_wrong_request(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / "a recipe").write_text("name: x\n")
    (tmp_path / "a folder of runs").mkdir()

    assert sample_command.main([str(tmp_path / name), *SMALL]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert str(tmp_path / name) in line
