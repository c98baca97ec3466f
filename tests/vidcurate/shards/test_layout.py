"""Every clip is planned once, within the bounds; a request that cannot be met is refused in one line."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.shard_runs import SMALL, build, make_run, rows
from vidcurate.errors import InputError, StageError
from vidcurate.shards import layout as shards_layout
from vidcurate.shards import tar_write
from vidcurate.shards.build import run_build_shards
from vidcurate.shards.layout import ShardSpec


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_run(tmp_path, rows())
    return tmp_path


@settings(max_examples=200, deadline=None)
@given(
    clips=st.lists(
        st.tuples(st.sampled_from(["train", "validation"]), st.integers(1, 3), st.integers(0, 5000)),
        max_size=60,
    ),
    max_clips=st.integers(1, 9),
    max_bytes=st.integers(1, 12_000),
    seed=st.integers(0, 3),
)
def test_every_clip_is_planned_once_within_the_bounds(
    clips: list[tuple[str, int, int]], max_clips: int, max_bytes: int, seed: int
) -> None:
    spec = ShardSpec(max_clips=max_clips, max_bytes=max_bytes)
    ids = [f"clip{i}" for i in range(len(clips))]
    order = shards_layout.mixed_order(ids, [c[0] for c in clips], [c[1] for c in clips], seed)
    assert sorted(order.tolist()) == list(range(len(clips)))
    groups = [clips[row][:2] for row in order]
    assert groups == sorted(groups)
    sizes = [clips[row][2] for row in order]
    planned = list(shards_layout.cut(groups, sizes, spec))
    assert [row for _, _, first, end in planned for row in range(first, end)] == list(range(len(clips)))
    assert len({name for name, *_ in planned}) == len(planned)
    for number, (name, group, first, end) in enumerate(planned):
        assert set(groups[first:end]) == {group}
        assert name.startswith(f"{group[0]}-level{group[1]}-")
        assert 1 <= end - first <= max_clips
        total = tar_write.END_BYTES + sum(sizes[first:end])
        assert total <= max_bytes or end - first == 1
        # No shard was closed early: the next clip of the group would not have fitted.
        if number + 1 < len(planned) and planned[number + 1][1] == group:
            assert end - first == max_clips or total + sizes[end] > max_bytes


@settings(max_examples=50, deadline=None)
@given(ids=st.lists(st.text(min_size=1, max_size=6), unique=True, min_size=1, max_size=30), data=st.data())
def test_the_order_does_not_depend_on_the_rows_of_the_table(ids: list[str], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(ids))
    one = shards_layout.mixed_order(ids, ["train"] * len(ids), [1] * len(ids), 5)
    two = shards_layout.mixed_order(shuffled, ["train"] * len(ids), [1] * len(ids), 5)
    assert [ids[row] for row in one] == [shuffled[row] for row in two]


def test_a_million_shards_of_one_group_are_enough() -> None:
    count = 1_000_001
    with pytest.raises(InputError, match="fold train, level 1 needs more than 1,000,000 shards"):
        list(shards_layout.cut([("train", 1)] * count, [1] * count, ShardSpec(max_clips=1)))


def test_an_interval_cannot_be_copied_and_the_way_on_is_named(folder: Path) -> None:
    table_rows = rows()
    table_rows[4] |= {"start_seconds": 1.5, "end_seconds": 4.0}
    make_run(folder, table_rows)
    with pytest.raises(
        InputError, match=r"clip 'plain_id' is an interval of its file \(1\.5 s to 4 s\).*mode: trim"
    ):
        build(folder)
    assert not (folder / "shards").exists()


def test_ids_that_occur_twice_are_refused_before_anything_is_written(folder: Path) -> None:
    table_rows = rows()
    table_rows[5]["clip_id"] = "plain_id"
    make_run(folder, table_rows)
    with pytest.raises(InputError, match="clip_id 'plain_id' occurs more than once"):
        build(folder)
    assert not (folder / "shards").exists()


def test_a_missing_table_folder_or_clip_is_said_in_one_line(folder: Path) -> None:
    with pytest.raises(InputError, match=r"no such folder of videos\. Give the folder with --videos"):
        run_build_shards(folder / "run", SMALL, videos=folder / "nowhere", out=folder / "shards")
    make_run(folder, [row | {"is_kept": False} for row in rows()])
    with pytest.raises(StageError, match="none of its 40 clips is kept"):
        build(folder)
    with pytest.raises(StageError, match="no table of any stage"):
        run_build_shards(folder / "nowhere", SMALL, videos=folder / "videos", out=folder / "shards")
