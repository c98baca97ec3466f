"""Limits on any column, presets, missing values, outliers that are exact, and limits on how much may fail."""

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vidcurate.curation.filter.test_filter import KEPT, SCHEMA, clip, scored, verdicts
from tests.vidcurate.media.test_headers import with_pixel_shape
from vidcurate.curation.clip_table import table
from vidcurate.curation.clip_table.schema import COLUMNS
from vidcurate.curation.filter import spec as filter_spec
from vidcurate.curation.filter import stage as filter_stage
from vidcurate.curation.filter.outliers import limits
from vidcurate.curation.filter.presets import PRESETS
from vidcurate.curation.filter.spec import FilterSpec, Limit, OutlierRule
from vidcurate.curation.filter.stage import run_filter
from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.curation.ingest.stage import run_ingest
from vidcurate.curation.probe.stage import ProbeSpec, run_probe
from vidcurate.errors import ColumnError, FailureLimitError, RecipeError
from vidcurate.recipe import recipe


def with_columns(run: Path, count: int, **columns: Any) -> Path:
    """Write a run whose `count` clips have these columns besides the usual ones."""
    frame = pl.DataFrame([clip(f"c{n}") for n in range(count)], schema=SCHEMA).with_columns(
        *(
            value if isinstance(value, pl.Series) else pl.Series(name, value)
            for name, value in columns.items()
        )
    )
    table.write(frame, run / "score.parquet", table.Provenance(stage="score", settings={}, inputs={}))
    return run


def parse(text: str) -> FilterSpec:
    return recipe.parse(text, FilterSpec)


@pytest.mark.parametrize(
    ("limit", "rejected"),
    [
        ("min: 0.3", {"c0": ("min_flow", "0.1", ">= 0.3"), "c3": ("min_flow", "unknown", ">= 0.3")}),
        ("max: 0.3", {"c2": ("max_flow", "0.9", "<= 0.3"), "c3": ("max_flow", "unknown", "<= 0.3")}),
        ("min: 0.3, missing: keep", {"c0": ("min_flow", "0.1", ">= 0.3")}),
        ("{}", {}),
    ],
)
def test_any_column_of_numbers_can_be_limited(
    tmp_path: Path, limit: str, rejected: dict[str, tuple[str, str, str]]
) -> None:
    with_columns(tmp_path, 4, flow=[0.1, 0.3, 0.9, None])
    text = limit if limit == "{}" else f"{{{limit}}}"

    filter_stage.run_filter(tmp_path, parse(f"limits: {{flow: {text}}}"))

    assert {name: verdict for name, verdict in verdicts(tmp_path).items() if verdict != KEPT} == rejected


@pytest.mark.parametrize(
    ("limit", "rejected"),
    [
        (
            "allowed: [en, de]",
            {"c2": ("fr", 'one of ["en", "de"]'), "c3": ("unknown", 'one of ["en", "de"]')},
        ),
        ("forbidden: [fr]", {"c2": ("fr", 'none of ["fr"]'), "c3": ("unknown", 'none of ["fr"]')}),
        ("forbidden: [fr], missing: keep", {"c2": ("fr", 'none of ["fr"]')}),
    ],
)
def test_a_column_of_words_has_allowed_and_forbidden_values(
    tmp_path: Path, limit: str, rejected: dict[str, tuple[str, str]]
) -> None:
    with_columns(tmp_path, 4, language=["en", "de", "fr", None])

    filter_stage.run_filter(tmp_path, parse(f"limits: {{language: {{{limit}}}}}"))

    found = {name: verdict[1:] for name, verdict in verdicts(tmp_path).items() if verdict != KEPT}
    assert found == rejected


def test_a_column_of_true_and_false_has_allowed_values(tmp_path: Path) -> None:
    with_columns(tmp_path, 3, is_silent=[True, False, None])

    filter_stage.run_filter(tmp_path, parse("limits: {is_silent: {allowed: [false]}}"))

    assert [verdict[1] for verdict in verdicts(tmp_path).values()] == ["true", None, "unknown"]


