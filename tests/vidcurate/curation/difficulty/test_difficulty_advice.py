"""Balance by tokens, the advice that follows from the jumps, and the recipe fragment."""

import json
import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vidcurate.curation.difficulty.test_difficulty import checked, rows_of
from trainer.recipe.recipe import TrainRecipe
from vidcurate.curation.difficulty import advice, cut
from vidcurate.curation.difficulty import stage as difficulty_stage
from vidcurate.curation.difficulty.jumps import jump
from vidcurate.curation.difficulty.spec import SplitSpec
from vidcurate.errors import InputError
from vidcurate.recipe import recipe
from vidcurate.sampler.buckets import BucketSpec

TABLE = BucketSpec(table={"144p": {"51": (1.0, 4)}, "360p": {"51": (1.0, 2), "102": (1.0, 1)}})


# ── tokens ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("frames", "height", "width", "tokens"),
    [
        (51, 240, 426, 15 * 15 * 27),  # the published example: 30 x 53 latents, 15 x 27 tokens
        (17, 16, 16, 5),
        (18, 16, 16, 6),
        (1, 8, 8, 1),
        (0, 240, 426, 0),
        (51, 0, 0, 0),
    ],
)
def test_the_tokens_of_a_clip_are_those_of_the_published_model(
    frames: int, height: int, width: int, tokens: int
) -> None:
    found = cut.latent_tokens(*(np.array([value], dtype=np.int64) for value in (frames, height, width)))
    assert found.tolist() == [tokens]


def sized(run: Path, sizes: list[tuple[int, int, int]]) -> Path:
    """Write clips with growing noun counts and these (frames, height, width)."""
    frames, heights, widths = zip(*sizes, strict=True)
    return checked(
        run,
        list(range(len(sizes))),
        num_frames=pl.Series(frames, dtype=pl.Int64),
        height=pl.Series(heights, dtype=pl.Int32),
        width=pl.Series(widths, dtype=pl.Int32),
    )


def test_levels_can_hold_equal_shares_of_tokens(tmp_path: Path) -> None:
    sized(tmp_path, [(68, 256, 256)] * 10 + [(17, 256, 256)] * 40)

    summary = difficulty_stage.run_split(tmp_path, SplitSpec(levels=2, balance="tokens"))

    assert [level.clips for level in summary.levels] == [10, 40]
    assert summary.levels[0].tokens == summary.levels[1].tokens == 10 * 20 * 256


def test_tokens_are_counted_in_the_buckets_of_the_training(tmp_path: Path) -> None:
    sized(tmp_path, [(400, 2160, 3840)] * 4 + [(60, 144, 256)] * 4 + [(5, 144, 256)] * 4)

    summary = difficulty_stage.run_split(tmp_path, SplitSpec(levels=3, buckets=TABLE))

    assert [level.tokens for level in summary.levels] == [4 * 30 * 23 * 40, 4 * 15 * 9 * 16, 0]


def test_a_balance_of_no_tokens_is_refused(tmp_path: Path) -> None:
    sized(tmp_path, [(5, 144, 256)] * 4)
    with pytest.raises(InputError, match="balance is tokens, but no clip is in a bucket"):
        difficulty_stage.run_split(tmp_path, SplitSpec(levels=2, balance="tokens", buckets=TABLE))


# ── ramps ───────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_each_increment_of_a_ramp_moves_as_little_as_promised(data: st.DataObject) -> None:
    """The mixtures of a ramp are built, and the mean and the KS distance between neighbours measured."""
    count = 400
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    low = np.sort(rng.normal(0, 1, count).round(3))
    high = np.sort(rng.normal(data.draw(st.floats(0.2, 4)), data.draw(st.floats(0.5, 2)), count).round(3))
    spec = SplitSpec(column="difficulty")
    of_column = {name: jump(name, low, high, spec, 1) for name in ("difficulty", "num_frames")}
    (ramp,) = advice.ramps(list(of_column.values()), {1: count, 2: count}, spec)
    pooled = math.sqrt((low.var() * count + high.var() * count) / (2 * count - 2))
    every = np.unique(np.concatenate([low, high]))
    below = [np.searchsorted(part, every, side="right") / count for part in (low, high)]

    shares = np.arange(ramp.increments + 1) / ramp.increments
    means = (1 - shares) * low.mean() + shares * high.mean()
    mixed = (1 - shares)[:, None] * below[0] + shares[:, None] * below[1]

    if ramp.increments < 10:
        assert np.abs(np.diff(means)).max() / pooled <= advice.MAX_SHIFT + 1e-9
    if of_column["num_frames"].ks_distance > of_column["num_frames"].ks_noise:
        assert np.abs(np.diff(mixed, axis=0)).max() <= advice.MAX_KS + 1e-9


def test_a_shift_that_chance_makes_asks_for_no_ramp() -> None:
    rng = np.random.default_rng(0)
    low, high = np.sort(rng.normal(0, 1, (2, 30)))
    found = jump("num_frames", low, high, SplitSpec(), 1)

    assert found.ks_distance < found.ks_noise
    assert advice.increments(found, SplitSpec()) == 1


