"""Each form of the measured step stands beside its own peer, and a run replaces only what it measured."""

import statistics
from typing import Any

import pytest

BENCHMARK = "step_rows"  # the module that the fixture `bench` imports
SHAPE = "240p_102f"


def figures(rate: float) -> dict[str, float]:
    names = ("tflops", "forward_ms", "backward_ms", "optimizer_ms", "peak_gib", "sm_mhz", "watts")
    return {"tokens_per_s": rate, **{name: rate / 1000 for name in names}}


FOUND = {
    "plain": figures(40_000),
    "fast": figures(60_000),
    "packed": figures(64_000),
    "float8": figures(70_000),
    "float8_packed": figures(75_000),
}


def made(bench: Any, forms: list[str], kept: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    from step_shapes import SHAPES  # type: ignore[import-not-found]

    rows = bench.rows_of(SHAPE, SHAPES[SHAPE], {form: FOUND[form] for form in forms}, "a GPU", kept)
    return {row["metric"]: row for row in rows}


def test_captions_by_their_length_stand_beside_whole_ones_of_their_precision(bench: Any) -> None:
    found = made(bench, list(FOUND), [])

    for form, usual in {"packed": "fast", "float8": "fast", "float8_packed": "float8"}.items():
        row = found[f"{SHAPE}_{form}_tokens_per_s"]
        assert (row["value"], row["peer_value"]) == (
            FOUND[form]["tokens_per_s"],
            FOUND[usual]["tokens_per_s"],
        )
        assert {f"{SHAPE}_{form}_forward_ms", f"{SHAPE}_{form}_backward_ms"} <= found.keys()
    assert "300 tokens to each caption" in found[f"{SHAPE}_float8_packed_tokens_per_s"]["peer"]


def test_the_best_form_has_whole_captions_and_the_models_precision(bench: Any) -> None:
    row = made(bench, list(FOUND), [])[f"{SHAPE}_tokens_per_s"]

    assert (row["value"], row["peer"]) == (60_000, "plain eager (ours is fast)")


def test_plain_blocks_that_were_not_measured_are_the_kept_ones_by_their_date(bench: Any) -> None:
    kept = list(made(bench, ["plain", "fast"], []).values())
    for row in kept:
        row["date"] = "2026-01-02"
    forms = ["fast", "packed", "float8", "float8_packed"]

    again = made(bench, forms, kept)
    row = again[f"{SHAPE}_forward_ms"]
    assert (row["peer"], row["peer_value"]) == ("plain eager of 2026-01-02 (ours is fast)", 40)
    third = made(bench, forms, bench.merged(kept, list(again.values())))
    assert third[f"{SHAPE}_forward_ms"]["peer"] == row["peer"]
    assert f"{SHAPE}_forward_ms" not in made(bench, forms, [])


def test_a_run_replaces_only_what_it_measured(bench: Any) -> None:
    kept = [{"metric": "a", "value": 1}, {"metric": "b", "value": 1}]

    rows = bench.merged(kept, [{"metric": "b", "value": 2}, {"metric": "c", "value": 2}])

    assert [(row["metric"], row["value"]) for row in rows] == [("a", 1), ("b", 2), ("c", 2)]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 51, 96])
def test_clips_read_as_many_tokens_in_the_mean_at_every_batch(bench: Any, count: int) -> None:
    from step_shapes import READ_TOKENS, caption_lengths

    lengths = caption_lengths(count)
    assert len(lengths) == count
    assert statistics.fmean(lengths) == pytest.approx(READ_TOKENS, abs=0.5)
    assert pytest.approx(0.9 * 125 + 0.1 * 300, abs=0.5) == READ_TOKENS
