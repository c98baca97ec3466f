"""A split that cannot be made is refused with the command that helps; an earlier one stays, or ends."""

from pathlib import Path

import polars as pl
import pytest

from tests.vidcurate.curation.difficulty.test_difficulty import checked
from vidcurate.curation.clip_table import table
from vidcurate.curation.difficulty import stage as difficulty_stage
from vidcurate.curation.difficulty.spec import SplitSpec
from vidcurate.errors import ColumnError, InputError, StageError


@pytest.mark.parametrize(
    ("nouns", "spec", "message"),
    [
        ([1, 1, 1], SplitSpec(levels=2), r"levels is 2, but .* has 1 different values .* ties=split"),
        ([1, 2], SplitSpec(levels=3, ties="split"), r"levels is 3, but .* has 2 clips"),
        ([None, None], SplitSpec(levels=1), "noun_count has no value in any of 2 kept clips"),
    ],
)
def test_more_levels_than_the_data_allows_is_refused(
    tmp_path: Path, nouns: list[int | None], spec: SplitSpec, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        difficulty_stage.run_split(checked(tmp_path, nouns), spec)
    assert not (tmp_path / "split.parquet").exists()


def test_a_filter_that_keeps_nothing_ends_the_split_of_an_older_one(tmp_path: Path) -> None:
    difficulty_stage.run_split(checked(tmp_path, [1, 2, 3]), SplitSpec(levels=1))
    checked(tmp_path, [1, 2, 3], is_kept=[False] * 3)
    with pytest.raises(StageError, match="made from an older filter"):
        table.newest_stage(tmp_path)

    with pytest.raises(InputError, match=r"no clip is kept.*`vidcurate report .*` shows which"):
        difficulty_stage.run_split(tmp_path, SplitSpec(levels=1))

    assert table.newest_stage(tmp_path) == "filter"


def test_a_split_by_a_column_without_a_value_leaves_the_split_before_it(tmp_path: Path) -> None:
    checked(tmp_path, [1, 2, 3], word_count=pl.Series([None] * 3, dtype=pl.Int64))
    difficulty_stage.run_split(tmp_path, SplitSpec(levels=1))
    before = (tmp_path / "split.parquet").read_bytes()

    with pytest.raises(InputError, match="word_count has no value in any of 3 kept clips"):
        difficulty_stage.run_split(tmp_path, SplitSpec(levels=1, column="word_count"))

    assert (tmp_path / "split.parquet").read_bytes() == before


def test_a_split_before_its_stages_names_them(tmp_path: Path) -> None:
    run = checked(tmp_path, [1, 2, 3])
    with pytest.raises(ColumnError, match=r"the column beauty is missing.*Run `vidcurate score"):
        difficulty_stage.run_split(run, SplitSpec(column="beauty"))
    table.write(
        pl.DataFrame({"clip_id": ["a"]}),
        tmp_path / "x" / "score.parquet",
        table.Provenance(stage="score", settings={}, inputs={}),
    )
    with pytest.raises(ColumnError, match=r"is_kept is missing.*Run `vidcurate filter"):
        difficulty_stage.run_split(tmp_path / "x", SplitSpec())
