"""A link in a run folder that somebody copied leads no writer out of the folder."""

import json
from pathlib import Path

import pytest

from vidcurate.curation.clip_table import costs, run_lock
from vidcurate.errors import StorageError, VidcurateError
from vidcurate.storage import journal, lock

TEXT = "mine, without a newline"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.txt"
    path.write_text(TEXT)
    (tmp_path / "run").mkdir()
    return path


def test_a_lock_that_is_a_link_is_refused_and_its_target_stays(mine: Path) -> None:
    run = mine.parent / "run"
    (run / run_lock.NAME).symlink_to(mine)
    for wait in (False, True):
        with pytest.raises(StorageError, match=r"run/\.lock: is a link, and a lock is none; remove it"):
            run_lock.alone(run, wait=wait).__enter__()
    assert mine.read_text() == TEXT

    (run / "new.lock").symlink_to(run / "nothing")
    with pytest.raises(StorageError, match="is a link"), lock.exclusive(run / "new.lock", is_required=False):
        pass
    assert not (run / "nothing").exists()


def test_a_folder_may_be_locked_through_a_link(mine: Path) -> None:
    (mine.parent / "link").symlink_to(mine.parent / "run")
    with lock.exclusive(mine.parent / "link"), pytest.raises(BlockingIOError):
        lock.exclusive(mine.parent / "run", wait=False).__enter__()


def test_a_journal_that_is_a_link_is_not_written(mine: Path) -> None:
    run = mine.parent / "run"
    (run / "reviews.jsonl").symlink_to(mine)
    with (
        pytest.raises(VidcurateError, match=r"reviews\.jsonl: "),
        journal.writing(run / "reviews.jsonl", run / ".reviews.lock", lambda *_: pytest.fail("read"), {}),
    ):
        pass
    assert mine.read_text() == TEXT


def test_costs_that_are_a_link_are_not_written(mine: Path) -> None:
    run = mine.parent / "run"
    (run / costs.COSTS).symlink_to(mine)
    with pytest.raises(StorageError, match=r"costs\.jsonl: cannot be written"), costs.measured(run, "filter"):
        pass
    assert mine.read_text() == TEXT
    (run / costs.COSTS).unlink()
    with costs.measured(run, "filter"):
        pass
    assert json.loads((run / costs.COSTS).read_text())["command"] == "filter"
