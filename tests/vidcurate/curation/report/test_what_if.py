from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vidcurate.curation.filter.test_filter import clip, scored
from vidcurate.curation.clip_table import table
from vidcurate.curation.difficulty import stage as difficulty_stage
from vidcurate.curation.difficulty.spec import SplitSpec
from vidcurate.curation.filter import stage as filter_stage
from vidcurate.curation.filter.spec import FilterSpec, Limit, as_limit
from vidcurate.curation.report import what_if
from vidcurate.errors import ColumnError, InputError, RecipeError
from vidcurate.recipe import recipe


def many(run: Path, count: int = 60) -> Path:
    return scored(
        run,
        *(
            clip(
                f"c{n}",
                noun_count=n % 20,
                duration_seconds=float(1 + n % 5),
                motion_score=n / 10,
                source_dataset="a" if n % 3 else "b",
                height=1080 if n % 2 else 144,
                width=1920 if n % 2 else 256,
            )
            for n in range(count)
        ),
        clip("broken", probe_status="truncated"),
    )


def tried(run: Path, *given_: str, **more: Any) -> dict[str, Any]:
    return what_if.what_if(run, what_if.spec_of(run, settings=given_, **more))


@pytest.mark.parametrize(
    "given_",
    [
        [],
        ["min_duration_seconds=3"],
        ["limits.motion_score.max=4", "max_noun_count=15"],
        ["outliers=[{column: noun_count, method: iqr, value: 0.2, side: both}]"],
        ["outliers=[{column: motion_score, value: 0.1, per_source_dataset: true}]", "min_height=200"],
    ],
)
def test_a_what_if_says_what_the_filter_then_does(tmp_path: Path, given_: list[str]) -> None:
    run = many(tmp_path)
    found = tried(run, *given_)

    filter_stage.run_filter(run, recipe.parse("", FilterSpec, settings=[*map(as_limit, given_)]))

    kept = pl.read_parquet(run / "filter.parquet").filter("is_kept")["clip_id"]
    clips = pl.read_parquet(run / "score.parquet").filter(pl.col("clip_id").is_in(kept.implode()))
    assert found["rows_in"] == 61
    assert found["kept"]["clips"] == len(kept)
    assert found["kept"]["hours"] == pytest.approx(clips["duration_seconds"].sum() / 3600, abs=1e-6)
    assert {name: one["clips"] for name, one in found["by_source"].items()} == dict(
        clips["source_dataset"].value_counts().iter_rows()
    )
    funnel = [rule["rejected"] for rule in found["rules"]]
    assert sum(funnel) == 61 - len(kept)


def test_nothing_is_written(tmp_path: Path) -> None:
    run = many(tmp_path)
    filter_stage.run_filter(run, FilterSpec(limits={"height": Limit(min=100)}))
    difficulty_stage.run_split(run, SplitSpec(levels=2))
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in run.iterdir()}

    tried(run, "min_height=200")
    what_if.sweep(run, what_if.spec_of(run), "max_noun_count=1:19:2")

    assert {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in run.iterdir()} == before


def test_a_setting_is_tried_on_top_of_those_of_the_run(tmp_path: Path) -> None:
    run = many(tmp_path)
    filter_stage.run_filter(
        run, recipe.parse("limits: {height: {min: 200}, motion_score: {max: 4}}", FilterSpec)
    )

    found = tried(run, "max_noun_count=9")
    without = tried(run, "min_height=null", "limits={motion_score: {}}")

    assert found["now"]["clips"] == 20
    assert (found["newly_kept"], found["newly_rejected"]) == (
        0,
        found["now"]["clips"] - found["kept"]["clips"],
    )
    assert [rule["rule"] for rule in found["rules"]] == [
        "ingest_problem", "probe_status", "min_height", "max_noun_count", "max_motion_score",
    ]  # fmt: skip
    assert (without["kept"]["clips"], without["newly_kept"]) == (60, 40)


def test_a_sweep_agrees_with_each_of_its_points(tmp_path: Path) -> None:
    run = many(tmp_path)
    filter_stage.run_filter(run, FilterSpec(limits={"height": Limit(min=200)}))

    found = what_if.sweep(run, what_if.spec_of(run), "min_duration_seconds=1:5:1")

    assert [point["value"] for point in found["points"]] == ["1", "2", "3", "4", "5"]
    for point in found["points"]:
        single = tried(run, f"min_duration_seconds={point['value']}")
        assert {name: point[name] for name in ("clips", "hours", "share")} == single["kept"]
        assert point["by_source"] == single["by_source"]
    assert found["now"]["clips"] == found["points"][0]["clips"] == 30


