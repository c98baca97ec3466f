"""Curriculum stages train and resume; a stage too short for its phases is refused."""

import json
import shutil
from pathlib import Path

import pytest

from tests.trainer.shards_for_tests import events, make_shards, numbers, smoke
from trainer.data import stages as data_stages
from trainer.recipe.recipe import TrainRecipe
from trainer.report.preview import dry_run
from trainer.train import train
from vidcurate.errors import InputError, RecipeError

PHASES = (
    "[{levels: [1], steps: 3}, {levels: [1, 2], steps: 4, ramp_steps: 4}, {weights: {'2': 1}, ramp_steps: 2}]"
)
MORE = (
    "stages.0.steps=10",
    "stages.0.checkpoint_every=5",
    "sample=null",
    f"stages.0.data.curriculum={PHASES}",
    "stages.0.data.blocks={shards_per_block: 1, blocks_together: 1}",
)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("curriculum") / "shards", validation=(10, 11))


def test_a_stage_with_a_curriculum_trains_and_resumes_where_it_stopped(shards: Path, tmp_path: Path) -> None:
    train(smoke(shards, tmp_path / "whole", *MORE))
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")  # as it was after step 5, killed before step 10
    shutil.rmtree(tmp_path / "parts/step-00000010")
    (tmp_path / "parts/LATEST").write_text("step-00000005\n")
    train(smoke(shards, tmp_path / "parts", *MORE))
    lines = numbers(tmp_path / "whole")
    assert numbers(tmp_path / "parts") == lines
    levels = [set(line["loss_by_level"]) for line in lines]
    assert levels[:3] == [{"1"}] * 3
    assert levels[9] == {"2"}
    (stage,) = data_stages.open_stages(smoke(shards, tmp_path / "whole", *MORE))
    assert stage.plan.phases == (0, 3, 7)
    report = dry_run.dry_run(smoke(shards, tmp_path / "dry", *MORE))
    assert "  the phases of its curriculum begin with the steps 1, 4, 8\n" in dry_run.to_text(report)


def test_a_stage_too_short_for_its_phases_is_refused(shards: Path, tmp_path: Path) -> None:
    recipe = smoke(shards, tmp_path / "run", *MORE, "stages.0.steps=7")
    with pytest.raises(RecipeError, match=r"stage first: curriculum\.2 starts at step 8 and the stage has 7"):
        data_stages.open_stages(recipe)
    # Where data steps of the phases before are skipped, its turn comes sooner.
    (stage,) = data_stages.open_stages(
        smoke(shards, tmp_path / "run", *MORE, "stages.0.steps=7", "stages.0.skip=[[2, 3]]")
    )
    assert data_stages.summary(stage)["phases"] == [1, 2, 6]
    with pytest.raises(RecipeError, match=r"curriculum\.2 starts at step 6 and the stage has 5"):
        data_stages.open_stages(
            smoke(shards, tmp_path / "run", *MORE, "stages.0.steps=5", "stages.0.skip=[[2, 3]]")
        )
    skips = ("stages.0.steps=7", "stages.0.skip=[[9, 20]]")
    with pytest.raises(RecipeError, match=r"curriculum\.2 starts at step 8 and the stage has 7"):
        data_stages.open_stages(smoke(shards, tmp_path / "run", *MORE, *skips))
    with pytest.raises(InputError, match="no clip of level 5"):
        data_stages.open_stages(
            smoke(shards, tmp_path / "run", *MORE, "stages.0.data.curriculum=[{levels: [5]}]")
        )


def test_a_phase_that_is_skipped_whole_is_left_out_and_said(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def recipe(skip: str) -> TrainRecipe:
        return smoke(shards, tmp_path / "run", *MORE, "stages.0.steps=4", f"stages.0.skip={skip}")

    outcome = train(recipe("[[3, 7]]"))

    assert outcome.step == 4
    assert [set(line["loss_by_level"]) for line in numbers(tmp_path / "run")][:2] == [{"1"}] * 2
    (began,) = events(tmp_path / "run", "stage")
    assert began["phases"] == [1, 3]
    note = {"event": "phase_skipped", "phase": "curriculum.1", "data_steps": [4, 7]}
    assert note in began["notes"]
    assert "first: curriculum.1 is not read: all of" in capsys.readouterr().err
    reported = dry_run.to_text(dry_run.dry_run(recipe("[[3, 7]]")))
    assert "  note: curriculum.1 is not read: all of its data steps, 4 to 7, are skipped\n" in reported

    def skipped(skip: str) -> list[str]:
        notes = data_stages.summary(data_stages.open_stages(recipe(skip))[0])["notes"]
        return [note["phase"] for note in notes if note["event"] == "phase_skipped"]

    assert skipped("[[1, 7]]") == ["curriculum.0", "curriculum.1"]
    assert skipped("[[1, 2], [4, 6], [8, 20]]") == []  # the last phase continues after any window


def test_validation_reads_the_levels_that_some_phase_shows(shards: Path, tmp_path: Path) -> None:
    recipe = smoke(shards, tmp_path / "run", *MORE, "validation.every=5")
    assert recipe.validation is not None
    spec = data_stages.validation_spec(recipe.validation, recipe.stages[0].data)
    assert spec.levels == (1, 2)
    assert (spec.curriculum, spec.blocks) == ((), None)
    assert data_stages.stage_plan(data_stages.open_stages(recipe)[0].index, spec, recipe.seed).num_clips == 2


def test_ranks_are_balanced_by_the_measured_table(shards: Path, tmp_path: Path) -> None:
    costs = tmp_path / "costs.json"
    reported = {"measured_on": "a test", "seconds_per_micro_batch": 0.5}
    costs.write_text(json.dumps(reported | {"seconds_per_clip": {"32px": {"8": 0.25}}}))
    buckets = {
        "table": "{32px: {8: [1.0, auto]}}",
        "micro_batch_seconds": 1.1,
        "cost_table": costs,
    }
    more = [f"stages.0.data.buckets.{key}={value}" for key, value in buckets.items()]
    recipe = smoke(shards, tmp_path / "run", *more)
    (stage,) = data_stages.open_stages(recipe)
    sizes = [cell.micro_batch_size for cell in stage.plan.cells]
    assert max(sizes) == 2
    assert stage.plan.costs == tuple(500_000 + 250_000 * size for size in sizes)
    costs.write_text(json.dumps(reported | {"seconds_per_clip": {"32px": {"16": 0.25}}}))
    with pytest.raises(RecipeError, match="no seconds_per_clip for 32px with 8 frames"):
        data_stages.open_stages(recipe)
