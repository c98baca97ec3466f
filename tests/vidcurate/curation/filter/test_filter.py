import json
import math
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vidcurate.curation.clip_table import table
from vidcurate.curation.filter import stage as filter_stage
from vidcurate.curation.filter.spec import FilterSpec, Limit, OutlierRule, from_table
from vidcurate.errors import ColumnError, RecipeError
from vidcurate.recipe import recipe

SCHEMA = {
    "clip_id": pl.String,
    "source_dataset": pl.String,
    "video_path": pl.String,
    "width": pl.Int32,
    "height": pl.Int32,
    "duration_seconds": pl.Float64,
    "ingest_problem": pl.String,
    "probe_status": pl.String,
    "probe_problem": pl.String,
    "noun_count": pl.Int32,
    "motion_score": pl.Float64,
}


def clip(clip_id: str, **facts: Any) -> dict[str, Any]:
    usual = {
        "source_dataset": "openvid",
        "video_path": f"{clip_id}.mp4",
        "width": 640,
        "height": 360,
        "duration_seconds": 4.0,
        "probe_status": "ok",
        "noun_count": 5,
        "motion_score": 1.0,
    }
    return {name: {**usual, **facts, "clip_id": clip_id}.get(name) for name in SCHEMA}


def scored(run: Path, *clips: dict[str, Any]) -> Path:
    frame = pl.DataFrame(list(clips), schema=SCHEMA)
    table.write(frame, run / "score.parquet", table.Provenance(stage="score", settings={}, inputs={}))
    return run


def verdicts(run: Path) -> dict[str, tuple[str | None, str | None, str | None]]:
    rows = pl.read_parquet(run / "filter.parquet").iter_rows(named=True)
    return {
        row["clip_id"]: (row["reject_rule"], row["reject_value"], row["reject_threshold"]) for row in rows
    }


KEPT = (None, None, None)


@pytest.mark.parametrize(
    ("settings_", "facts", "verdict"),
    [
        ({}, {}, KEPT),
        ({"min_height": 360}, {}, KEPT),  # thresholds are inclusive
        ({"min_height": 361}, {}, ("min_height", "360", ">= 361")),
        ({"max_width": 639}, {}, ("max_width", "640", "<= 639")),
        ({"min_short_side": 361}, {"width": 360, "height": 640}, ("min_short_side", "360", ">= 361")),
        ({"max_aspect_ratio": 0.5}, {}, ("max_aspect_ratio", "0.5625", "<= 0.5")),
        ({"min_duration_seconds": 4.5}, {}, ("min_duration_seconds", "4.0", ">= 4.5")),
        ({"max_noun_count": 4}, {}, ("max_noun_count", "5", "<= 4")),
        ({"min_height": 1}, {"height": None}, ("min_height", "unknown", ">= 1")),
        ({"min_short_side": 1}, {"height": None}, ("min_short_side", "unknown", ">= 1")),
        ({"limits": {"motion_score": Limit(min=2)}}, {}, ("min_motion_score", "1.0", ">= 2")),
        ({}, {"ingest_problem": "missing_file"}, ("missing_file", "a.mp4", "no ingest problem")),
        ({}, {"probe_status": "truncated", "probe_problem": "cut"}, ("truncated", "cut", "ok")),
        ({"allow_probe_status": ("truncated",)}, {"probe_status": "truncated"}, KEPT),
        (
            {"limits": {"motion_score": Limit(min=2)}},
            {"motion_score": math.nan},
            ("min_motion_score", "unknown", ">= 2"),
        ),
        ({"max_aspect_ratio": 9}, {"width": 0}, ("max_aspect_ratio", "unknown", "<= 9")),
        ({}, {"probe_status": None}, ("unknown", "unknown", "ok")),
        (  # the first rule that fails gives the verdict
            {"min_height": 999, "max_noun_count": 1},
            {"probe_status": "empty"},
            ("empty", "empty", "ok"),
        ),
        (
            {"outliers": (OutlierRule(column="noun_count", method="absolute", value=4),)},
            {},
            ("outlier_noun_count_absolute", "5", "<= 4"),
        ),
    ],
)
def test_a_clip_gets_the_verdict_of_its_first_failing_rule(
    tmp_path: Path, settings_: dict[str, Any], facts: dict[str, Any], verdict: tuple[str | None, ...]
) -> None:
    scored(tmp_path, clip("a", **facts))

    outliers = settings_.get("outliers", ())
    limits = {key: value for key, value in settings_.items() if key != "outliers"}
    spec = FilterSpec(**from_table(limits), outliers=outliers)
    summary = filter_stage.run_filter(tmp_path, spec)

    assert verdicts(tmp_path) == {"a": verdict}
    assert (summary.rows_kept, summary.rows_rejected) == ((1, 0) if verdict == KEPT else (0, 1))


