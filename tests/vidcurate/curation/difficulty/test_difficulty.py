import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vidcurate.curation.caption_scores import nouns_builtin
from vidcurate.curation.clip_table import table
from vidcurate.curation.difficulty import cut, jumps
from vidcurate.curation.difficulty import stage as difficulty_stage
from vidcurate.curation.difficulty.spec import SplitSpec
from vidcurate.curation.filter import stage as filter_stage
from vidcurate.curation.filter.spec import FilterSpec, Limit
from vidcurate.errors import ColumnError, InputError


def checked(run: Path, nouns: list[int | None], **columns: list[Any]) -> Path:
    count = len(nouns)
    given_ = {
        "clip_id": [f"c{n}" for n in range(count)],
        "source_id": [f"s{n // 3}" for n in range(count)],
        "noun_count": pl.Series(nouns, dtype=pl.Int32),
        "num_frames": pl.Series([48] * count, dtype=pl.Int64),
        "duration_seconds": [2.0] * count,
        "is_kept": [True] * count,
        "reject_stage": pl.Series([None] * count, dtype=pl.String),
        "reject_rule": pl.Series([None] * count, dtype=pl.String),
        "reject_value": pl.Series([None] * count, dtype=pl.String),
        "reject_threshold": pl.Series([None] * count, dtype=pl.String),
        **columns,
    }
    table.write(
        pl.DataFrame(given_), run / "filter.parquet", table.Provenance(stage="filter", settings={}, inputs={})
    )
    return run


def rows_of(run: Path) -> pl.DataFrame:
    return table.scan(run, "split").collect()


def test_levels_grow_and_ties_stay_together(tmp_path: Path) -> None:
    checked(tmp_path, [0, 1, 1, 1, 2, 3, 4, 5, 5, 9])

    summary = difficulty_stage.run_split(tmp_path, SplitSpec(levels=3))

    rows = rows_of(tmp_path)
    assert rows.group_by("noun_count").agg(pl.col("level").n_unique())["level"].max() == 1
    assert [(level.min, level.max) for level in summary.levels] == [(0, 1), (2, 4), (5, 9)]
    assert sum(level.clips for level in summary.levels) == 10


def test_parted_ties_balance_the_levels_within_one_clip(tmp_path: Path) -> None:
    checked(tmp_path, [7] * 50 + [8] * 53)

    summary = difficulty_stage.run_split(tmp_path, SplitSpec(levels=5, ties="split"))

    clips = [level.clips for level in summary.levels]
    assert max(clips) - min(clips) <= 1


def test_levels_can_hold_equal_shares_of_frames(tmp_path: Path) -> None:
    checked(tmp_path, list(range(100)), num_frames=[900] * 10 + [100] * 90)

    summary = difficulty_stage.run_split(tmp_path, SplitSpec(levels=2, balance="frames"))

    assert [level.frames for level in summary.levels] == [9000, 9000]
    assert [level.clips for level in summary.levels] == [10, 90]


def test_the_hardest_tail_is_rejected_by_name(tmp_path: Path) -> None:
    checked(tmp_path, [*range(1, 100), 5000])

    summary = difficulty_stage.run_split(tmp_path, SplitSpec(levels=2, drop_hardest=0.01))

    last = rows_of(tmp_path).row(99, named=True)
    assert (last["reject_stage"], last["reject_rule"]) == ("split", "drop_hardest")
    assert (last["reject_value"], last["reject_threshold"]) == ("5000", "<= 99")
    assert (last["is_kept"], last["level"], last["fold"]) == (False, None, None)
    assert (summary.rows_in, summary.rows_kept, summary.rows_dropped_here) == (100, 99, 1)


def test_the_ledger_tells_what_the_split_dropped(tmp_path: Path) -> None:
    clips = {
        "clip_id": [f"c{n}" for n in range(50)],
        "video_path": [f"c{n}.mp4" for n in range(50)],
        "ingest_problem": pl.Series(["missing_file", *[None] * 49], dtype=pl.String),
        "noun_count": list(range(50)),
    }
    table.write(
        pl.DataFrame(clips),
        tmp_path / "score.parquet",
        table.Provenance(stage="score", settings={}, inputs={}),
    )
    filter_stage.run_filter(tmp_path, FilterSpec(limits={"noun_count": Limit(max=47)}))
    filtered = (tmp_path / "ledger.parquet").read_bytes()
    spec = SplitSpec(levels=2, drop_hardest=0.02)

    def rules() -> list[tuple[str, str, str]]:
        return pl.read_parquet(tmp_path / "ledger.parquet").select("clip_id", "stage", "rule").rows()

    mine = [("c47", "split", "drop_hardest")]
    theirs = [("c0", "ingest", "missing_file"), *((f"c{n}", "filter", "max_noun_count") for n in (48, 49))]
    difficulty_stage.run_split(tmp_path, SplitSpec(levels=2, drop_hardest=0.2))
    difficulty_stage.run_split(tmp_path, spec)
    assert rules() == theirs + mine
    assert difficulty_stage.run_split(tmp_path, spec).up_to_date
    # A filter that ran in between and came back leaves the same table and a ledger without the split's rows.
    filter_stage.run_filter(tmp_path, FilterSpec())
    filter_stage.run_filter(tmp_path, FilterSpec(limits={"noun_count": Limit(max=47)}))
    assert (tmp_path / "ledger.parquet").read_bytes() == filtered
    difficulty_stage.run_split(tmp_path, spec)
    assert rules() == theirs + mine


