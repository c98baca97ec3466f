"""A filter that is killed between its files leaves no ledger or funnel beside another command's table."""

from pathlib import Path

import pytest

from tests.vidcurate.curation.filter.test_filter import clip, scored
from vidcurate.curation.clip_table import rejection_ledger
from vidcurate.curation.difficulty.spec import SplitSpec
from vidcurate.curation.difficulty.stage import run_split
from vidcurate.curation.filter import stage as filter_stage
from vidcurate.curation.filter.spec import FilterSpec
from vidcurate.errors import StageError
from vidcurate.shards.build import run_build_shards
from vidcurate.shards.layout import ShardSpec


def killed_before_the_table(run: Path, spec: FilterSpec) -> None:
    """Leave the run as a filter does that is killed before it renames its table: a new ledger and funnel."""
    before = (run / "filter.parquet").read_bytes()
    filter_stage.run_filter(run, spec)
    (run / "filter.parquet").write_bytes(before)


def test_a_ledger_of_another_command_than_its_tables_is_refused_until_filter_has_run_again(
    tmp_path: Path,
) -> None:
    run = scored(tmp_path, clip("a"), clip("b", noun_count=2), clip("c", noun_count=9))
    low, high = (FilterSpec(limits={"noun_count": {"min": least}}) for least in (3, 7))
    filter_stage.run_filter(run, low)
    killed_before_the_table(run, high)

    for read in (rejection_ledger.read_ledger, filter_stage.read_funnel):
        with pytest.raises(StageError, match=rf"is not of the command .* Run `vidcurate filter {run}` again"):
            read(run)

    summary = filter_stage.run_filter(run, low)
    assert (summary.rows_kept, summary.by_rule) == (2, {"min_noun_count": 1})
    assert [step.rejected for step in filter_stage.read_funnel(run)] == [1]


def test_split_and_build_shards_refuse_such_a_ledger_before_they_write_anything(tmp_path: Path) -> None:
    run = scored(tmp_path / "run", *(clip(name, noun_count=2 + at) for at, name in enumerate("abcdef")))
    low, high = (FilterSpec(limits={"noun_count": {"min": least}}) for least in (3, 7))
    filter_stage.run_filter(run, low)
    killed_before_the_table(run, high)
    files = sorted(run.iterdir())

    with pytest.raises(StageError, match="is not of the command that wrote"):
        run_split(run, SplitSpec(levels=2))
    with pytest.raises(StageError, match="is not of the command that wrote"):
        run_build_shards(run, ShardSpec(), videos=tmp_path, out=tmp_path / "shards", is_unprobed_allowed=True)

    assert sorted(run.iterdir()) == files
    assert not (tmp_path / "shards").exists()


def test_a_funnel_file_of_another_command_is_shown_by_nothing_and_written_again(tmp_path: Path) -> None:
    run = scored(tmp_path, clip("a"), clip("b", noun_count=2), clip("c", noun_count=9))
    spec = FilterSpec(limits={"noun_count": {"min": 3}})
    filter_stage.run_filter(run, spec)
    funnel = (run / "funnel.json").read_bytes()
    filter_stage.run_filter(tmp_path, FilterSpec(limits={"noun_count": {"min": 7}}))
    other = (run / "funnel.json").read_bytes()
    assert other != funnel
    filter_stage.run_filter(run, spec)
    (run / "funnel.json").write_bytes(other)

    assert [step.rejected for step in filter_stage.read_funnel(run)] == [1]
    summary = filter_stage.run_filter(run, spec)

    assert (summary.up_to_date, summary.by_rule) == (True, {"min_noun_count": 1})
    assert (run / "funnel.json").read_bytes() == funnel
