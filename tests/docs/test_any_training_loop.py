"""docs/any-training-loop.md: every example runs as it stands, and its comments say what it prints."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.loader_runs import make

PAGE = Path(__file__).resolve().parents[2] / "docs" / "any-training-loop.md"
EXAMPLES = dict(
    re.findall(
        r"^## ([^\n]+)\n(?:(?!^## ).)*?```python\n(.*?)```", PAGE.read_text("utf-8"), flags=re.S | re.M
    )
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loops")
    made = make(folder)
    (folder / "run").mkdir()
    (folder / "run" / "shards").symlink_to(made.folder)
    return folder / "run"


def test_the_page_has_the_four_loops() -> None:
    assert list(EXAMPLES) == ["Plain PyTorch", "Accelerate", "Lightning", "Fine-tuning with diffusers"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_and_prints_what_its_comments_say(run: Path, name: str) -> None:
    code = EXAMPLES[name].replace("RUN/", f"{run}/")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    expected = re.findall(r"print\(.*\)  # (.+)$", EXAMPLES[name], flags=re.M)
    assert expected
    assert all(line in lines for line in expected), lines