def test_levels_of_a_few_clips_get_no_ramp_and_one_sentence() -> None:
    found = jump("noun_count", np.array([1.0, 2, 3] * 3), np.array([7.0, 8, 9] * 100), SplitSpec(), 1)

    (ramp,) = advice.ramps([found], {1: 9, 2: 300}, SplitSpec())

    assert (ramp.increments, ramp.steps) == (1, 0)
    assert ramp.because == "levels of fewer than 10 clips say nothing"
    assert advice.few_clips({1: 9, 2: 300}) == (
        "level 1 has fewer than 10 clips: no ramp is advised there. Set fewer levels.",
    )
    assert advice.few_clips({1: 9, 2: 300, 3: 0})[0].startswith("levels 1, 3 have fewer than 10 clips")
    assert advice.few_clips({1: 10, 2: 10}) == advice.few_clips({1: 3}) == ()


def test_a_ramp_lasts_its_increments_and_no_longer_than_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    found = jump("noun_count", np.array([1.0, 2, 3] * 100), np.array([4.0, 5, 6] * 100), SplitSpec(), 1)
    assert found.effect_size == pytest.approx(3.67, abs=0.01)

    def ramp(clips: int, **settings_: int) -> advice.Ramp:
        return advice.ramps([found], {1: 300, 2: clips}, SplitSpec(**settings_))[0]  # type: ignore[arg-type]

    assert (ramp(10**6).increments, ramp(10**6).steps) == (8, 7000)
    assert ramp(7_001).steps == 7000
    assert ramp(300).steps == 300
    monkeypatch.setattr(SplitSpec, "steps_per_increment", 20)
    assert ramp(10**6).steps == 140


# ── the tail ────────────────────────────────────────────────────────────────────────────────────────


def test_clips_beyond_the_tail_of_the_others_are_to_be_cut_and_the_setting_cuts_just_them(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    nouns = [*np.minimum(rng.exponential(8, 20_000).astype(int), 90).tolist(), 900, 1200]
    checked(tmp_path, nouns)

    first = difficulty_stage.run_split(tmp_path, SplitSpec(levels=5))

    assert first.tail is not None
    assert (first.tail.clips, first.tail.share) == (2, 2 / 20_002)
    (reported,) = (line for line in first.advice if "cut the hardest" in line)
    setting = float(reported.split("drop_hardest: ")[1].split(")")[0])
    second = difficulty_stage.run_split(tmp_path, SplitSpec(levels=5, drop_hardest=setting))
    assert second.rows_dropped_here == 2
    assert second.tail is None
    assert rows_of(tmp_path).filter(pl.col("reject_rule") == "drop_hardest")["noun_count"].to_list() == [
        900,
        1200,
    ]


@pytest.mark.parametrize("share", [1e-5, 1e-4, 1 / 3])
@pytest.mark.parametrize("count", [3, 1000, 999_999])
def test_the_setting_of_a_cut_survives_its_rounding(share: float, count: int) -> None:
    clips = max(1, int(share * count))
    found = advice.drop_hardest(advice.Tail(clips=clips, share=clips / count, above=0.0))
    values = pl.Series(np.arange(count))

    assert int((values > values.quantile(1 - found, "lower")).sum()) == clips


@pytest.mark.parametrize("seed", range(20))
def test_an_exponential_tail_is_seldom_cut(seed: int) -> None:
    values = np.random.default_rng(seed).exponential(1, 20_000)
    found = advice.tail(values)
    assert found is None or found.clips <= 1


def test_without_the_hardest_clips_the_tail_ratio_is_at_its_limit() -> None:
    rng = np.random.default_rng(0)
    low, high = rng.uniform(10, 20, 1000), 20 + rng.exponential(15, 1000)
    assert np.quantile(high, 0.99) / np.quantile(low, 0.99) > 2

    found = advice.tail_to_ratio(low, high, 5000, SplitSpec())

    assert found is not None
    left = np.sort(high)[: -found.clips]
    assert left.max() == found.above
    assert (
        np.quantile(left, 0.99)
        <= 2 * np.quantile(low, 0.99)
        < np.quantile(np.sort(high)[: 1 - found.clips], 0.99)
    )
    assert found.share == found.clips / 5000
    assert advice.tail_to_ratio(low, left, 5000, SplitSpec()) is None


def test_seventeen_clips_are_not_asked_to_lose_a_third(tmp_path: Path) -> None:
    checked(tmp_path, [1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 9, 12, 30])

    summary = difficulty_stage.run_split(tmp_path, SplitSpec(levels=5))

    assert summary.tail_to_ratio is None
    assert summary.warnings == ()
    assert not [line for line in summary.advice if "hardest" in line]
    rng = np.random.default_rng(0)
    low, high = rng.uniform(10, 20, 800), 20 + rng.exponential(15, 800)
    assert advice.tail_to_ratio(low, high, 5000, SplitSpec()) is not None
    assert advice.tail_to_ratio(low, high[:799], 5000, SplitSpec()) is None


def test_few_or_equal_values_have_no_tail() -> None:
    assert advice.tail(np.array([])) is None
    assert advice.tail(np.full(10_000, 3.0)) is None
    assert advice.tail(np.arange(50.0)) is None


def test_the_real_captions_get_ramps_and_a_share_to_cut(shared: Path, tmp_path: Path) -> None:
    from vidcurate.curation.caption_scores import nouns_builtin

    captions = pl.read_parquet(shared / "data/captions/dense_captions.parquet")["caption"]
    nouns = nouns_builtin.count(captions).to_list()

    summary = difficulty_stage.run_split(checked(tmp_path, nouns), SplitSpec())

    assert [ramp.to_level for ramp in summary.ramps] == [2, 3, 4, 5]
    assert all(2 <= ramp.increments <= 10 for ramp in summary.ramps)
    assert summary.tail_to_ratio is not None  # into level 5 the top 1 % grows 2.8 times
    assert any("of the last level is 2 times" in line for line in summary.advice)


# ── what is written ─────────────────────────────────────────────────────────────────────────────────

REST = """
name: x
output: out
model: {hidden_size: 24, depth: 1, num_heads: 2}
video_encoder: {kind: space_to_depth, spatial: 2, temporal: 2}
text_encoder: {kind: words, caption_channels: 8, model_max_length: 8}
"""


def test_the_fragment_is_the_stages_of_a_training_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SplitSpec, "steps_per_increment", 10)
    checked(tmp_path, list(range(600)))
    spec = SplitSpec(levels=3, buckets=TABLE)
    summary = difficulty_stage.run_split(tmp_path, spec)

    read = recipe.parse(REST + (tmp_path / "levels.yaml").read_text(), TrainRecipe)

    named = [stage.name for stage in read.stages if stage.name.startswith("level")]
    assert named == ["level-1", "level-2", "level-3"]
    assert [stage.data.levels for stage in read.stages if stage.epochs == 2] == [(1,), (2,), (3,)]
    assert all(stage.data.buckets == TABLE for stage in read.stages)
    mixed = [stage for stage in read.stages if stage.data.levels == (1, 2)]
    assert len(mixed) == summary.ramps[0].increments - 1
    assert sum(stage.steps or 0 for stage in mixed) == summary.ramps[0].steps
    shares = [stage.data.weights["2"] / sum(stage.data.weights.values()) for stage in mixed]
    assert np.diff([0, *shares, 1]).max() <= 1 / summary.ramps[0].increments + 1e-9