def test_what_is_not_a_number_has_no_level(tmp_path: Path) -> None:
    checked(tmp_path, [1] * 4, motion_score=[2.0, math.nan, 1.0, None])

    difficulty_stage.run_split(tmp_path, SplitSpec(levels=2, column="motion_score"))

    rows = rows_of(tmp_path)
    assert rows["level"].to_list() == [2, None, 1, None]
    assert rows["reject_rule"].to_list() == [None, "no_motion_score", None, "no_motion_score"]
    with pytest.raises(ColumnError, match="the difficulty must be a number; the column source_id is String"):
        difficulty_stage.run_split(tmp_path, SplitSpec(levels=2, column="source_id"))


@pytest.mark.parametrize("value", [math.inf, -math.inf, 1e308])
def test_what_has_no_mean_is_refused_with_the_filter_that_rejects_it(tmp_path: Path, value: float) -> None:
    checked(tmp_path, [1] * 4, motion_score=[2.0, value, 1.0, None])

    with pytest.raises(
        InputError, match=r"motion_score of 1 kept clip is infinite or beyond 1e\+100 \(first: 'c1'\)"
    ) as refused:
        difficulty_stage.run_split(tmp_path, SplitSpec(levels=2, column="motion_score"))

    assert f"vidcurate filter {tmp_path} --set limits.motion_score.max=1e+100" in str(refused.value)
    assert not (tmp_path / "levels.json").exists()


@pytest.mark.parametrize("ties", ["together", "split"])
def test_one_clip_with_most_of_the_frames_leaves_no_level_empty(tmp_path: Path, ties: Any) -> None:
    checked(tmp_path, [1, 2, 3], num_frames=[1, 1, 1000])

    summary = difficulty_stage.run_split(tmp_path, SplitSpec(levels=3, balance="frames", ties=ties))

    assert [level.clips for level in summary.levels] == [1, 1, 1]


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 12), st.integers(0, 500))
def test_parted_levels_differ_by_one_clip_at_most(levels: int, more: int) -> None:
    count = levels + more
    hashes = np.arange(count, dtype=np.uint64)
    level = cut.ties_split(np.zeros(count), np.ones(count), hashes, levels)
    clips = np.bincount(level, minlength=levels)
    assert len(clips) == levels
    assert clips.max() - clips.min() <= 1


def test_the_real_captions_have_levels_and_a_warning_at_the_last_jump(shared: Path, tmp_path: Path) -> None:
    captions = pl.read_parquet(shared / "data/captions/dense_captions.parquet")["caption"]
    nouns = nouns_builtin.count(captions).to_list()
    checked(tmp_path, nouns, caption_num_words=captions.str.count_matches(r"\S+").cast(pl.Int32).to_list())

    summary = difficulty_stage.run_split(tmp_path, SplitSpec())

    assert sum(level.clips for level in summary.levels) == len(captions)
    assert all(0.17 < level.clips / len(captions) < 0.23 for level in summary.levels)
    in_nouns = [jump for jump in summary.jumps if jump.column == "noun_count"]
    assert [jump.to_level for jump in in_nouns if jump.warning] == [5]
    assert max(jump.tail_ratio or 0 for jump in in_nouns[:-1]) < 2 < (in_nouns[-1].tail_ratio or 0)


def test_a_rejected_clip_keeps_its_row_and_has_no_level(tmp_path: Path) -> None:
    checked(
        tmp_path,
        [1, 2, 3, None],
        is_kept=[True, False, True, True],
        reject_stage=[None, "filter", None, None],
        reject_rule=[None, "min_height", None, None],
    )

    summary = difficulty_stage.run_split(tmp_path, SplitSpec(levels=2))

    rows = rows_of(tmp_path)
    assert rows["clip_id"].to_list() == ["c0", "c1", "c2", "c3"]
    assert rows["level"].to_list() == [1, None, 2, None]
    assert rows["reject_rule"].to_list() == [None, "min_height", None, "no_noun_count"]
    assert summary.rows_rejected == 2


