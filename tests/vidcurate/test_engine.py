import os
import signal
from pathlib import Path

import pytest

from vidcurate import engine
from vidcurate.errors import StorageError


def square(number: int) -> engine.Row:
    return {"value": number * number, "pid": os.getpid()}


def die_on_seven(number: int) -> engine.Row:
    if number == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"value": number}


def crashed(number: int) -> engine.Row:
    return {"value": -number}


def values(rows: list[engine.Row]) -> list[int]:
    return [row["value"] for row in rows]


def test_results_come_in_the_order_of_the_items_for_any_number_of_workers(tmp_path: Path) -> None:
    one = engine.map_clips(square, range(20), on_crash=crashed, num_workers=1, chunk_size=3)
    two = engine.map_clips(square, range(20), on_crash=crashed, num_workers=2, chunk_size=3)

    assert values(one) == values(two) == [number**2 for number in range(20)]
    assert os.getpid() not in {row["pid"] for row in two}


def test_a_second_run_does_only_what_is_missing(tmp_path: Path) -> None:
    first = engine.map_clips(square, range(10), on_crash=crashed, chunk_size=4, parts=tmp_path / "parts")
    (tmp_path / "parts" / "000001.json").write_text("[{half a fi")
    (tmp_path / "parts" / "000002.json").write_text('[{"value": 64, "pid": 0}, {"value": 81, "pid": 0}]')

    again = engine.map_clips(square, range(10), on_crash=crashed, chunk_size=4, parts=tmp_path / "parts")

    assert values(first) == values(again)
    assert [row["pid"] for row in again][-2:] == [0, 0]


def test_progress_counts_every_item_once(tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []

    engine.map_clips(
        square,
        range(5),
        on_crash=crashed,
        chunk_size=2,
        progress=lambda *told: seen.append(told),
        unit="files",
    )

    assert seen == [(0, 5, "files"), (2, 5, "files"), (4, 5, "files"), (5, 5, "files")]


def test_a_clip_that_kills_its_worker_is_a_row_and_no_other_is_lost() -> None:
    rows = engine.map_clips(die_on_seven, range(12), on_crash=crashed, num_workers=2, chunk_size=4)

    assert values(rows) == [0, 1, 2, 3, 4, 5, 6, -7, 8, 9, 10, 11]


def test_a_parts_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StorageError, match="file/parts: cannot be made"):
        engine.map_clips(square, [1], on_crash=crashed, parts=tmp_path / "file" / "parts")
