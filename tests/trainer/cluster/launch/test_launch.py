"""What `launch` refuses before anything starts, each in one line."""

import os
import re
from pathlib import Path

import pytest

from tests.trainer.shards_for_tests import TINY, command_words
from trainer.cluster.launch import command as launch_command


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nproc-per-node", "0"], "--nproc-per-node 0: at least 1."),
        (["--restarts", "-1"], "--restarts -1: at least 0."),
        (["--stall-seconds", "0"], "--stall-seconds 0: more than 0."),
        (["--min-hosts", "2"], "--min-hosts 2: there are only 1."),
        (["--hostfile", "nowhere"], "hostfile nowhere: cannot be read (No such file or directory); write"),
        (
            ["--nproc-per-node", "3", "--set", "parallel.sharding=2"],
            "parallel.sharding 2 does not divide 3 ranks; take a multiple of it.",
        ),
        (["--dry-run"], "--dry-run starts no ranks; write `python -m trainer RECIPE --dry-run`."),
        (["--print-env"], "--print-env starts no ranks"),
        (["--set", "model.depht=3"], "Did you mean model.depth?"),
        (["--load", "a", "--ckpt-path", "b"], "exclude each other"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_starts_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)

    assert launch_command.main([str(TINY), *words]) == 2

    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_launch_that_gives_up_tells_the_trackers_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text("import os\nif 'RANK' in os.environ:\n    os._exit(1)\n")
    monkeypatch.setenv("PYTHONPATH", f"{broken}:{os.environ.get('PYTHONPATH', '')}")
    words = command_words(tmp_path / "shards", run, "trackers.tensorboard=true")

    assert launch_command.main([*words, "--restarts", "0"]) == 1

    assert "No further restart." in capsys.readouterr().err
    shown = EventAccumulator(str(run / "tensorboard" / "events"), size_guidance={"tensors": 0})
    shown.Reload()
    (reported,) = shown.Tensors("events/gave_up")
    (text,) = reported.tensor_proto.string_val
    assert '"exit_code": 1' in text.decode()


@pytest.mark.soak
@pytest.mark.usefixtures("forked_agents")
def test_shards_that_are_not_there_end_a_launch_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command_words(tmp_path / "nowhere", tmp_path / "run")

    assert launch_command.main([*words, "--nproc-per-node", "1", "--restarts", "9"]) == 2

    reported = capsys.readouterr().err
    assert reported.count("All ranks are being stopped") == 1
    assert f"error: {tmp_path / 'nowhere/index.parquet'}: no such index" in reported
    assert "restart" not in reported
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("forked_agents")
def test_an_error_of_all_ranks_is_one_last_line_with_rank_and_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command_words(tmp_path / "nowhere", tmp_path / "run")

    assert launch_command.main([*words, "--nproc-per-node", "2", "--restarts", "0"]) == 2

    lines = capsys.readouterr().err.strip().splitlines()
    cause = f"error: {tmp_path / 'nowhere/index.parquet'}: no such index"
    assert [number for number, line in enumerate(lines) if cause in line] == [len(lines) - 1]
    assert re.match(r"error: this host rank [01] ended with 2: error: ", lines[-1])


def test_a_flag_that_nobody_knows_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        launch_command.main([str(TINY), "--restart", "2"])

    assert ended.value.code == 2
    assert "unrecognized arguments: --restart 2" in capsys.readouterr().err


def test_a_launch_without_a_recipe_asks_for_it_as_launch(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        launch_command.main(["--nproc-per-node", "2"])

    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "error: the following arguments are required: RECIPE. See `python -m trainer launch --help`.\n"
    )