def test_no_source_is_in_both_folds_and_growing_data_moves_none(tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    checked(small, [n % 17 for n in range(300)])
    checked(large, [n % 17 for n in range(900)])
    spec = SplitSpec(levels=3, validation_fraction=0.3)

    difficulty_stage.run_split(small, spec)
    difficulty_stage.run_split(large, spec)

    folds = [rows_of(run).select("clip_id", "source_id", "fold") for run in (small, large)]
    assert folds[1].group_by("source_id").agg(pl.col("fold").n_unique())["fold"].max() == 1
    assert folds[1].head(300).equals(folds[0])
    assert 0.2 < (folds[1]["fold"] == "validation").mean() < 0.4


def test_the_jump_has_the_values_of_its_formulas() -> None:
    low, high = np.repeat([1.0, 2.0, 3.0], 4), np.repeat([3.0, 4.0, 8.0], 4)

    found = jumps.jump("noun_count", low, high, SplitSpec(), 1)

    assert found.effect_size == pytest.approx(3 / np.sqrt(4 * (2 + 14) / 22))
    assert found.ks_distance == pytest.approx(2 / 3)
    assert found.tail_ratio == pytest.approx(8 / 3)


def test_of_a_few_clips_no_figure_is_made() -> None:
    low, high = np.array([1.0, 2.0, 3.0]), np.array([3.0, 4.0, 8.0])

    for pair in ((low, high), (low, np.repeat(high, 40)), (np.repeat(low, 40), high)):
        found = jumps.jump("noun_count", *pair, SplitSpec(), 1)
        assert (found.effect_size, found.tail_ratio, found.warning) == (None, None, None)


def test_a_jump_is_a_warning_from_ten_clips_on() -> None:
    low, high = np.arange(1.0, 11.0), np.arange(30.0, 40.0)

    found = jumps.jump("noun_count", low, high, SplitSpec(), 1)
    assert found.warning is not None
    assert "the top 1 % of noun_count grows 3.93 times" in found.warning
    assert jumps.jump("noun_count", low[:9], high, SplitSpec(), 1).warning is None
    other = jumps.jump("num_frames", low, high, SplitSpec(), 1)
    assert other.warning is not None
    few = jumps.jump("num_frames", low[:3], high[:3], SplitSpec(), 1)
    assert (few.ks_distance, few.warning) == (1.0, None)


def test_levels_of_one_value_each_have_no_effect_size(tmp_path: Path) -> None:
    checked(tmp_path, [1] * 5 + [2] * 5)

    summary = difficulty_stage.run_split(tmp_path, SplitSpec(levels=2))

    assert summary.jumps[0].effect_size is None
    assert json.loads((tmp_path / "levels.json").read_text())["jumps"][0]["effect_size"] is None


def test_a_jump_above_the_limit_is_reported(tmp_path: Path) -> None:
    checked(tmp_path, [*range(1, 80), *range(500, 520)])

    summary = difficulty_stage.run_split(tmp_path, SplitSpec(levels=5))

    assert [text for text in summary.warnings if "from level 4 to 5" in text and "grows" in text]


def test_another_column_that_shifts_between_levels_is_reported(tmp_path: Path) -> None:
    checked(tmp_path, list(range(100)), num_frames=[50] * 50 + [400] * 50)

    summary = difficulty_stage.run_split(tmp_path, SplitSpec(levels=2))

    assert any("num_frames shifts by a KS distance of 1.00" in text for text in summary.warnings)


def test_the_same_split_again_is_up_to_date(tmp_path: Path) -> None:
    checked(tmp_path, list(range(40)))

    first = difficulty_stage.run_split(tmp_path, SplitSpec(levels=4))
    again = difficulty_stage.run_split(tmp_path, SplitSpec(levels=4))

    assert (first.up_to_date, again.up_to_date) == (False, True)
    assert (first.levels, first.jumps) == (again.levels, again.jumps)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_the_order_of_the_rows_changes_no_level(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    nouns = data.draw(st.lists(st.integers(0, 30), min_size=6, max_size=80))
    ties = data.draw(st.sampled_from(["together", "split"]))
    levels = data.draw(st.integers(1, 3 if ties == "split" else max(1, min(3, len(set(nouns))))))
    spec = SplitSpec(levels=levels, ties=ties, validation_fraction=0.2)
    order = data.draw(st.permutations(range(len(nouns))))
    straight, mixed = tmp_path_factory.mktemp("a"), tmp_path_factory.mktemp("b")
    checked(straight, nouns)
    checked(
        mixed,
        [nouns[n] for n in order],
        clip_id=[f"c{n}" for n in order],
        source_id=[f"s{n // 3}" for n in order],
    )

    summary = difficulty_stage.run_split(straight, spec)
    difficulty_stage.run_split(mixed, spec)

    columns = ("clip_id", "level", "fold")
    assert (
        rows_of(straight)
        .select(columns)
        .sort("clip_id")
        .equals(rows_of(mixed).select(columns).sort("clip_id"))
    )
    assert all(level.clips > 0 for level in summary.levels)
    assert [level.max for level in summary.levels] == sorted(level.max for level in summary.levels)
    if ties == "split":
        clips = [level.clips for level in summary.levels]
        assert max(clips) - min(clips) <= 1
