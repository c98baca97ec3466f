"""The cache of probe results keeps facts on disk: only keys are in memory."""

from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest

from vidcurate.curation.probe import cache
from vidcurate.errors import InputError

COUNT = 40_000  # several row groups


def key(number: int) -> cache.Key:
    return f"/videos/{number}.mp4", number, 7


def files(numbers: list[int]) -> pl.DataFrame:
    return pl.DataFrame([key(number) for number in numbers], schema=list(cache.KEY), orient="row")


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cache") / "new folder" / "known.parquet"
    with cache.added_to(path) as add:
        for number in range(COUNT):
            add(key(number), {"level": "index", "width": number})
    with cache.added_to(path) as add:
        add(key(5), {"level": "full", "width": 1, "sha256": "first"})
        add(key(COUNT), {"level": "header", "width": COUNT})
        add(key(5), {"level": "full", "width": 2, "sha256": "last"})
    return path


def test_the_last_facts_of_a_file_replace_the_former_and_all_others_stay(known: Path) -> None:
    frame = pl.read_parquet(known)
    assert frame.height == frame.unique(cache.KEY).height == COUNT + 1
    assert frame.filter(pl.col("video_path") == "/videos/5.mp4")["sha256"].to_list() == ["last"]
    assert [path.name for path in known.parent.iterdir()] == [known.name]


def test_facts_are_found_by_file_whatever_their_order(known: Path) -> None:
    wanted = [39_000, 5, 17_000, COUNT, 5, COUNT + 9]
    with cache.opened(known) as memory:
        rows = memory.rows_of(files(wanted))
        order = np.argsort(rows, kind="stable")[1:]
        facts = memory.facts(rows[order])
        found = {wanted[place]: one["width"] for place, (_, one) in zip(order, facts, strict=True)}
    assert rows[5] == -1
    assert found == {39_000: 39_000, 5: 2, 17_000: 17_000, COUNT: COUNT}


def test_a_run_reads_the_cache_that_it_opened_also_when_another_replaces_it(tmp_path: Path) -> None:
    path = tmp_path / "known.parquet"
    with cache.added_to(path) as add:
        add(key(1), {"width": 1})
    with cache.opened(path) as memory:
        with cache.added_to(path) as add:
            add(key(0), {"width": 0})
            add(key(1), {"width": 9})
        rows = memory.rows_of(files([0, 1]))
        assert rows.tolist() == [-1, 0]
        assert [facts for _, facts in memory.facts(rows[1:])] == [{"width": 1}]


def test_a_block_that_raises_adds_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "known.parquet"

    def fail() -> None:
        with cache.added_to(path) as add:
            add(key(1), {"width": 1})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "text.parquet").write_text("text")
    with (
        pytest.raises(InputError, match="not a file of known files"),
        cache.opened(tmp_path / "text.parquet"),
    ):
        pass


def test_of_entries_with_one_key_the_last_stays_however_many_runs_have_added_them(tmp_path: Path) -> None:
    file = tmp_path / "known.parquet"
    for number in range(30):
        with cache.added_to(file) as add:
            add(("/videos/same", 1, 2), {"level": number})
            add((f"/videos/{number}", 1, 2), {"level": number})
            add(("/videos/same", 1, 2), {"level": 100 + number})
            add(("/videos/same", 1, 3), {"level": -1})  # another time: another file

    with cache.opened(file) as memory:
        found = dict(memory.facts(memory.keys["row"].to_numpy()))
        keys = memory.keys.select("row", "video_path", "mtime_ns").rows()
    levels = {(path, time): found[row]["level"] for row, path, time in keys}
    assert len(keys) == len(levels) == 32
    assert levels["/videos/same", 2] == 129
    assert levels["/videos/same", 3] == -1
    assert all(levels[f"/videos/{number}", 2] == number for number in range(30))
    assert pq.ParquetFile(file).num_row_groups <= 2  # not one for each run: reading would take ever longer
