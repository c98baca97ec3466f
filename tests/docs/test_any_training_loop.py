"""docs/any-training-loop.md: every example runs as it stands, and its comments say what it prints."""

import re
from pathlib import Path

import pytest

from tests.forked_runs import Forks
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
def test_an_example_runs_and_prints_what_its_comments_say(
    forks: Forks, run: Path, tmp_path: Path, name: str
) -> None:
    code = EXAMPLES[name].replace("RUN/", f"{run}/")
    reported = tmp_path / "reported.txt"
    done = forks.start(["-c", f"import warnings; warnings.simplefilter('ignore')\n{code}"], reported=reported)
    assert done.codes() == [0], reported.read_text()[-3000:]
    lines = done.text().splitlines()
    expected = re.findall(r"print\(.*\)  # (.+)$", EXAMPLES[name], flags=re.M)
    assert expected
    assert all(line in lines for line in expected), lines
