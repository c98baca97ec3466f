"""How far a run has come, as its supervisor reads it."""

import json
from pathlib import Path

import pytest

from trainer.health.watch import heartbeat, progress
from trainer.run_folder import metrics

WHOLE = "".join(json.dumps({"step": step, "loss": 1.0}) + "\n" for step in (1, 2, 3))


@pytest.mark.parametrize(
    "tail",
    ["", '{"step": 4, "lo', "\0" * 64 + "\n", '{"loss": 1.0}\n', "[]\n", "4\n", '{"step": Infinity}\n'],
)
def test_the_last_whole_line_tells_how_far_a_run_has_come(tmp_path: Path, tail: str) -> None:
    """A power loss can leave zeros where a line was."""
    (tmp_path / metrics.METRICS).write_text(WHOLE + tail)
    assert progress.highest_step(tmp_path) == 3


@pytest.mark.parametrize("text", ["", "\0" * 64, "no json\n"])
def test_a_log_file_without_a_whole_line_tells_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / metrics.METRICS).write_text(text)
    assert progress.highest_step(tmp_path) == 0
    assert progress.highest_step(tmp_path / "nowhere") == 0


def test_time_in_which_the_supervisor_itself_stood_still_is_not_the_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher that was suspended with its ranks ended them as it woke."""
    clock = iter([0.0, 0.1, 0.2, 3600.2, 3600.3, 3601.3])
    monkeypatch.setattr(progress, "time", type("Clock", (), {"monotonic": lambda: next(clock)}))
    beats = progress.Heartbeats(tmp_path)
    assert beats.quiet_seconds() is None
    seen = heartbeat.RankState(step=1, phase="data", since=0.0, phase_since=0.0, limit_seconds=1.0)
    heartbeat.write_heartbeat(tmp_path, 0, seen)
    assert beats.quiet_seconds() == 0.0
    assert beats.quiet_seconds() == pytest.approx(1.0)
    assert beats.quiet_seconds() == pytest.approx(1.1)
    assert beats.quiet_seconds() == pytest.approx(2.1)
