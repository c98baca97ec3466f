"""Outputs that a command is given: a file replaces a regular file only, a folder is a folder."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer.__main__ import main
from trainer.run_folder import jsonl, metrics

COMMANDS = {
    "report --out": ["report", "RUN", "--out"],
    "report --cost-table": ["report", "RUN", "--cost-table"],
    "plan --html": ["plan", "show", "RUN", "--steps", "1", "--html"],
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that has begun."""
    path = tmp_path / "run"
    path.mkdir()
    jsonl.record_event(path, "start", 0)
    return path


def refusal(capsys: pytest.CaptureFixture[str], words: list[str], run: Path, place: Path, said: str) -> None:
    """Check that the command ends with 2 and one line, which names the option and what is wrong."""
    with pytest.raises(SystemExit) as ended:
        main([str(run) if word == "RUN" else word for word in words] + [str(place)])
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert line.startswith(f"error: argument {words[-1]}: {said}")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("make", "kind"), [(os.mkfifo, stat.S_ISFIFO), (os.mkdir, stat.S_ISDIR)])
def test_what_is_no_file_is_never_replaced_by_one(
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    make: Callable[[Path], None],
    kind: Callable[[int], bool],
) -> None:
    place = tmp_path / "place.html"
    make(place)
    link = tmp_path / "link.html"
    link.symlink_to(place)

    refusal(capsys, COMMANDS[command], run, place, f"{place}: is no regular file")
    refusal(capsys, COMMANDS[command], run, link, f"{link}: is no regular file")

    assert kind(place.lstat().st_mode)
    assert link.is_symlink()


@pytest.mark.parametrize("command", COMMANDS)
def test_no_log_of_a_run_is_overwritten(run: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    log = run / jsonl.EVENTS
    before = log.read_bytes()

    for place in (log, run / metrics.METRICS):
        refusal(capsys, COMMANDS[command], run, place, f"{place}: ends in .jsonl")

    assert log.read_bytes() == before
    assert [path.name for path in run.iterdir()] == [jsonl.EVENTS]


@pytest.mark.parametrize(
    "words", [*COMMANDS.values(), ["sample", "RUN", "--out"], ["precompute", "recipe.yaml", "--out"]]
)
def test_a_path_through_a_file_is_refused_before_the_work(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("mine")

    refusal(capsys, words, run, file / "x", f"{file}: is no folder")
    if words[0] in ("sample", "precompute"):
        refusal(capsys, words, run, file, f"{file}: is no folder")

    assert file.read_text() == "mine"


def test_a_page_replaces_a_regular_file(run: Path, tmp_path: Path) -> None:
    page = tmp_path / "new" / "page.html"
    for _ in range(2):
        assert main(["report", str(run), "--out", str(page)]) == 0
    assert page.read_text().startswith("<!doctype html>")
