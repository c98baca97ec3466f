from pathlib import Path

import polars as pl
import pytest
from rich.console import Console

from tests.vidcurate.curation.difficulty.test_difficulty import checked
from vidcurate.curation.difficulty import stage as difficulty_stage
from vidcurate.curation.difficulty.spec import SplitSpec
from vidcurate.curation.report import inspect_clip
from vidcurate.errors import InputError, StageError


@pytest.fixture
def run(tmp_path: Path) -> Path:
    checked(
        tmp_path,
        [1, 2, 3, 4],
        is_kept=[True, True, True, False],
        reject_stage=pl.Series([None, None, None, "probe"], dtype=pl.String),
        reject_rule=pl.Series([None, None, None, "truncated"], dtype=pl.String),
        reject_value=pl.Series([None, None, None, "ends early"], dtype=pl.String),
        reject_threshold=pl.Series([None, None, None, "ok"], dtype=pl.String),
    )
    difficulty_stage.run_split(tmp_path, SplitSpec(levels=3, validation_fraction=0))
    return tmp_path


def test_the_overview_counts_verdicts_and_levels(run: Path) -> None:
    found = inspect_clip.run_overview(run)

    assert (found["rows"], found["rows_kept"]) == (4, 3)
    assert found["by_reject_rule"] == {"truncated": 1}
    assert found["levels"] == [{"fold": "train", "level": level, "clips": 1} for level in (1, 2, 3)]


def test_a_clips_fate_says_why_it_was_rejected(run: Path) -> None:
    assert (
        inspect_clip.clip_fate(run, "c3")["verdict"]
        == "rejected at probe by truncated: ends early (asked: ok)"
    )
    assert inspect_clip.clip_fate(run, "c2")["verdict"] == "kept, level 3, train"
    assert inspect_clip.clip_fate(run, "c2")["split"] == {"is_kept": True, "level": 3, "fold": "train"}


def test_a_clip_that_is_not_there_brings_the_nearest_ones(run: Path) -> None:
    with pytest.raises(InputError, match=r"no clip 'c9'\. Similar ids: c"):
        inspect_clip.clip_fate(run, "c9")
    with pytest.raises(StageError, match="no table of any stage"):
        inspect_clip.run_overview(run.parent / run.name / "..")


def test_everything_of_a_fate_can_be_shown_on_a_terminal(run: Path) -> None:
    console = Console(record=True, width=100)

    console.print(inspect_clip.render(inspect_clip.clip_fate(run, "c3")))
    console.print(inspect_clip.render(inspect_clip.run_overview(run)))

    assert "ends early" in console.export_text()
