from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.vidcurate.curation.filter.test_filter import SCHEMA, clip, scored
from vidcurate.curation.clip_table import rejection_ledger, table
from vidcurate.curation.difficulty import stage as difficulty_stage
from vidcurate.curation.difficulty.spec import SplitSpec
from vidcurate.curation.filter import stage as filter_stage
from vidcurate.curation.filter.spec import FilterSpec, Limit, OutlierRule
from vidcurate.errors import StageError, TableError


def entries(*rows: tuple[str, str, str]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=["rule", "value", "threshold"], orient="row")


@pytest.mark.parametrize(
    ("rule", "value", "threshold", "fails"),
    [
        ("min_x", "0.1", ">= 0.3", True),
        ("min_x", "0.3", ">= 0.3", False),
        ("max_x", "1e-7", "<= 2e-07", False),
        ("max_x", "3e-7", "<= 2e-07", True),
        ("min_x", "-5.0", ">= -4.5", True),
        ("outlier_x_iqr", "7", ">= 2 and <= 6.5", True),
        ("outlier_x_iqr", "3", ">= 2 and <= 6.5", False),
        ("outlier_x_mad", "3", ">= -inf and <= inf", False),
        ("min_x", "unknown", ">= 1", True),
        ("allowed_x", "fr", 'one of ["en", "de"]', True),
        ("allowed_x", "de", 'one of ["en", "de"]', False),
        ("allowed_x", "unknown", 'one of ["en"]', True),
        ("forbidden_x", "a, b", 'none of ["a, b"]', True),
        ("forbidden_x", "a", 'none of ["a, b"]', False),
        ("truncated", "ends early", "ok", True),
        ("truncated", "ends early", "ok or truncated", False),
        ("empty_caption", "a.mp4", "no ingest problem", True),
        ("no_noun_count", "unknown", "known", True),
    ],
)
def test_a_verdict_follows_from_its_value_and_threshold(
    rule: str, value: str, threshold: str, fails: bool
) -> None:
    assert rejection_ledger.replay_ledger(entries((rule, value, threshold))).to_list() == [fails]


def run_of_many_rules(run: Path) -> Path:
    scored(
        run,
        clip("good"),
        clip("small", height=10, duration_seconds=0.1),
        clip("cut", probe_status="truncated", probe_problem="cut: the index ends at byte 9."),
        clip("gone", ingest_problem="missing_file", height=None),
        clip("else", source_dataset="other"),
        *(clip(f"c{n}", noun_count=n, motion_score=n / 7) for n in range(40)),
    )
    spec = FilterSpec(
        limits={
            "height": Limit(min=100),
            "duration_seconds": Limit(min=0.1234567890123),
            "source_dataset": Limit(allowed=("openvid",)),
            "motion_score": Limit(max=30 / 7),
        },
        outliers=(OutlierRule(column="noun_count", method="iqr", value=0.7, side="both"),),
    )
    filter_stage.run_filter(run, spec)
    return run


def test_every_verdict_of_a_run_is_replayed_from_the_ledger_alone(tmp_path: Path) -> None:
    run = run_of_many_rules(tmp_path)
    reported = pl.read_parquet(run / "ledger.parquet")

    assert reported.columns == list(rejection_ledger.ORDER)
    assert rejection_ledger.replay_ledger(reported).all()
    counted = rejection_ledger.check_ledger(run)
    assert counted["rows_rejected"] == reported["is_verdict"].sum() > 10
    assert counted["entries_replayed"] == len(reported) > counted["rows_rejected"]


def test_the_split_signs_its_own_rejections(tmp_path: Path) -> None:
    run = run_of_many_rules(tmp_path)
    difficulty_stage.run_split(run, SplitSpec(levels=2, drop_hardest=0.1))

    reported = pl.read_parquet(run / "ledger.parquet")

    dropped = reported.filter(pl.col("stage") == "split")
    assert len(dropped) > 0
    assert dropped["rule"].unique().to_list() == ["drop_hardest"]
    assert reported["settings"].n_unique() == 2
    rejection_ledger.check_ledger(run)


def test_a_rejected_clip_has_one_row_with_its_file_and_the_other_rules_that_it_fails(tmp_path: Path) -> None:
    run = run_of_many_rules(tmp_path)

    rows = {row["clip_id"]: row for row in rejection_ledger.rejected(run).collect().iter_rows(named=True)}

    small = rows["small"]
    assert (small["stage"], small["rule"], small["measure"]) == ("filter", "min_height", "height")
    assert (small["value"], small["threshold"], small["also"]) == ("10", ">= 100", "min_duration_seconds")
    assert small["video_path"] == "small.mp4"
    assert rows["cut"]["also"] is None
    assert len(rows) == rejection_ledger.overview(run)["rows_rejected"]


def test_the_overview_counts_verdicts_and_failures(tmp_path: Path) -> None:
    found = rejection_ledger.overview(run_of_many_rules(tmp_path))

    by_rule = {rule["rule"]: (rule["rejected"], rule["failing"]) for rule in found["rules"]}
    assert by_rule["min_height"] == (1, 2)  # the missing file has no height either
    assert by_rule["min_duration_seconds"] == (0, 1)
    assert found["by_stage"]["ingest"] == found["by_stage"]["probe"] == 1


def test_a_ledger_that_was_tampered_with_is_found(tmp_path: Path) -> None:
    run = run_of_many_rules(tmp_path)
    path = run / "ledger.parquet"
    whole, origin = pl.read_parquet(path), table.provenance(path)

    table.write(whole.with_columns(value=pl.lit("500")), path, origin)
    with pytest.raises(TableError, match="entries do not follow from their values"):
        rejection_ledger.check_ledger(run)
    is_small = (pl.col("clip_id") == "small") & (pl.col("rule") == "min_height")
    one = pl.when(is_small).then(pl.lit("500")).otherwise(pl.col("value"))
    table.write(whole.with_columns(value=one), path, origin)
    with pytest.raises(TableError, match="1 entry does not follow from its value; the first is small"):
        rejection_ledger.check_ledger(run)
    table.write(whole.filter(pl.col("clip_id") != "small"), path, origin)
    with pytest.raises(TableError, match=r"verdicts differ from filter.parquet, first at small"):
        rejection_ledger.check_ledger(run)


def test_a_run_without_a_filter_has_no_ledger(tmp_path: Path) -> None:
    scored(tmp_path, clip("a"))
    with pytest.raises(StageError, match=r"ledger.parquet: no ledger. Run `vidcurate filter"):
        rejection_ledger.overview(tmp_path)


@settings(max_examples=30, deadline=None)
@example(values=[0.0, 1.8961503816218355e154], bound=0.0, method="z_score")
@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=False) | st.none(), min_size=1, max_size=30),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["tail_quantile", "iqr", "mad", "z_score"]),
)
def test_any_number_is_replayed_to_the_same_verdict(
    tmp_path_factory: pytest.TempPathFactory, values: list[float | None], bound: float, method: Any
) -> None:
    run = tmp_path_factory.mktemp("run")
    facts = [clip(f"c{n}", motion_score=value) for n, value in enumerate(values)]
    frame = pl.DataFrame(facts, schema=SCHEMA)
    table.write(frame, run / "score.parquet", table.Provenance(stage="score", settings={}, inputs={}))
    rule = OutlierRule(column="motion_score", method=method, value=0.3, side="both")

    filter_stage.run_filter(run, FilterSpec(limits={"motion_score": Limit(min=bound)}, outliers=(rule,)))

    rejection_ledger.check_ledger(run)
