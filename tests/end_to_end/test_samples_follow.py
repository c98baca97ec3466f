"""The pipeline teaches a small model what words mean: recipes/smoke.yaml on the demo data, from scratch."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
P_LIMIT = 0.01


def _run(folder: Path, *words: str, threads: int = 1) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.soak
def test_samples_have_the_colour_and_the_direction_of_their_prompts(tmp_path: Path) -> None:
    recipes = ROOT / "recipes"
    _run(tmp_path, "-m", "vidcurate", "demo-data", "demo/data")
    _run(tmp_path, "-m", "vidcurate", "curate", str(recipes / "curate-demo.yaml"))
    print(_run(tmp_path, "-m", "trainer", str(recipes / "smoke.yaml"), threads=2))

    reported = _run(tmp_path, str(ROOT / "benchmarks" / "follows.py"), "demo/train")

    print(reported)
    found = re.findall(
        r"^(colour|motion): right in (\d+) of 32 samples .*p = ([\d.e-]+)\)", reported, re.MULTILINE
    )
    assert [name for name, *_ in found] == ["colour", "motion"]
    for name, hits, p in found:
        assert float(p) < P_LIMIT, f"{name}: {hits} of 32"
