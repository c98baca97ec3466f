"""What `launch` refuses before anything starts, each in one line."""

from pathlib import Path

import pytest

from tests.trainer.shards_for_tests import TINY
from trainer import launch


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nproc-per-node", "0"], "--nproc-per-node 0: at least 1."),
        (["--restarts", "-1"], "--restarts -1: at least 0."),
        (["--stall-seconds", "0"], "--stall-seconds 0: more than 0."),
        (["--min-hosts", "2"], "--min-hosts 2: there are only 1."),
        (["--hostfile", "nowhere"], "--hostfile nowhere: cannot be read"),
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

    assert launch.main([str(TINY), *words]) == 2

    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_flag_that_nobody_knows_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        launch.main([str(TINY), "--restart", "2"])

    assert ended.value.code == 2
    assert "unrecognized arguments: --restart 2" in capsys.readouterr().err