def test_sides_can_be_limited_by_their_names(tmp_path: Path) -> None:
    scored(tmp_path, clip("a"), clip("b", height=100))

    filter_stage.run_filter(tmp_path, parse("limits: {short_side: {min: 200}, aspect_ratio: {max: 1}}"))

    assert verdicts(tmp_path)["b"] == ("min_short_side", "100", ">= 200")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "limits: {noun_cuont: {min: 1}}",
            r"limits\.noun_cuont needs the column noun_cuont.*Did you mean noun_count",
        ),
        ("limits: {qqq: {min: 1}}", r"the column qqq, which does not exist. Run `vidcurate export`"),
        ("limits: {sharpness_mean: {min: 1}}", r"column sharpness_mean.*Run `vidcurate score-frames"),
        ("limits: {source_dataset: {min: 1}}", r"needs a numeric column; source_dataset is String"),
        (
            "limits: {width: {allowed: [big]}}",
            r'limits\.width\.allowed is \["big"\], and the column width holds Int32',
        ),
        ("limits: {short_side: {allowed: [a]}}", r"limits\.short_side is a number"),
        ("limits: {source_dataset: {allowed: [true]}}", r"holds String"),
    ],
)
def test_a_limit_that_does_not_fit_its_column_is_refused(tmp_path: Path, text: str, message: str) -> None:
    scored(tmp_path, clip("a"))

    with pytest.raises(ColumnError, match=message):
        filter_stage.run_filter(tmp_path, parse(text))
    assert not (tmp_path / "filter.parquet").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "limits: {a: {min: 1, allowed: [b]}}",
            "min and max are for numbers, allowed and forbidden for words",
        ),
        ("limits: {a: {allowed: [b], forbidden: [b]}}", "nothing could be kept"),
        ("limits: {a: {allowed: []}}", "nothing could be kept"),
        ("limits: {a: {min: 1e400}}", "limits.a.min is Infinity: input should be a finite number"),
        ("limits: {a: {mn: 1}}", "Did you mean limits.a.min?"),
        ("preset: open-sora", "did you mean open-sora-1.2?"),
        ("preset: zzzzz", "known are lambda"),
        ("max_failure_share: 0.2", "run `vidcurate filter` with --max-failure-share"),
        ("outliers: [{column: a, method: z_score, value: -1}]", "z_score needs a value above 0"),
    ],
)
def test_a_wrong_limit_is_refused(text: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse(text)
    assert message in str(caught.value)


# ── presets ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_filter_of_known_columns_with_a_source(name: str) -> None:
    spec = filter_spec.written_out(FilterSpec(preset=name))

    assert PRESETS[name].source
    assert spec.model_dump(exclude={"preset"}) != FilterSpec().model_dump(exclude={"preset"})
    assert set(spec.limits) <= {*COLUMNS, "short_side"}
    assert {rule.column for rule in spec.outliers} <= set(COLUMNS)


def test_what_a_recipe_sets_stands_before_its_preset() -> None:
    spec = filter_spec.written_out(
        parse(
            "preset: mindone\n"
            "limits: {duration_seconds: {min: 1}, clip_match_mean: {min: 25}, text_area_mean: {}}"
        )
    )

    assert spec.limits["duration_seconds"] == Limit(min=1, max=30)
    assert spec.limits["clip_match_mean"] == Limit(min=25)
    assert spec.limits["text_area_mean"] == Limit()
    assert spec.limits["clip_aesthetic_mean"] == Limit(min=5)
    without = filter_spec.written_out(parse("preset: mindone\nlimits: {duration_seconds: {max: null}}"))
    assert without.limits["duration_seconds"] == Limit(min=2)


def test_a_preset_whose_columns_are_not_there_names_every_stage_to_run(tmp_path: Path) -> None:
    scored(tmp_path, clip("a"))

    with pytest.raises(
        ColumnError, match=r"preset crush-smol: .*clip_aesthetic_min.*watermark_max.*Run `vidcurate"
    ):
        filter_stage.run_filter(tmp_path, FilterSpec(preset="crush-smol"))


def test_the_rules_of_a_preset_reject_and_substitute_the_provenance(tmp_path: Path) -> None:
    with_columns(tmp_path, 2, clip_aesthetic_mean=[4.4, 4.5], num_frames=[9, 9])

    filter_stage.run_filter(tmp_path, FilterSpec(preset="open-sora-1.2"))

    assert verdicts(tmp_path) == {"c0": ("min_clip_aesthetic_mean", "4.4", ">= 4.5"), "c1": KEPT}
    reported = table.provenance(tmp_path / "filter.parquet").settings
    assert reported["preset"] == "open-sora-1.2"
    assert reported["limits"]["clip_aesthetic_mean"]["min"] == 4.5
    assert FilterSpec.model_validate_json(json.dumps(reported)) == filter_spec.written_out(
        FilterSpec(preset="open-sora-1.2")
    )


# ── outliers ────────────────────────────────────────────────────────────────────────────────────────


def test_a_z_score_is_that_of_numpy() -> None:
    values = np.array([1.0, 2.0, 3.0, 4.0, 100.0])
    rule = OutlierRule(column="x", method="z_score", value=1.5, side="both")

    found = limits(pl.Series(values), rule)

    assert found == pytest.approx((values.mean() - 1.5 * values.std(), values.mean() + 1.5 * values.std()))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_outlier_limits_depend_on_no_order_and_no_chunks(data: st.DataObject) -> None:
    numbers = st.floats(-1e6, 1e6, allow_nan=False, width=64)
    values = data.draw(st.lists(numbers, min_size=1, max_size=50))
    method = data.draw(st.sampled_from(["tail_quantile", "iqr", "mad", "z_score"]))
    mixed = data.draw(st.permutations(values))
    at = data.draw(st.integers(0, len(values)))
    rule = OutlierRule(column="x", method=method, value=0.1, side="both")

    straight = limits(pl.Series(values, dtype=pl.Float64), rule)
    parts = [pl.Series(mixed[:at], dtype=pl.Float64), pl.Series(mixed[at:], dtype=pl.Float64)]

    assert limits(pl.concat(parts, rechunk=False), rule) == straight


@pytest.mark.parametrize("method", ["tail_quantile", "iqr", "mad", "z_score"])
def test_infinite_values_are_outliers_and_hide_no_other(method: Any) -> None:
    rule = OutlierRule(column="x", method=method, value=0.1, side="both")
    numbers = [0.0, 1.0, 2.0, 3.0, 1000.0]

    found = limits(pl.Series([math.inf, -math.inf, math.nan, None, *numbers, math.inf]), rule)

    assert found == limits(pl.Series(numbers), rule)
    assert all(end is not None and math.isfinite(end) for end in found)
    assert limits(pl.Series([math.inf, None]), rule) == (None, None)


def test_float32_is_checked_as_the_number_that_it_is(tmp_path: Path) -> None:
    with_columns(tmp_path, 1, score32=pl.Series("score32", [0.3], dtype=pl.Float32))

    filter_stage.run_filter(tmp_path, parse("limits: {score32: {max: 0.3}}"))

    assert verdicts(tmp_path)["c0"] == ("max_score32", "0.30000001192092896", "<= 0.3")


# ── how much may fail ───────────────────────────────────────────────────────────────────────────────


def test_more_broken_clips_than_allowed_is_reported_after_everything_is_written(tmp_path: Path) -> None:
    scored(tmp_path, clip("a"), clip("b", probe_status="truncated"), clip("c", height=1), clip("d"))
    summary = filter_stage.run_filter(tmp_path, FilterSpec(limits={"height": Limit(min=100)}))

    filter_stage.check_limits(
        tmp_path, summary, max_failure_share=0.25
    )  # one of four is broken; the small one is a choice
    with pytest.raises(FailureLimitError, match=r"1 of 4 rows \(25 %\) are missing or broken; max_fail"):
        filter_stage.check_limits(tmp_path, summary, max_failure_share=0.2)
    with pytest.raises(FailureLimitError, match=r"2 of 4 rows \(50 %\) are rejected; max_rejected_share"):
        filter_stage.check_limits(tmp_path, summary, max_failure_share=None, max_rejected_share=0.49)
    assert FailureLimitError.exit_code == 3
    assert (tmp_path / "filter.parquet").exists()


def test_the_aspect_ratio_counts_the_shape_of_pixels(tmp_path: Path) -> None:
    """A clip of 96 x 64 pixels, each three quarters as wide as high, is shown as 72 x 64: 0.89, not 0.67."""
    (tmp_path / "videos").mkdir()
    with_pixel_shape(tmp_path / "videos/a.mp4", Fraction(3, 4))
    (tmp_path / "videos/a.txt").write_text("a clip")
    run = tmp_path / "run"
    run_ingest(run, IngestSpec(metadata=tmp_path / "videos"))
    run_probe(run, ProbeSpec(videos=tmp_path / "videos"))

    kept = [
        run_filter(run, FilterSpec(limits={"aspect_ratio": Limit(max=most)})).rows_kept for most in (0.8, 0.9)
    ]

    assert kept == [0, 1]
