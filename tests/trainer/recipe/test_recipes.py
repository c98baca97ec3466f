"""Every training recipe that comes with the project: it loads, its model builds, its dry run adds up."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer.model import rectified_flow
from trainer.model.frame_masks import check_ratios
from trainer.recipe import changes
from trainer.recipe import recipe as recipes
from trainer.recipe.recipe import TrainRecipe
from trainer.report.experiment.spec import ExperimentSpec
from trainer.report.preview import dry_run
from trainer.training.optim.schedule import learning_rate
from trainer.training.track.spec import TrackRecipe
from vidcurate.curate import CurateRecipe
from vidcurate.errors import RecipeError
from vidcurate.recipe.recipe import load as load_strictly
from vidcurate.shards.index_file import write_index

FOLDER = Path(__file__).resolve().parents[3] / "recipes"
EXPERIMENTS = ("restarts", "curriculum")  # tests/trainer/test_experiment.py
TRAINING = ("first-steps", "openvid-finetune", "smoke", "speedrun", "speedrun-extended", "speedrun-fast")
TRACKS = ("track", "track-tiny")  # tests/trainer/training/track
CURATION = ("curate-demo", "curate-nouns", "curate-slices")
KINDS = (
    (TRAINING, TrainRecipe, "a training recipe; give it to `python -m trainer"),
    (TRACKS, TrackRecipe, "a track recipe; give it to `python -m trainer track"),
    (EXPERIMENTS, ExperimentSpec, "an experiment; give it to `python -m trainer experiment"),
    (CURATION, CurateRecipe, "a curation recipe; give it to `vidcurate curate"),
)
XL_2 = 1_207_643_972
XL_2_TRAINED = 1_201_595_936  # without the projection of the captions

NUM_CLIPS = 4_000
# Width, height and share of the clips: what OpenVid-1M and MiraData are like, and some of everything else.
SIZES = (
    (1920, 1080, 0.34),
    (1280, 720, 0.34),
    (3840, 2160, 0.04),
    (1080, 1920, 0.04),
    (960, 540, 0.06),
    (640, 360, 0.05),
    (320, 240, 0.03),
    (720, 720, 0.03),
    (1024, 436, 0.03),
    (64, 64, 0.04),
)


def load(name: str, *settings: str) -> TrainRecipe:
    return recipes.load(FOLDER / f"{name}.yaml", settings)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of clips that nobody has, of true shapes; its one shard is a hole of the right size."""
    folder = tmp_path_factory.mktemp("made") / "shards"
    folder.mkdir()
    source = np.random.default_rng(1)
    size = source.choice(len(SIZES), NUM_CLIPS, p=[share for *_, share in SIZES])
    frames = np.clip(source.lognormal(5.0, 0.7, NUM_CLIPS).astype(int), 20, 3_000)  # median 148
    frames[source.random(NUM_CLIPS) < 0.1] = 1
    names = [f"clip-{number:05d}" for number in range(NUM_CLIPS)]
    rows: dict[str, Any] = {name: names for name in ("sample_key", "clip_id", "source_id", "caption")}
    rows |= {
        "source_dataset": source.choice(["openvid", "miradata"], NUM_CLIPS).tolist(),
        "fold": np.where(source.random(NUM_CLIPS) < 0.05, "validation", "train").tolist(),
        "level": source.integers(1, 3, NUM_CLIPS).tolist(),
        "shard": ["train-000000.tar"] * NUM_CLIPS,
        "json_offset": list(range(0, 8 * NUM_CLIPS, 8)),
        "json_size": [4] * NUM_CLIPS,
        "video_offset": list(range(4, 8 * NUM_CLIPS, 8)),
        "video_size": [4] * NUM_CLIPS,
        "video_extension": ["mp4"] * NUM_CLIPS,
        "video_crc32c": [0] * NUM_CLIPS,
        "json_crc32c": [0] * NUM_CLIPS,
        "width": [SIZES[number][0] for number in size],
        "height": [SIZES[number][1] for number in size],
        "fps": source.choice([23.976, 24.0, 25.0, 29.97, 30.0, 60.0], NUM_CLIPS).tolist(),
        "num_frames": frames.tolist(),
        "duration_seconds": (frames / 24).tolist(),
        "noun_count": source.integers(1, 60, NUM_CLIPS).tolist(),
    }
    write_index(folder, rows)
    with (folder / "train-000000.tar").open("wb") as file:
        file.truncate(8 * NUM_CLIPS)
    return folder