def test_without_a_bucket_table_the_fragment_says_what_to_add(tmp_path: Path) -> None:
    difficulty_stage.run_split(checked(tmp_path, list(range(60))), SplitSpec(levels=2))

    text = (tmp_path / "levels.yaml").read_text()

    assert "Add `buckets`" in text
    added = text.replace(
        "shards: shards", f"buckets: {json.dumps(TABLE.model_dump(mode='json'))}, shards: shards"
    )
    assert len(recipe.parse(REST + added, TrainRecipe).stages) > 2


def test_the_histograms_count_every_clip_of_every_level(tmp_path: Path) -> None:
    checked(tmp_path, [*range(100), 10_000], num_frames=[48] * 100 + [900])

    summary = difficulty_stage.run_split(tmp_path, SplitSpec(levels=4))

    drawn = json.loads((tmp_path / "levels.json").read_text())["histograms"]
    assert set(drawn["columns"]) == {"noun_count", "num_frames", "duration_seconds"}
    for column in drawn["columns"].values():
        assert [sum(counts) for counts in column["counts"]] == [level.clips for level in summary.levels]
        assert len(column["edges"]) == len(column["counts"][0]) + 1
        assert all(len(found) == len(drawn["quantiles"]) for found in column["quantiles"])


def test_an_old_fragment_is_written_again(tmp_path: Path) -> None:
    checked(tmp_path, list(range(40)))
    difficulty_stage.run_split(tmp_path, SplitSpec(levels=2))
    before = (tmp_path / "levels.yaml").read_bytes()
    (tmp_path / "levels.yaml").unlink()

    assert not difficulty_stage.run_split(tmp_path, SplitSpec(levels=2)).up_to_date
    assert (tmp_path / "levels.yaml").read_bytes() == before


@pytest.mark.parametrize(
    ("clips", "said"), [(1, "1 clip with noun_count above 9 is"), (2000, "2,000 clips with")]
)
def test_one_clip_beyond_the_tail_is_no_plural(clips: int, said: str) -> None:
    tail = advice.Tail(clips=clips, share=0.01, above=9.0)
    beyond, to_ratio = advice.texts((), tail, tail, SplitSpec())
    assert said in beyond
    assert said.removesuffix(" is") in to_ratio
