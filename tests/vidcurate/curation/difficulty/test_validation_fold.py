"""The validation fold of a split: by default, by a fraction, and the advice where it is empty."""

import re
from pathlib import Path

import numpy as np
import pytest

from tests.vidcurate.curation.difficulty.test_difficulty import checked
from vidcurate.curation.difficulty import advice, cut
from vidcurate.curation.difficulty import stage as difficulty_stage
from vidcurate.curation.difficulty.spec import SplitSpec


@pytest.mark.parametrize("num_clips", [6, 24, 60])
def test_an_empty_validation_fold_is_named_with_the_fraction_that_fills_it(
    tmp_path: Path, num_clips: int
) -> None:
    checked(tmp_path, [n % 5 for n in range(num_clips)])

    summary = difficulty_stage.run_split(tmp_path, SplitSpec(levels=2, validation_fraction=0.0001))

    assert summary.validation_clips == 0
    (line,) = [line for line in summary.advice if line.startswith("the fold validation is empty")]
    fraction = float(re.search(r"--set validation_fraction=(0\.\d+)\.$", line)[1])  # type: ignore[index]
    again = difficulty_stage.run_split(tmp_path, SplitSpec(levels=2, validation_fraction=fraction))
    assert f"({again.validation_clips:,} clips)" in line
    assert 0 < again.validation_clips < num_clips
    assert not [line for line in again.advice if "validation" in line]


def test_no_validation_fold_is_advised_where_none_is_wanted_or_possible(tmp_path: Path) -> None:
    assert advice.empty_validation(np.array([0.3, 0.6]), 0.0) == ()
    (line,) = advice.empty_validation(np.array([0.3, 0.3]), 0.01)
    assert line.endswith("takes none, and one source cannot be in both folds.")


@pytest.mark.parametrize("num_clips", [6, 11, 24, 60])
def test_a_small_set_has_a_validation_fold_without_a_setting(tmp_path: Path, num_clips: int) -> None:
    checked(tmp_path, [n % 5 for n in range(num_clips)])

    summary = difficulty_stage.run_split(tmp_path, SplitSpec(levels=2))

    assert 0 < summary.validation_clips < num_clips
    assert not [line for line in summary.advice if "validation" in line]


def test_a_set_that_grows_moves_no_source_from_training_to_validation() -> None:
    draws = np.random.default_rng(5).random(3000)
    trained: set[int] = set()
    for size in range(2, len(draws)):
        is_validation = draws[:size] < cut.validation_limit(draws[:size], None)
        assert is_validation.any()
        assert not trained & set(np.flatnonzero(is_validation).tolist())
        trained = set(np.flatnonzero(~is_validation).tolist())
    assert len(trained) == int((draws[: len(draws) - 1] >= 0.01).sum())


def test_a_fraction_that_is_set_is_taken_as_it_is_and_one_source_stays_in_training() -> None:
    assert cut.validation_limit(np.array([0.3, 0.6]), 0.0) == 0.0
    assert cut.validation_limit(np.array([0.3, 0.6]), 0.2) == 0.2
    assert not (np.array([0.3, 0.3]) < cut.validation_limit(np.array([0.3, 0.3]), None)).any()
