"""Own columns keep their names, get a prefix where they would clash, and lie beside the known columns."""

import itertools
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidcurate.curation.clip_table import table
from vidcurate.curation.clip_table.own_columns import (
    PREFIX,
    RESERVED,
    captions_of,
    own_columns,
    own_names,
    words_of,
)
from vidcurate.shards import index_file

HOSTILE = ["level", "own_level", "own_own_level", "", "unnamed", "*", "^.*$", "^a", "score", "ünï ☂", "a.b"]


def test_no_name_of_the_index_is_free() -> None:
    assert {*index_file.COLUMNS, *index_file.OF_CAPTIONS} <= RESERVED


def test_a_name_that_clashes_gets_the_prefix_and_another_keeps_its_own() -> None:
    found = own_names(HOSTILE)

    assert found["score"] == "score"
    assert found["own_level"] == "own_level"
    assert found["level"] == "own_own_own_level"
    assert (found["*"], found["^.*$"], found[""]) == ("own_*", "own_^.*$", "own_unnamed")


@given(st.permutations(HOSTILE), st.integers(0, len(HOSTILE)))
def test_no_two_names_are_alike_in_any_order(names: list[str], count: int) -> None:
    found = own_names(names[:count])

    assert list(found) == names[:count]
    assert len(set(found.values())) == count
    assert not RESERVED & set(found.values())
    frame = pl.DataFrame({name: [number] for number, name in enumerate(found.values())})
    for name, number in zip(found.values(), itertools.count()):
        assert frame.lazy().select(name).collect().to_dict(as_series=False) == {name: [number]}


def test_a_run_says_which_columns_are_own_and_how_the_source_calls_them(tmp_path: Path) -> None:
    clips = pl.DataFrame({"clip_id": ["a"], "level": [1], f"{PREFIX}fold": [[1, 2]], "other": ["x"]})
    table.write(
        clips,
        tmp_path / "ingest.parquet",
        table.Provenance(stage="ingest", settings={}, inputs={}),
        words={"own_fold": words_of("fold")},
    )

    found = own_columns(tmp_path)

    assert {name: (own.source, own.dtype) for name, own in found.items()} == {
        "own_fold": ("fold", pl.List(pl.Int64))
    }
    assert table.column_words(tmp_path / "ingest.parquet")["clip_id"]["unit"] == ""
    assert own_columns(tmp_path / "none") == {}


@pytest.mark.parametrize(
    ("row", "captions"),
    [
        ({}, {}),
        ({"caption": None, "captions": None}, {}),
        ({"caption": "a"}, {"caption": "a"}),
        (
            {
                "caption": "b",
                "caption_name": "dense",
                "captions": [{"name": "short", "text": "a"}, {"name": "dense", "text": "b"}],
            },
            {"dense": "b", "short": "a"},
        ),
    ],
)
def test_the_main_caption_comes_first(row: dict[str, object], captions: dict[str, str]) -> None:
    assert list(captions_of(row).items()) == list(captions.items())