def test_no_row_is_lost(tmp_path: Path) -> None:
    scored(
        tmp_path,
        clip("small", height=100, duration_seconds=0.1),
        clip("short", duration_seconds=0.5),
        clip("good"),
        clip("missing", ingest_problem="missing_file", height=None),
    )

    summary = filter_stage.run_filter(
        tmp_path, FilterSpec(limits={"height": Limit(min=200), "duration_seconds": Limit(min=1)})
    )

    assert summary.rows_in == 4 == summary.rows_kept + summary.rows_rejected
    assert summary.by_rule == {"missing_file": 1, "min_height": 1, "min_duration_seconds": 1}
    ledger = pl.read_parquet(tmp_path / "ledger.parquet")
    assert ledger.select("clip_id", "rule", "value", "threshold").rows() == [
        ("small", "min_height", "100", ">= 200"),
        ("small", "min_duration_seconds", "0.1", ">= 1"),
        ("short", "min_duration_seconds", "0.5", ">= 1"),
        ("missing", "missing_file", "missing.mp4", "no ingest problem"),
        ("missing", "min_height", "unknown", ">= 200"),
    ]
    steps = json.loads((tmp_path / "funnel.json").read_text())
    assert [(step["rows_in"], step["rejected"], step["kept"]) for step in steps] == [
        (4, 1, 3),
        (3, 1, 2),
        (2, 1, 1),
    ]


def test_a_table_without_rejections_has_an_empty_funnel(tmp_path: Path) -> None:
    summary = filter_stage.run_filter(scored(tmp_path, clip("a")), FilterSpec())

    assert summary.funnel == ()
    assert pl.read_parquet(tmp_path / "ledger.parquet").is_empty()


def test_the_hardest_tail_is_cut_and_ties_at_the_cut_stay(tmp_path: Path) -> None:
    counts = [1] * 9_990 + [50] * 8 + [90, 99]
    scored(tmp_path, *(clip(f"c{n}", noun_count=count) for n, count in enumerate(counts)))

    rule = OutlierRule(column="noun_count", value=0.0002)
    filter_stage.run_filter(tmp_path, FilterSpec(outliers=(rule,)))

    rejected = {name for name, verdict in verdicts(tmp_path).items() if verdict != KEPT}
    assert rejected == {"c9998", "c9999"}
    assert verdicts(tmp_path)["c9999"] == ("outlier_noun_count_tail_quantile", "99", "<= 50")


@pytest.mark.parametrize(
    ("method", "value", "rejected"),
    [("iqr", 1.5, ["low", "high"]), ("mad", 3.0, ["low", "high"]), ("tail_quantile", 0.02, ["low", "high"])],
)
def test_outliers_on_both_sides_are_found(
    tmp_path: Path, method: Any, value: float, rejected: list[str]
) -> None:
    usual = [clip(f"c{n}", motion_score=10 + n % 10) for n in range(100)]
    scored(tmp_path, clip("low", motion_score=-50.0), *usual, clip("high", motion_score=99.0))

    rule = OutlierRule(column="motion_score", method=method, value=value, side="both")
    filter_stage.run_filter(tmp_path, FilterSpec(outliers=(rule,)))

    assert [name for name, verdict in verdicts(tmp_path).items() if verdict != KEPT] == rejected


