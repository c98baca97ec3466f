"""Temporary folders of the tests in shared memory: one a run, removed in the end, and by the next run."""

import os
from pathlib import Path

import pytest

from tests.temporary_folder import TemporaryFolder


@pytest.fixture(autouse=True)
def no_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DEBUG_TEMPROOT", "")  # so that the variable is as before when the test is over
    monkeypatch.delenv("PYTEST_DEBUG_TEMPROOT")


def begin(place: Path) -> TemporaryFolder:
    """Begin a run as a process of its own would."""
    os.environ.pop("PYTEST_DEBUG_TEMPROOT", None)
    return TemporaryFolder(place, least_free_gib=0, least_memory_gib=0)


def test_a_run_has_a_folder_that_it_removes_and_that_no_other_run_touches(tmp_path: Path) -> None:
    first = begin(tmp_path)
    assert first.path is not None
    assert os.environ["PYTEST_DEBUG_TEMPROOT"] == str(first.path)
    (first.path / "file").write_text("of the first run")
    second = begin(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(filter(None, [first.path, second.path]))
    second.close(keep=False)
    assert "PYTEST_DEBUG_TEMPROOT" not in os.environ
    assert (first.path / "file").read_text() == "of the first run"
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(first.path)
    first.close(keep=False)
    assert not list(tmp_path.iterdir())


def test_what_a_failed_run_leaves_goes_when_the_next_begins(tmp_path: Path) -> None:
    failed = begin(tmp_path)
    failed.close(keep=True)
    assert failed.path is not None
    assert failed.path.is_dir()
    (tmp_path / "of-another-program").mkdir()

    begin(tmp_path).close(keep=False)

    assert [path.name for path in tmp_path.iterdir()] == ["of-another-program"]


def test_a_small_place_an_absent_one_and_a_root_that_is_set_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert TemporaryFolder(tmp_path, least_free_gib=2**40, least_memory_gib=0).path is None
    assert TemporaryFolder(tmp_path, least_free_gib=0, least_memory_gib=2**40).path is None
    assert TemporaryFolder(tmp_path / "none").path is None
    monkeypatch.setenv("PYTEST_DEBUG_TEMPROOT", str(tmp_path))
    assert TemporaryFolder(tmp_path, least_free_gib=0, least_memory_gib=0).path is None
    assert not list(tmp_path.iterdir())
