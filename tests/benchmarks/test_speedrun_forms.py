"""The projection has other forms of the step beside bfloat16 with whole captions, as far as measured."""

import importlib
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from trainer.distributed.memory import Form
from trainer.distributed.step_time import Cost
from trainer.recipe import recipe as recipes

ROOT = Path(__file__).resolve().parents[2]
BENCHMARK = "speedrun_costs"  # the module that the fixture `bench` imports
ZERO = (0.0, 0.0, 0.0, 0.0, 0.0)


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return how another benchmark is imported."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module


def rows(prefixes: tuple[str, ...], shapes: list[str]) -> list[dict[str, Any]]:
    return [
        {"metric": f"{shape}_{prefix}{part}_ms", "value": 1000.0, "peer": "plain eager (ours is fast)"}
        for shape in shapes
        for prefix in prefixes
        for part in ("forward", "backward")
    ]


VIDEOS = ["144p_51f", "240p_102f", "360p_51f", "480p_51f", "720p_51f"]


def test_a_form_counts_where_every_video_shape_was_measured(bench: Any) -> None:
    table = rows(("", "packed_"), VIDEOS) + rows(("float8_",), VIDEOS[:4])

    assert [step.name for step in bench.measured_steps(table)] == VIDEOS
    assert bench.measured_steps(table, "float8") == []
    packed = bench.measured_steps(table, "packed")
    assert {work.text_tokens for step in packed for work in step.works} == {142}
    assert {work.text_tokens for step in bench.measured_steps(table) for work in step.works} == {300}


def test_a_form_has_its_own_cost_memory_share_and_captions(bench: Any) -> None:
    cost = Cost(forward=ZERO, backward=ZERO)
    plain = bench.Machine(cost=cost, update_seconds=0.1, share=0.9, limit_bytes=1e11, form=Form(fast=True))
    table = rows(("", "float8_packed_"), VIDEOS)

    found = bench.machine_of(plain, table, "float8_packed", 0.95)
    assert (found.share, found.text_tokens, found.form) == (0.95, 142, Form(fast=True, float8=True))
    assert found.cost != plain.cost
    assert bench.machine_of(plain, table, "float8", 0.95) is None
    recipe = recipes.load(ROOT / "recipes" / "speedrun.yaml")
    assert bench.run_of(recipe, found, next(iter(bucket_list(recipe)))).seconds > 0


def bucket_list(recipe: Any) -> list[Any]:
    from vidcurate.sampler import buckets

    found = buckets.all_buckets(recipe.stages[0].data.buckets)
    return [bucket for bucket in found if bucket.resolution == "240p" and bucket.num_frames == 102]


def test_hours_lie_between_those_of_the_two_measured_lengths(bench: Any) -> None:
    assert bench.between(300.0, 142.0, 300) == 300.0
    assert bench.between(300.0, 142.0, 142) == 142.0
    assert bench.between(300.0, 142.0, 200) == pytest.approx(200.0)


def test_no_length_below_the_measured_one_is_projected(bench: Any) -> None:
    assert bench.tokens_read(110, 0.1, 300, 0.0) == 142
    assert bench.tokens_read(200, 0.1, 300, 0.0) == pytest.approx(210)
    assert bench.tokens_read(110, 0.1, 300, 0.5) == pytest.approx(0.9 * 205 + 30)


def test_the_real_run_of_the_most_gpus_counts_and_float8s_own_where_there_is_one(
    tmp_path: Path, beside: Any
) -> None:
    real_share = beside("real_share")

    def kept(name: str, day: str, share: float) -> None:
        row = {"metric": "tokens/s, real run", "date": day, "ratio": share}
        (tmp_path / f"mixture_{name}.json").write_text(json.dumps([{**row, "metric": "other"}, row]))

    kept("h200", "2026-01-02", 0.99)
    assert real_share.most_gpus("bfloat16", "h200", tmp_path).stem == "mixture_h200"
    kept("2xh200", "2026-01-01", 0.94)
    kept("16xh200", "2026-01-01", 0.92)
    kept("32xh100", "2026-01-04", 0.90)
    assert real_share.share_of(real_share.most_gpus("bfloat16", "h200", tmp_path)) == ("2026-01-01", 0.92)
    assert real_share.most_gpus("float8", "h200", tmp_path).stem == "mixture_16xh200"
    kept("h200_float8", "2026-01-01", 0.93)
    assert real_share.most_gpus("float8", "h200", tmp_path).stem == "mixture_h200_float8"
    assert real_share.most_gpus("bfloat16", "h200", tmp_path).stem == "mixture_16xh200"
    assert real_share.most_gpus("float8", "h100", tmp_path).stem == "mixture_32xh100"
    with pytest.raises(SystemExit, match="no mixture_b200"):
        real_share.most_gpus("bfloat16", "b200", tmp_path)