@pytest.mark.parametrize("name", TRAINING)
def test_a_recipe_builds_its_model_and_its_dry_run_adds_up(name: str, shards: Path) -> None:
    written = load(name)
    places = [f"stages.{number}.data.shards={shards}" for number in range(len(written.stages))]
    # So few clips make no micro-batch of the published sizes.
    small = [f"stages.{number}.data.small_cells=shrink" for number in range(len(written.stages))]
    recipe = load(name, *places, *small)

    report = dry_run.dry_run(recipe)

    assert report["steps"] == sum(stage["steps"] for stage in report["stages"])
    for stage, spec in zip(report["stages"], recipe.stages, strict=True):
        assert stage["steps"] == spec.steps if spec.steps else stage["epochs"] >= (spec.epochs or 0)
        assert stage["clips"] + sum(stage["clips_left_out"].values()) <= NUM_CLIPS
        assert stage["clips"] > 0.5 * NUM_CLIPS * len(spec.data.levels or (1, 2)) / 2
        assert stage["lr_first"] < spec.optim.lr
    if recipe.validation:
        assert set(report["validation"]) == {stage.name for stage in recipe.stages}
        for buckets in report["validation"].values():
            assert max(buckets.values()) <= recipe.validation.clips_per_bucket + 1  # of two levels
            assert sum(buckets.values()) > 50
    assert dry_run.to_text(report)
    if recipe.model.hidden_size == 1152:
        assert (report["parameters"], report["trained_parameters"]) == (XL_2, XL_2_TRAINED)


def test_every_recipe_is_tested() -> None:
    found = {path.stem for path in FOLDER.glob("*.yaml") if not path.stem.startswith("curate")}

    assert found == {*TRAINING, *TRACKS, *EXPERIMENTS}


@pytest.mark.parametrize("name", TRAINING)
def test_a_recipe_is_readable_at_a_glance(name: str) -> None:
    text = (FOLDER / f"{name}.yaml").read_text()

    assert text.startswith("# yaml-language-server: $schema=train.schema.json\n")
    assert re.search(r"python -m trainer (launch )?recipes/", text)
    assert max(map(len, text.splitlines())) <= 120
    assert text.count("\n") < 250


# ── what was published ──────────────────────────────────────────────────────────────────────────────────────

STAGES = {f"stage-{number}": number for number in range(1, 8)}


@cache
def stages() -> dict[str, recipes.Stage]:
    found = [*load("speedrun").stages, *load("speedrun-extended").stages]
    return {stage.name: stage for stage in found}


def test_the_two_recipes_are_the_seven_stages_in_turn() -> None:
    assert list(stages()) == list(STAGES)
    speedrun, extended = load("speedrun"), load("speedrun-extended")
    assert speedrun.model == extended.model
    for recipe in (speedrun, extended):
        assert (recipe.ema_decay, recipe.precision, recipe.seed) == (0.99, "bfloat16", 42)
        assert (recipe.video_encoder.kind, recipe.text_encoder.kind) == ("vae", "t5")


@pytest.mark.parametrize(("name", "table"), list(zip(STAGES, [1, 2, 3, 1, 2, 3, 3], strict=True)))
def test_the_buckets_are_the_published_ones(name: str, table: int, shared: Path) -> None:
    golden = json.loads((shared / "golden" / "tables" / "buckets.json").read_text())
    mine = stages()[name].data.buckets.model_dump(mode="json")["table"]

    assert mine == golden[f"stage{table}"]["bucket_config"]