def test_a_constant_column_has_no_mad_outliers(tmp_path: Path) -> None:
    scored(tmp_path, *(clip(f"c{n}", motion_score=1.0) for n in range(9)), clip("odd", motion_score=2.0))

    rule = OutlierRule(column="motion_score", method="mad", value=3, side="both")

    assert filter_stage.run_filter(tmp_path, FilterSpec(outliers=(rule,))).rows_rejected == 0


def test_outliers_are_looked_for_among_the_clips_that_passed_and_in_each_data_set(tmp_path: Path) -> None:
    scored(
        tmp_path,
        *(clip(f"a{n}", noun_count=n, source_dataset="a") for n in range(10)),
        *(clip(f"b{n}", noun_count=100 + n, source_dataset="b") for n in range(10)),
        clip("broken", noun_count=10_000, source_dataset="a", probe_status="empty"),
    )

    rule = OutlierRule(column="noun_count", value=0.1, per_source_dataset=True)
    filter_stage.run_filter(tmp_path, FilterSpec(outliers=(rule,)))

    rejected = {name: verdict[2] for name, verdict in verdicts(tmp_path).items() if verdict != KEPT}
    assert rejected == {"a9": "<= 8", "b9": "<= 108", "broken": "ok"}


def test_a_rule_without_its_column_names_the_stage_to_run(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {"clip_id": ["a"], "video_path": ["a"], "ingest_problem": pl.Series([None], dtype=pl.String)}
    )
    table.write(frame, tmp_path / "ingest.parquet", table.Provenance(stage="ingest", settings={}, inputs={}))

    with pytest.raises(
        ColumnError, match=r"limits.noun_count needs the column noun_count.*Run `vidcurate score"
    ):
        filter_stage.run_filter(tmp_path, FilterSpec(limits={"noun_count": Limit(min=1)}))
    with pytest.raises(ColumnError, match=r"limits\.beauty needs the column beauty"):
        filter_stage.run_filter(tmp_path, FilterSpec(limits={"beauty": Limit(min=1)}))
    with pytest.raises(ColumnError, match=r"outliers\.noun_count needs the column"):
        filter_stage.run_filter(tmp_path, FilterSpec(outliers=(OutlierRule(column="noun_count"),)))


def test_a_rule_on_a_column_of_words_is_refused(tmp_path: Path) -> None:
    scored(tmp_path, clip("a"))
    with pytest.raises(ColumnError, match=r"limits\.source_dataset needs a numeric column.*is String"):
        filter_stage.run_filter(tmp_path, FilterSpec(limits={"source_dataset": Limit(min=1)}))
    with pytest.raises(ColumnError, match=r"outliers\.video_path needs a numeric column"):
        filter_stage.run_filter(tmp_path, FilterSpec(outliers=(OutlierRule(column="video_path"),)))


def test_what_is_not_a_number_moves_no_outlier_limit(tmp_path: Path) -> None:
    scored(
        tmp_path,
        *(clip(f"c{n}", motion_score=float(n)) for n in range(20)),
        clip("nan", motion_score=math.nan),
    )

    rule = OutlierRule(column="motion_score", value=0.06)
    filter_stage.run_filter(tmp_path, FilterSpec(outliers=(rule,)))

    rejected = {name: verdict[1:] for name, verdict in verdicts(tmp_path).items() if verdict != KEPT}
    assert rejected == {"c18": ("18.0", "<= 17"), "c19": ("19.0", "<= 17"), "nan": ("unknown", "<= 17")}


