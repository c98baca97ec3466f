"""What is computed of an experiment's runs: jumps at restarts, validation over common clips, the plot."""

from pathlib import Path

from trainer.report.experiment import page, results
from trainer.report.experiment.results import Track
from trainer.report.experiment.spec import ExperimentSpec
from vidcurate.recipe import recipe as strict

ROOT = Path(__file__).resolve().parents[4]


def track(seed: int, losses: list[float], rounds: tuple[tuple[float, dict[str, float]], ...] = ()) -> Track:
    clips = tuple(4.0 * (number + 1) for number in range(len(losses)))
    marks = ((2, 8.0, "restart"),)
    return Track(
        seed=seed,
        clips=clips,
        losses=tuple(losses),
        grad_norms=(1.0, 1.0, 5.0, 1.0),
        marks=marks,
        rounds=rounds,
    )


def test_a_jump_is_the_mean_behind_a_mark_less_that_before_it() -> None:
    one = track(1, [4.0, 2.0, 5.0, 3.0])

    assert results.jumps(one, one.marks, 1) == [3.0]
    assert results.jumps(one, one.marks, 2) == [1.0]
    assert results.mean([1.0, 3.0]) == (2.0, 1.0)
    assert results.mean([1.0]) == (1.0, None)


def test_validation_is_compared_over_the_clips_that_all_have() -> None:
    one = track(1, [1.0] * 4, ((16.0, {"a": 1.0, "b": 3.0}),))
    other = track(1, [1.0] * 4, ((16.0, {"b": 5.0, "c": 9.0}),))

    assert results.common_clips([one, other]) == {1: ["b"]}
    assert results.over({"a": 1.0, "b": 3.0}, ["b"]) == 3.0


def test_a_plot_of_one_seed_has_no_band() -> None:
    whole = strict.load(ROOT / "recipes" / "restarts.yaml", ExperimentSpec)
    spec = whole.model_copy(update={"seeds": whole.seeds[:1]})
    rounds = ((8.0, {"a": 1.0}), (16.0, {"a": 0.5}))
    drawn = page.plot(spec, [track(1, [4.0, 3.0, 2.0, 1.0], rounds) for _ in spec.arms])

    assert 'class="band' not in drawn
    assert drawn.startswith("<svg xmlns")