def test_survivors_are_counted_by_the_levels_that_the_split_cut(tmp_path: Path) -> None:
    run = many(tmp_path)
    filter_stage.run_filter(run, FilterSpec(limits={"height": Limit(min=200)}))
    difficulty_stage.run_split(run, SplitSpec(levels=2))
    levels = table.scan(run, "split").collect()

    now = tried(run)
    more = tried(run, "min_height=null")

    assert {name: one["clips"] for name, one in now["by_level"].items()} == {
        str(level): count for level, count in levels["level"].drop_nulls().value_counts().iter_rows()
    }
    assert sum(one["clips"] for one in more["by_level"].values()) == 60


def test_survivors_are_counted_by_the_bucket_that_they_fit(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {
            "clip_id": ["hd", "small", "short", "tiny", "unknown"],
            "video_path": ["x"] * 5,
            "ingest_problem": pl.Series([None] * 5, dtype=pl.String),
            "width": [1920, 256, 1920, 16, None],
            "height": [1080, 144, 1080, 16, None],
            "num_frames": [110, 51, 20, 110, 110],
        }
    )
    table.write(frame, tmp_path / "score.parquet", table.Provenance(stage="score", settings={}, inputs={}))

    found = tried(tmp_path)["by_bucket"]

    assert {name: one["clips"] for name, one in found.items()} == {
        "1080p-102f": 1,
        "144p-51f": 1,
        "no bucket: too_short": 1,
        "no bucket: too_small": 1,
        "no bucket: size unknown": 1,
    }
    assert found["1080p-102f"]["hours"] is None


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a=1,2,3", ["1", "2", "3"]),
        ("a.b=0:1:0.25", ["0", "0.25", "0.5", "0.75", "1"]),
        ("a=5:1:-2", ["5", "3", "1"]),
        ("a=null,3", ["null", "3"]),
    ],
)
def test_a_sweep_is_a_list_or_a_range(text: str, values: list[str]) -> None:
    assert what_if.points(text)[1] == values


@pytest.mark.parametrize("text", ["a", "a=", "=1", "a=1:2", "a=1:x:1", "a=1:2:0", "a=1:2:-1", "a=0:1:1e-9"])
def test_a_sweep_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--sweep"):
        what_if.points(text)


def test_a_preset_begins_anew_and_a_typo_is_refused(tmp_path: Path) -> None:
    run = many(tmp_path)
    filter_stage.run_filter(run, FilterSpec(limits={"height": Limit(min=200)}))

    spec = what_if.spec_of(run, preset="videox-fun", settings=["min_width=null"])

    bounds = [spec.limits[name] for name in ("height", "width", "duration_seconds")]
    assert bounds == [Limit(min=512), Limit(), Limit(min=3, max=10)]
    with pytest.raises(ColumnError, match=r"preset videox-fun: limits.text_area_mean needs the column"):
        what_if.what_if(run, spec)
    with pytest.raises(RecipeError, match="Did you mean min_height"):
        what_if.spec_of(run, settings=["min_heigth=3"])
    with pytest.raises(InputError, match="Give one of them"):
        what_if.spec_of(run, preset="mindone", recipe=Path("x.yaml"))


@settings(max_examples=20, deadline=None)
@given(st.floats(0, 7), st.integers(0, 20), st.floats(0.01, 0.4))
def test_a_what_if_and_a_filter_never_differ(
    tmp_path_factory: pytest.TempPathFactory, motion: float, nouns: int, tail: float
) -> None:
    run = many(tmp_path_factory.mktemp("run"), 30)
    given_ = [
        f"limits.motion_score.max={motion!r}",
        f"min_noun_count={nouns}",
        f"outliers=[{{column: duration_seconds, value: {tail!r}, side: both}}]",
    ]
    found = tried(run, *given_)

    assert (
        filter_stage.run_filter(
            run, recipe.parse("", FilterSpec, settings=[*map(as_limit, given_)])
        ).rows_kept
        == found["kept"]["clips"]
    )
