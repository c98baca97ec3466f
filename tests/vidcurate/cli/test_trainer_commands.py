"""`vidcurate train` and its like start the trainer beside vidcurate, whatever else is called trainer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainer import __main__ as trainer_main
from vidcurate.cli import trainer_commands

ROOT = Path(__file__).resolve().parents[3]
HOSTILE = "import sys\nsys.exit('hostile')\n"


def run(folder: Path, *words: str, path: str = "") -> "subprocess.CompletedProcess[str]":
    found = os.pathsep.join(filter(None, [path, str(ROOT)]))
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": found},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder with a package and a module called trainer, which end the process."""
    (tmp_path / "trainer").mkdir()
    for name in ("trainer.py", "trainer/__init__.py", "trainer/__main__.py"):
        (tmp_path / name).write_text(HOSTILE)
    return tmp_path


def test_every_command_of_the_trainer_is_one_of_vidcurate() -> None:
    assert {command for command, _ in trainer_commands.COMMANDS.values()} == {"", *trainer_main.COMMANDS}


@pytest.mark.parametrize("through", ["folder", "path"])
@pytest.mark.parametrize("removed", ["trainer.py", "trainer/__init__.py"])
def test_another_package_called_trainer_is_not_run(
    hostile: Path, tmp_path_factory: pytest.TempPathFactory, through: str, removed: str
) -> None:
    (hostile / removed).unlink()
    folder = hostile if through == "folder" else tmp_path_factory.mktemp("empty")
    path = str(hostile) if through == "path" else ""
    if removed == "trainer.py" or through == "folder":  # a folder without __init__.py comes last on a path
        taken = run(folder, "trainer", "--help", path=path)
        assert taken.stderr == "hostile\n"

    for words in (["train", "--help"], ["gpus", "--help"]):
        done = run(folder, "vidcurate", *words, path=path)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("usage: python -m trainer")


def test_processes_that_the_trainer_starts_find_it_too(hostile: Path) -> None:
    done = run(hostile, "vidcurate", "cluster", "status", "local", "--json", path=str(hostile))
    assert (done.returncode, done.stderr) == (0, "")


def test_arguments_and_exit_codes_are_those_of_the_trainer(tmp_path: Path) -> None:
    done = run(tmp_path, "vidcurate", "cluster", "status", "local", "--seconds", "0", "--json")
    assert done.returncode == 0
    assert [node["node"] for node in json.loads(done.stdout)["nodes"]] == ["local"]

    done = run(tmp_path, "vidcurate", "train", "nowhere.yaml", "--dry-run")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: nowhere.yaml: no such recipe file")


def test_the_search_path_is_changed_only_where_another_trainer_is_found(hostile: Path) -> None:
    given = {"PYTHONPATH": "/elsewhere"}
    assert trainer_commands.environment(given, [str(ROOT), str(hostile)]) == {**given, "PYTHONSAFEPATH": "1"}
    for path in ([str(hostile), str(ROOT)], []):
        assert trainer_commands.environment(given, path)["PYTHONPATH"] == f"{ROOT}{os.pathsep}/elsewhere"
    assert trainer_commands.environment({}, [])["PYTHONPATH"] == str(ROOT)


@pytest.mark.parametrize("command", ["inspect", "report"])
def test_a_training_run_is_named_with_the_command_that_reads_it(tmp_path: Path, command: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").touch()
    done = run(tmp_path, "vidcurate", command, "run")
    assert done.returncode == 2
    assert done.stderr.startswith("error: run: is a training run, not a curation.")
    assert f"vidcurate train-{command} run" in done.stderr


WITHOUT_TORCH = (
    "import sys\nsys.modules['torch'] = None\nfrom trainer.__main__ import main\nsys.exit(main({}))"
)


@pytest.mark.parametrize(
    "words",
    [
        ["recipes/smoke.yaml"],
        ["recipes/smoke.yaml", "--dry-run"],
        ["launch", "recipes/smoke.yaml"],
        ["experiment", "recipes/restarts.yaml", "--dry-run"],
        ["precompute", "recipes/smoke.yaml", "--out", "nowhere"],
        ["plan", "show", "recipes/smoke.yaml", "--steps", "1"],
        ["convert", "show", "recipes"],
        ["inspect", "recipes"],
        ["sample", "recipes"],
        ["serve", "recipes"],
    ],
    ids=" ".join,
)
def test_without_torch_one_line_says_what_to_install(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH.format(words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: torch is not installed. Run `pip install 'vidcurate[train]'`.\n"


def test_without_torch_the_commands_that_read_a_run_answer() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH.format(["report", "--help"])],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
