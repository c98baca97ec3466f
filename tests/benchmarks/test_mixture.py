"""The benchmark of a run in mixed buckets: too few clips for them, and a report of a run that was made."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked_runs import Forks
from vidcurate.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
WORDS = ["--recipe", "tests/tiny.yaml", "--steps", "6", "--warm-up", "1", "--repeats", "1", "--clips", "40"]


@pytest.mark.soak
def test_a_report_again_says_the_same_and_trains_nothing(tmp_path: Path) -> None:
    def reported(*words: str) -> str:
        command = [sys.executable, "benchmarks/mixture.py", str(tmp_path / "out"), *WORDS, *words]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
        return ended.stdout

    first, again = reported(), reported("--report")
    assert "tokens/s, real run" in again
    assert first.endswith(again)


def test_too_few_clips_for_a_bucket_are_reported_in_one_line(forks: Forks, tmp_path: Path) -> None:
    reported = tmp_path / "reported.txt"
    words = ["benchmarks/mixture.py", str(tmp_path / "out"), "--clips", "3"]
    script = "sys.path.insert(0, 'benchmarks'); runpy.run_path(sys.argv[0], run_name='__main__')"
    ended = forks.start(["-c", f"import runpy, sys; sys.argv = {words}; {script}"], reported=reported)
    assert ended.codes() == [2], reported.read_text()
    line = reported.read_text()
    assert line.startswith("error: level-")
    assert "fewer than a micro-batch of" in line
    assert len(line.splitlines()) == 1


def test_made_up_clips_are_not_written_over_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    write_clips = importlib.import_module("make_latents").write_clips
    with pytest.raises(InputError, match="is there already; name another OUT, or delete it"):
        write_clips(tmp_path, [], 0)
    assert list(tmp_path.iterdir()) == []
