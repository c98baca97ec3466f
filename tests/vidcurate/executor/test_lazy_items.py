from pathlib import Path

import numpy as np
import pytest

from vidcurate.executor import map_clips
from vidcurate.executor.lazy_items import LazyItems


def square(number: int) -> map_clips.Row:
    return {"value": number * number}


def crashed(number: int, loss: str) -> map_clips.Row:
    return {"value": -number}


def test_items_are_made_when_they_are_needed_and_slices_are_lazy() -> None:
    made: list[int] = []

    def make(place: int) -> str:
        made.append(place)
        return f"item {place}"

    items = LazyItems(make, np.array([3, 5, 8, 13]))
    part = items[1:3]

    assert (len(items), len(part), made) == (4, 2, [])
    assert list(part) == ["item 5", "item 8"]
    assert (items[-1], made) == ("item 13", [5, 8, 13])
    assert all(type(place) is int for place in made)
    with pytest.raises(IndexError):
        items[4]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_lazy_items_give_the_rows_of_a_list(tmp_path: Path, num_workers: int) -> None:
    rows = map_clips.map_clips(
        square,
        LazyItems(lambda place: place + 1, range(10)),
        on_lost=crashed,
        num_workers=num_workers,
        chunk_size=3,
        parts=tmp_path / "parts",
    )
    assert [row["value"] for row in rows] == [number * number for number in range(1, 11)]