def test_each_form_has_its_row_with_the_share_of_its_precision(beside: Any) -> None:
    module = beside("speedrun_rows")
    figures = module.Figures(
        steps=10, training=100.0, update=1.0, ahead=5.0, online=9.0, share=0.5, read=150.0,
        imbalance={case: (1.0, 1.0) for case in module.SPREADS.values()},
        forms={"float8": (80.0, 0.8), "float8_captions": (60.0, 0.8)},
    )  # fmt: skip

    found = {row["metric"]: row for row in module.as_rows({"stage-1": figures}, "a GPU")}

    assert found["gpu_hours_ahead_48_ranks"]["value"] == pytest.approx(207)
    assert found["gpu_hours_ahead_48_ranks_float8"]["value"] == pytest.approx(106.25)
    row = found["gpu_hours_ahead_48_ranks_float8_captions"]
    assert (row["value"], row["peer_value"], row["goal"]) == (pytest.approx(81.25), 207, "<= 2,300")
    assert found["stage-1_tokens_read"]["value"] == 150
    assert "gpu_hours_ahead_48_ranks_captions" not in found


def test_what_is_assumed_of_captions_has_a_table_apart(beside: Any) -> None:
    page = beside("speed_projection")
    kept = json.loads((ROOT / "benchmarks" / "results" / "project_speedrun.json").read_text())
    row = {"value": 2100.0, "peer_value": 2700.0}
    found = {one["metric"]: one for one in kept} | {"gpu_hours_ahead_48_ranks_float8_captions": row}
    found |= {f"stage-{number}_tokens_read": {"value": 150.0} for number in (1, 2, 3)}
    counted = {"a": {"metric": "T5 tokens of 9 captions (dense): mean as read", "value": 110.0}}

    assert "2,100" not in page.run_table(found)
    text = page.captions_words(found, lambda: counted)
    assert "Assumed: captions as long as the dense ones" in text
    assert "| float8, captions by their true lengths | 2,100 | 2,700 |" in text
    del found["gpu_hours_ahead_48_ranks_float8_captions"]
    kept_form = found.pop("gpu_hours_ahead_48_ranks_captions", None)
    assert page.captions_words(found, lambda: counted) == ""
    assert kept_form is None or kept_form["value"] > 0


def test_a_rate_below_the_power_limit_is_marked(beside: Any) -> None:
    page = beside("speed_page")
    names = {"tokens_per_s": 60_000.0, "tflops": 400.0, "float8_tokens_per_s": 62_000.0}
    found = {f"240p_102f_{name}": {"value": value, "ratio": 1.03, "peer": "fast", "date": "2026-01-01"}
             for name, value in names.items()}  # fmt: skip
    found["product_8192_watts"] = {"value": 690.0, "peer_value": 700.0}

    for watts, is_marked in ((670.0, True), (690.0, False)):
        found["240p_102f_float8_watts"] = {"value": watts}
        text = page.beside_words(found)
        assert ("62,000 (1.030) †" in text) == ("less than 97%" in text) == is_marked


def test_captions_are_counted_as_a_model_reads_them(tmp_path: Path, beside: Any) -> None:
    module = beside("caption_lengths")
    path = tmp_path / "captions.csv"
    path.write_text('caption\nA dog.\n""\n" "\nA cat.\n')

    assert module.captions_of(path).to_list() == ["A dog.", "A cat."]
    found = module.rows_of("some", pl.Series([10, 20, 900], dtype=pl.Int32))
    assert found[0]["metric"] == "T5 tokens of 3 captions (some): mean as read"
    assert module.mean_read(found, "some") == pytest.approx(110)
    assert [row["value"] for row in found[1:]] == [10, 20, 20]
    with pytest.raises(SystemExit, match="no captions are kept as others"):
        module.mean_read(found, "others")