@pytest.mark.parametrize(
    ("name", "lr", "warmup", "top"),
    [
        ("stage-1", 1.6e-4, 400, None),
        ("stage-2", 1.6e-4, 400, None),
        ("stage-3", 2e-4, 1000, None),
        ("stage-4", 1.6e-4, 400, 6.4e-4),
        ("stage-5", 1.6e-4, 400, 6.4e-4),
        ("stage-6", 0.8e-4, 400, 3.2e-4),
        ("stage-7", 0.8e-4, 400, 3.2e-4),
    ],
)
def test_the_rates_are_the_published_ones(name: str, lr: float, warmup: int, top: float | None) -> None:
    spec = stages()[name].optim

    assert (spec.weight_decay, spec.betas, spec.eps, spec.grad_clip) == (0.01, (0.9, 0.999), 1e-15, 1.0)
    assert learning_rate(spec, 5_000, 10_000) == pytest.approx(lr, rel=1e-12)
    if top is None:
        assert spec.schedule == "constant"
        assert learning_rate(spec, 99, 10_000) == pytest.approx(lr * 100 / (warmup + 1))
    else:
        # The published schedule's values, of stages 4 and 5, and of 6 and 7.
        higher = {0: 1.6e-5, 100: 1.07e-4, 200: 3.28e-4, 300: 5.49e-4, 400: 6.4e-4, 600: 4e-4, 700: 2.3e-4}
        lower = {0: 1.6e-5, 100: 6.05e-5, 200: 1.68e-4, 300: 2.76e-4, 400: 3.2e-4, 600: 2e-4}
        for step, value in (higher if top == 6.4e-4 else lower).items():
            assert learning_rate(spec, step, 10_000) == pytest.approx(value, rel=5e-3), step


@pytest.mark.parametrize(
    ("name", "given", "first_frame"),
    [
        ("stage-1", 0.2, 0.05),
        ("stage-2", 0.25, 0.22),
        ("stage-3", 0.25, 0.22),
        ("stage-4", 0, 0),
        ("stage-7", 0, 0),
    ],
)
def test_the_shares_of_frame_masks_are_the_published_ones(
    name: str, given: float, first_frame: float
) -> None:
    ratios = check_ratios(stages()[name].mask_ratios)

    assert 1 - ratios["identity"] == pytest.approx(given)
    assert ratios["image_head"] == first_frame


def test_a_stage_begins_with_the_weights_of_the_one_before_and_nothing_else() -> None:
    for name, stage in stages().items():
        assert name == "stage-1" or stage.carry_over == "weights"
        assert (stage.data.micro_batches_per_step, stage.caption_dropout, stage.checkpoint_every) == (
            192,
            0.1,
            100,
        )
        assert stage.flow == rectified_flow.FlowSpec()
    assert [stages()[f"stage-{number}"].epochs for number in (1, 2, 3)] == [5, 5, 5]
    assert [stages()[f"stage-{number}"].steps for number in (4, 5, 6)] == [2100, 3300, 2900]


def test_the_fast_speed_run_changes_how_it_learns_and_not_what_it_sees() -> None:
    plain, fast = (changes.flat(recipes.to_json(load(name))) for name in ("speedrun", "speedrun-fast"))

    added = {key for key in plain.keys() | fast.keys() if plain.get(key) != fast.get(key)}
    kept = re.compile(r"name|output|precision|power_ema(\..*)?|stages\.\d\.(routing|optim\.muon)(\..*)?")
    assert [key for key in sorted(added) if not kept.fullmatch(key)] == []
    for stage in load("speedrun-fast").stages:
        assert stage.optim.muon
        assert stage.routing
        assert stage.routing.pairs == (2, 25)  # 24 of 28
    for name in set(TRAINING) - {"speedrun-fast"}:
        assert load(name).power_ema is None
        assert load(name).precision != "float8"
        assert all(stage.routing is stage.optim.muon is None for stage in load(name).stages)


def test_a_recipe_of_another_command_is_reported_that_command() -> None:
    reported = set()
    for names, model, words in KINDS:
        for other in {TrainRecipe, TrackRecipe, ExperimentSpec, CurateRecipe} - {model}:
            for path in (FOLDER / f"{name}.yaml" for name in names):
                with pytest.raises(RecipeError) as refused:
                    load_strictly(path, other)
                assert str(refused.value) == f"{path}: this is {words} {path}`."
                reported.add(path.stem)
    assert reported == {path.stem for path in FOLDER.glob("*.yaml")}