def test_two_rules_of_one_kind_are_counted_together(tmp_path: Path) -> None:
    scored(tmp_path, clip("a"), clip("b", noun_count=50), clip("c", noun_count=0))
    upper = OutlierRule(column="noun_count", method="absolute", value=10)
    lower = OutlierRule(column="noun_count", method="absolute", value=1, side="lower")

    summary = filter_stage.run_filter(tmp_path, FilterSpec(outliers=(upper, lower)))

    assert summary.by_rule == {"outlier_noun_count_absolute": 2}
    assert [(step.threshold, step.rejected) for step in summary.funnel] == [("<= 10", 1), (">= 1", 1)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("limits: {height: {min: -1}}", "limits.height.min is -1, and no clip has a height below 0"),
        ("limits: {height: {min: 5, max: 4}}", "min 5 is above max 4"),
        ("min_height: 5", "min_height is no longer a setting: write limits: {height: {min: …}}."),
        ("limits: {a: {min: 2, max: 1}}", "min 2 is above max 1"),
        ("outliers: [{column: a, value: 0.7}]", "method tail_quantile needs a value between 0 and 0.5"),
        ("outliers: [{column: a, method: iqr, value: 0}]", "iqr needs a value above 0"),
        ("outliers: [{column: a, method: absolute, side: both}]", "method absolute has one side"),
        ("outliers: [{column: a, method: sigma}]", 'outliers.0.method is "sigma"'),
        ("allow_probe_status: [fine]", "'fine' is no probe status"),
    ],
)
def test_a_wrong_filter_is_refused(text: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe.parse(text, FilterSpec)
    assert message in str(caught.value)


def test_the_same_filter_again_is_up_to_date_and_another_gives_another_table(tmp_path: Path) -> None:
    scored(tmp_path, clip("a"), clip("b", height=100))
    first = filter_stage.run_filter(tmp_path, FilterSpec(limits={"height": Limit(min=200)}))
    digest = table.digest(tmp_path / "filter.parquet")

    again = filter_stage.run_filter(tmp_path, FilterSpec(limits={"height": Limit(min=200)}))
    other = filter_stage.run_filter(tmp_path, FilterSpec(limits={"height": Limit(min=50)}))
    back = filter_stage.run_filter(tmp_path, FilterSpec(limits={"height": Limit(min=200)}))

    assert (first.up_to_date, again.up_to_date, other.up_to_date) == (False, True, False)
    assert other.rows_rejected == 0
    assert back.funnel == first.funnel
    assert table.digest(tmp_path / "filter.parquet") == digest


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 999) | st.none(), st.integers(0, 40) | st.none()), min_size=1, max_size=60
    ),
    st.integers(0, 999),
    st.floats(0.01, 0.49),
)
def test_every_row_is_kept_or_rejected_with_its_reason(
    tmp_path_factory: pytest.TempPathFactory,
    facts: list[tuple[int | None, int | None]],
    height: int,
    tail: float,
) -> None:
    run = tmp_path_factory.mktemp("run")
    scored(run, *(clip(f"c{n}", height=h, noun_count=nouns) for n, (h, nouns) in enumerate(facts)))

    spec = FilterSpec(
        limits={"height": Limit(min=height)},
        outliers=(OutlierRule(column="noun_count", value=tail, side="both"),),
    )
    summary = filter_stage.run_filter(run, spec)

    rows = pl.read_parquet(run / "filter.parquet")
    reasons = ("reject_stage", "reject_rule", "reject_value", "reject_threshold")
    assert rows["clip_id"].to_list() == [f"c{n}" for n in range(len(facts))]
    assert rows.filter("is_kept").select(pl.all_horizontal(pl.col(reasons).is_null())).to_series().all()
    assert (
        rows.filter(~pl.col("is_kept"))
        .select(pl.all_horizontal(pl.col(reasons).is_not_null()))
        .to_series()
        .all()
    )
    assert sum(summary.by_rule.values()) == summary.rows_rejected
