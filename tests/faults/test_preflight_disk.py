"""A run's folder that is full or may not be written, found before step 1 on real small file systems."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forked_runs import Forks
from tests.small_disk import small_disk
from tests.trainer.shards_for_tests import command_words, make_shards


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", "3m", "test_preflight covers the parts") as folder:
        yield folder


def test_a_full_disk_is_named_with_what_is_needed(forks: Forks, place: Path, tmp_path: Path) -> None:
    words = command_words(make_shards(tmp_path / "shards", num_clips=6), place / "run", "stages.0.steps=1")
    (place / "filler").write_bytes(bytes(2_500_000))
    started = forks.start([*words, "--preflight"])
    assert started.codes() == [77], started.text()
    assert "disk room: 0.000" in started.text()
    assert "limit 0.00509 GB: 4 checkpoints of 0.00127 GB; free some room" in started.text()

    subprocess.run(
        ["dd", "if=/dev/zero", f"of={place}/rest", "bs=4k"], capture_output=True
    )  # until it is full
    started = forks.start([*words, "--preflight"])
    assert started.codes() == [77], started.text()
    assert f"{place}/run cannot be written (No space left on device)" in started.text()
    assert "preflight.json: cannot be written" in started.text()


def test_a_disk_that_is_read_only_is_named(forks: Forks, place: Path, tmp_path: Path) -> None:
    words = command_words(make_shards(tmp_path / "shards", num_clips=6), place / "run", "stages.0.steps=1")
    (place / "run").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    started = forks.start([*words, "--preflight"])
    assert started.codes() == [77], started.text()
    assert "run cannot be written (Read-only file system)" in started.text()
    assert "see whether it is mounted for writing" in started.text()
