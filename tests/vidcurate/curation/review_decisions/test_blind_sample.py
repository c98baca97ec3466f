"""Blind samples: the draw, the estimate, and the coverage of its intervals."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from tests.vidcurate.curation.filter.test_filter import clip, scored
from vidcurate.curation.filter.spec import FilterSpec, Limit
from vidcurate.curation.filter.stage import run_filter
from vidcurate.curation.review_decisions.blind_sample import (
    KEPT,
    BlindSample,
    allocate,
    estimate_errors,
    read_sample,
)
from vidcurate.curation.review_decisions.decision import Recorded
from vidcurate.curation.review_decisions.draw_sample import draw, draw_sample, strata_of
from vidcurate.curation.review_decisions.interval import clopper_pearson, stratum_interval, weighted_interval
from vidcurate.curation.review_decisions.journal import append_decision, read_decisions
from vidcurate.errors import InputError, MissingError, TableError

SPEC = FilterSpec(limits={"noun_count": Limit(min=4), "height": Limit(min=200)})


def word(number: int, clip_id: str, verdict: str, sample: str | None = "s") -> Recorded:
    return Recorded.model_construct(
        number=number, id=str(number), clip_id=clip_id, reviewer="ana", verdict=verdict, reason=None,
        caption=None, tags=(), blind_sample=sample, time_utc="", undone_by=None,
    )  # fmt: skip


def filtered(run: Path) -> Path:
    clips = [
        clip(f"c{at:03}", noun_count=1 if at % 4 == 0 else 9, height=90 if at % 10 == 1 else 360)
        for at in range(200)
    ]
    scored(run, *clips, clip("broken", probe_status="truncated", probe_problem="cut"))
    run_filter(run, SPEC)
    return run


def test_intervals_are_those_of_published_tables() -> None:
    # Clopper-Pearson: 0 of 10 has the end 1 - 0.025^(1/10); 5 of 10 as in R's binom.test.
    assert clopper_pearson(0, 10, 0.95) == pytest.approx((0, 1 - 0.025**0.1))
    assert clopper_pearson(5, 10, 0.95) == pytest.approx((0.1870860, 0.8129140), abs=1e-6)
    assert clopper_pearson(10, 10, 0.95) == pytest.approx((0.025**0.1, 1))
    # In a very large population both are the same; reviewed whole, a stratum has no uncertainty.
    assert stratum_interval(5, 10, 10_000_000, 0.95) == pytest.approx((0.1870860, 0.8129140), abs=1e-5)
    assert stratum_interval(3, 10, 10, 0.95) == (0.3, 0.3)
    assert stratum_interval(0, 0, 10, 0.95) == (0, 1)
    assert weighted_interval([(1, 4, 100), (0, 0, 10)], 0.95) is None
    share, low, high = weighted_interval([(5, 10, 10_000_000)], 0.95) or (0, 0, 0)
    assert (share, low, high) == pytest.approx((0.5, 0.187086, 0.812914), abs=1e-4)


def test_every_interval_of_a_small_stratum_covers_at_its_level() -> None:
    population, drawn = 23, 9
    for wrong in range(population + 1):
        ways = [
            math.comb(wrong, found) * math.comb(population - wrong, drawn - found)
            for found in range(drawn + 1)
        ]
        covered = 0
        for found in range(drawn + 1):
            low, high = stratum_interval(found, drawn, population, 0.9)
            covered += ways[found] * (low <= wrong / population <= high)
        assert covered / sum(ways) >= 0.9


def test_intervals_cover_a_planted_error_rate_in_200_simulations() -> None:
    populations = {KEPT: 3000, "min_noun_count": 400, "max_luma": 60, "duplicate": 1500}
    rates = {KEPT: 0.04, "min_noun_count": 0.3, "max_luma": 0.1, "duplicate": 0.01}
    strata = {name: [f"{name}-{at}" for at in range(count)] for name, count in populations.items()}
    random = np.random.default_rng(7)
    of_strata, overall, widths = [], [], []
    for seed in range(200):
        wrong = {
            name: {
                clips[at] for at in random.choice(len(clips), round(rates[name] * len(clips)), replace=False)
            }
            for name, clips in strata.items()
        }
        drawn = draw(strata, 240, seed)
        sample = BlindSample(name="s", seed=seed, filtered="", populations=populations, strata=drawn)
        words = [
            word(number, clip_id, "reject" if (clip_id in wrong[name]) == (name == KEPT) else "keep")
            for number, (clip_id, name) in enumerate(drawn.items(), 1)
        ]
        found = estimate_errors(sample, words, level=0.95)
        assert found["reviewed"] == 240
        for line in found["strata"]:
            true = len(wrong[line["stratum"]]) / populations[line["stratum"]]
            of_strata.append(line["low"] - 1e-6 <= true <= line["high"] + 1e-6)
            widths.append(line["high"] - line["low"])
        rules = [name for name in strata if name != KEPT]
        true = sum(len(wrong[name]) for name in rules) / sum(populations[name] for name in rules)
        overall.append(found["wrong_rejections"]["low"] <= true <= found["wrong_rejections"]["high"])
    # Within the level: no lower than 95 % by more than two standard errors of 800 and of 200 simulations.
    assert np.mean(of_strata) >= 0.95 - 2 * math.sqrt(0.05 * 0.95 / 800)
    assert np.mean(overall) >= 0.95 - 2 * math.sqrt(0.05 * 0.95 / 200)
    assert np.mean(widths) < 0.2  # an interval that says nothing would cover, too


def test_the_sample_is_a_function_of_its_seed_and_holds_every_stratum(tmp_path: Path) -> None:
    run = filtered(tmp_path)
    sample = draw_sample(run, 60, seed=3)
    # noun_count is checked after height; 10 clips fail both limits.
    assert sample.populations == {KEPT: 130, "min_height": 20, "min_noun_count": 50}
    assert [list(sample.strata.values()).count(name) for name in sample.populations] == [30, 15, 15]
    assert draw_sample(run, 60, seed=3) == sample == read_sample(run, "seed-3-60")
    assert draw_sample(run, 60, seed=4).clip_ids != sample.clip_ids
    assert "broken" not in strata_of(run)[KEPT]
    strata = list(sample.strata.values())
    assert strata != sorted(strata)  # the order tells nothing


def test_decisions_by_eye_change_no_stratum(tmp_path: Path) -> None:
    run = filtered(tmp_path)
    before = strata_of(run)
    for number, (clip_id, verdict) in enumerate(
        [
            (before[KEPT][0], "reject"),
            (before["min_height"][0], "keep"),
            (before["min_noun_count"][0], "reject"),
        ]
    ):
        append_decision(run, {"id": f"i{number}", "clip_id": clip_id, "reviewer": "ana", "verdict": verdict})
    assert run_filter(run, SPEC).reviewed["rejected_by_eye"] == 2
    assert strata_of(run) == before


def test_the_estimate_counts_only_blind_words_that_stand(tmp_path: Path) -> None:
    run = filtered(tmp_path)
    sample = draw_sample(run, 60, seed=3, name="first")
    of = {
        name: [clip_id for clip_id, one in sample.strata.items() if one == name]
        for name in sample.populations
    }
    said = [
        *((clip_id, "reject" if at < 3 else "keep", "first") for at, clip_id in enumerate(of[KEPT])),
        *((clip_id, "keep" if at < 5 else "reject", "first") for at, clip_id in enumerate(of["min_height"])),
        (of["min_noun_count"][0], "keep", "another"),
    ]
    for number, (clip_id, verdict, name) in enumerate(said):
        given = {"id": f"i{number}", "clip_id": clip_id, "reviewer": "ana", "verdict": verdict}
        append_decision(run, given | {"blind_sample": name})
    found = estimate_errors(sample, read_decisions(run))
    lines = {line["stratum"]: line for line in found["strata"]}
    assert (lines[KEPT]["wrong"], lines[KEPT]["reviewed"], lines[KEPT]["share"]) == (3, 30, 0.1)
    assert lines["min_height"]["share"] == pytest.approx(1 / 3, abs=1e-6)
    assert lines["min_noun_count"]["reviewed"] == 0
    assert (lines["min_noun_count"]["low"], lines["min_noun_count"]["high"]) == (0, 1)
    assert found["wrong_rejections"] is None


def test_sizes_are_shared_and_a_small_stratum_is_taken_whole() -> None:
    assert allocate({KEPT: 1000, "a": 1000, "b": 3}, 100) == {KEPT: 50, "a": 47, "b": 3}
    assert allocate({KEPT: 5, "a": 1000}, 100) == {KEPT: 5, "a": 95}
    assert allocate({"a": 10, "b": 10}, 100) == {"a": 10, "b": 10}
    assert allocate({KEPT: 1000, "a": 4}, 100) == {KEPT: 96, "a": 4}
    with pytest.raises(InputError, match=r"3 strata .* need 2 clips each"):
        allocate({KEPT: 1, "a": 1, "b": 1}, 5)


def test_wrong_samples_are_refused(tmp_path: Path) -> None:
    run = filtered(tmp_path)
    draw_sample(run, 60, seed=3, name="x")
    with pytest.raises(InputError, match="Give the new sample another --name"):
        draw_sample(run, 60, seed=4, name="x")
    with pytest.raises(InputError, match="a name has 1 to 60 letters"):
        read_sample(run, "../x")
    with pytest.raises(MissingError, match="drawn so far: x"):
        read_sample(run, "y")
    path = run / "blind_samples" / "x.json"
    fields = json.loads(path.read_text())
    for wrong in ({**fields, "strata": {"a": "no stratum"}}, {**fields, "name": "z"}, [1], {}, {"name": "x"}):
        path.write_text(json.dumps(wrong))
        with pytest.raises(TableError, match="not a sample drawn by vidcurate"):
            read_sample(run, "x")
