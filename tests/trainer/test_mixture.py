"""The benchmark of a run in mixed buckets can report a run again that was cut off before its end."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORDS = ["--recipe", "tests/tiny.yaml", "--steps", "6", "--warm-up", "1", "--repeats", "1", "--clips", "40"]


@pytest.mark.soak
def test_a_report_again_says_the_same_and_trains_nothing(tmp_path: Path) -> None:
    def told(*words: str) -> str:
        command = [sys.executable, "benchmarks/mixture.py", str(tmp_path / "out"), *WORDS, *words]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
        return ended.stdout

    first, again = told(), told("--report")
    assert "tokens/s, real run" in again
    assert first.endswith(again)
