"""The training recipe: strict, whole, and clear about what a resumed run may change."""

import json
from pathlib import Path

import pytest

from tests.trainer.shards_for_tests import SMOKE, smoke
from trainer.recipe import recipe as recipes
from trainer.recipe.changes import changes, refused_changes
from trainer.recipe.recipe import TrainRecipe
from vidcurate.errors import RecipeError

HERE = Path("here")


def with_settings(*settings: str) -> TrainRecipe:
    return smoke(HERE / "shards", HERE / "run", *settings)


def test_the_tests_recipe_says_everything_by_itself() -> None:
    recipe = recipes.load(SMOKE)

    assert recipe.name == "tiny"
    assert recipe.stages[0].steps == 20
    assert TrainRecipe.model_validate_json(json.dumps(recipes.to_json(recipe))) == recipe


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("sample.guidance=1e400", "sample.guidance is .*finite number"),
        ("stages.0.flow.shift_scale=1e400", "stages.0.flow.shift_scale is .*finite number"),
        ("sample.num_frames=99999999999999999999", "sample.num_frames is .*less than or equal to 10000"),
        ("sample.height=10001", "sample.height is .*less than or equal to 10000"),
    ],
)
def test_a_number_that_no_run_can_use_is_refused_before_it_starts(setting: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        with_settings(setting)


def test_a_preset_names_a_published_model() -> None:
    text = SMOKE.read_text()
    model = text[text.index("model:") : text.index("video_encoder:")]
    text = text.replace(model, "model: XL/2\n")

    own = recipes.strict.parse(text, TrainRecipe).model
    assert own.model_dump(exclude={"in_channels", "caption_channels", "model_max_length"}) == (
        recipes.PRESETS["XL/2"].model_dump(exclude={"in_channels", "caption_channels", "model_max_length"})
    )
    assert (own.in_channels, own.caption_channels, own.model_max_length) == (48, 16, 12)
    with pytest.raises(RecipeError, match="the presets are XL/2, 3B/2"):
        recipes.strict.parse(text.replace("XL/2", "XXL/2"), TrainRecipe)
    spec = "{hidden_size: 1152, num_heads: 16}"
    changed = recipes.strict.parse(text.replace("XL/2", spec), TrainRecipe)
    assert changed.model.depth == recipes.PRESETS["XL/2"].depth


def test_plans_that_fill_the_gpu_ask_for_memory_without_holes_unless_it_says_otherwise() -> None:
    fit, name = "parallel.recompute_blocks=fit", "PYTORCH_ALLOC_CONF"

    assert with_settings(fit).environment == {name: "expandable_segments:True"}
    assert with_settings(fit, "environment.NCCL_DEBUG=WARN").environment.keys() == {"NCCL_DEBUG", name}
    own = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512"}
    assert with_settings(fit, f"environment={json.dumps(own)}").environment == own
    assert with_settings("parallel.recompute_blocks=1").environment == {}
    assert recipes.strict.parse(json.dumps(recipes.to_json(with_settings(fit))), TrainRecipe) == (
        with_settings(fit)
    )


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("model.depht=3", r"model\.depht is not a setting. Did you mean model\.depth\?"),
        (
            "stages.0.optim.lrr=3",
            r"stages\.0\.optim\.lrr is not a setting. Did you mean stages\.0\.optim\.lr\?",
        ),
        ("stages.0.steps=null", "stage first needs steps or epochs, one of them; neither is given"),
        ("stages.0.epochs=2", "needs steps or epochs, one of them; both are given"),
        ("stages.0.steps=0", "greater than or equal to 1"),
        ("stages=[]", "stages"),
        ("ema_decay=1.0", "less than 1"),
        ("seed=-1", "greater than or equal to 0"),
        ("seed=x", "seed"),
        ("name=a/b", "name"),
        ("stages.0.mask_ratios={image_hed: 0.1}", "image_hed is not a mask strategy"),
        ("stages.0.mask_ratios={random: 0.6, image_head: 0.6}", "mask ratios sum to 1.2"),
        ("stages.0.caption_dropout=2", "less than or equal to 1"),
        ("stages.0.data.buckets.table.999p={8: [1.0, 2]}", "999p is no resolution"),
        ("model.caption_channels=8", "the model takes it from the encoder"),
        ("model.num_heads=3", "hidden_size 32 needs an even width in each of num_heads 3"),
        ("model.hidden_size=1000000000000", "less than or equal to 65536"),
        ("model.depth=100000000000", "less than or equal to 1000"),
        ("text_encoder.model_max_length=1000000000000", "less than or equal to 65536"),
        ("sample.height=31", "height and width must be even"),
        ("sample.width=2", "no smaller than the video encoder's blocks"),
        ("precision=float16", "precision"),
        ("loader.num_workers=-1", "greater than or equal to 0"),
        ("loader.workers=1", "Did you mean loader.num_workers"),
    ],
)
def test_a_setting_that_does_not_fit_is_refused_in_one_line(setting: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said) as caught:
        with_settings(setting)
    assert "\n" not in str(caught.value)


def test_two_stages_of_one_name_are_refused(tmp_path: Path) -> None:
    document = recipes.to_json(with_settings())
    document["stages"] *= 2
    (tmp_path / "twice.yaml").write_text(json.dumps(document))

    with pytest.raises(RecipeError, match="two stages are called first"):
        recipes.load(tmp_path / "twice.yaml")


def test_the_digest_is_of_what_the_recipe_says_not_of_how_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "as.json").write_text(json.dumps(recipes.to_json(recipes.load(SMOKE))))

    assert recipes.digest(recipes.load(tmp_path / "as.json")) == recipes.digest(recipes.load(SMOKE))
    assert recipes.digest(recipes.load(SMOKE)) != recipes.digest(recipes.load(SMOKE, ["seed=1"]))


@pytest.mark.parametrize(
    ("setting", "is_allowed"),
    [
        ("output=there", True),
        ("name=other", True),
        ("loader.num_workers=3", True),
        ("sample=null", True),
        ("stages.0.log_every=1", True),
        ("stages.0.checkpoint_every=1", True),
        ("stages.0.keep_last=1", True),
        ("stages.0.data.shards=there", True),
        ("stages.0.steps=30", True),
        ("stages.0.steps=7", True),  # not fewer than the 7 that are made
        ("stages.0.steps=6", False),
        ("stages.0.optim.lr=1e-5", False),  # taken only from --set
        ("stages.0.data.crop=random", False),  # so is this
        ("stages.0.data.levels=[1]", False),
        ("stages.0.caption_dropout=0.2", False),
        ("seed=1", False),
        ("precision=bfloat16", False),
        ("ema_decay=0.5", False),
        ("power_ema=[0.05, 0.1]", False),
        ("stages.0.optim.muon=2.0", False),
        ("stages.0.routing={share: 0.5, pairs: [0, 0]}", False),
        ("stages.0.data.captions={caption: 1}", False),
        ("stages.0.name=second", False),
    ],
)
def test_what_a_resumed_run_may_change(setting: str, is_allowed: bool) -> None:
    saved, now = recipes.to_json(with_settings()), with_settings(setting)
    changed = changes(saved, now)

    assert changed
    assert (refused_changes(changed, now.stages, stage=0, stage_step=7, settings=()) == []) == is_allowed


def test_a_setting_that_a_checkpoint_is_too_old_to_know_had_its_default() -> None:
    older = recipes.to_json(with_settings())
    del older["ema_decay"]  # 0.99 by default, and in the tests' recipe 0.9
    del older["stages"][0]["data"]["flip"]

    assert changes(older, with_settings("ema_decay=0.99")) == {}
    assert changes(older, with_settings("ema_decay=0.5")) == {"ema_decay": (0.99, 0.5)}
    # What the recipe of now cannot hold differs, and so does all that is missing beside it.
    assert "no_setting" in changes(older | {"no_setting": 1}, with_settings("ema_decay=0.99"))


def test_windows_to_skip_are_taken_where_set_names_them_and_they_lie_ahead() -> None:
    saved = recipes.to_json(with_settings("stages.0.skip=[[3, 4]]"))
    asked = ["stages.0.skip=…"]

    def refused(skip: str, settings: list[str]) -> list[str]:
        now = with_settings(f"stages.0.skip={skip}")
        changed = changes(saved, now)
        return refused_changes(changed, now.stages, 0, 7, settings, data_step=9)

    assert refused("[[3, 4], [10, 12]]", asked) == []
    assert refused("[[3, 4], [10, 12]]", []) == ["stages.0.skip"]
    assert refused("[[3, 4], [9, 12]]", asked) == ["stages.0.skip"]
    assert refused("[[10, 12]]", asked) == ["stages.0.skip"]
    with pytest.raises(RecipeError, match=r"\[5, 4\] ends before it begins"):
        with_settings("stages.0.skip=[[5, 4]]")
    # A checkpoint from before there were windows is none that has others.
    older = recipes.to_json(with_settings())
    del older["stages"][0]["skip"]
    now = with_settings()
    assert refused_changes(changes(older, now), now.stages, 0, 7, []) == []


@pytest.mark.parametrize("setting", ["crop=random", "flip=0.5"])
def test_how_a_clip_is_shown_is_taken_where_set_names_it(setting: str) -> None:
    key, saved = f"stages.0.data.{setting}", recipes.to_json(with_settings())
    now = with_settings(key)
    changed = changes(saved, now)

    assert refused_changes(changed, now.stages, 0, 7, [key]) == []
    assert refused_changes(changed, now.stages, 0, 7, ["seed=1"]) == [key.partition("=")[0]]


def test_a_rate_named_by_set_is_taken_for_this_stage_and_later_stages_are_free() -> None:
    setting = "stages.0.optim.lr=1e-5"
    saved, now = recipes.to_json(with_settings()), with_settings(setting)
    changed = changes(saved, now)

    assert refused_changes(changed, now.stages, 0, 7, [setting]) == []
    assert refused_changes(changed, now.stages, 0, 7, ["stages.0.optim={}"]) == []
    assert refused_changes(changed, now.stages, 0, 7, ["seed=1"]) == ["stages.0.optim.lr"]
    two = now.model_copy(update={"stages": (now.stages[0], now.stages[0].model_copy(update={"name": "b"}))})
    assert set(refused_changes(changes(saved, two), two.stages, 0, 7, [])) == {"stages.0.optim.lr"}
    # A stage that is over does not change any more, whatever is asked.
    assert refused_changes(changed, two.stages, 1, 0, [setting]) == ["stages.0.optim.lr"]


def test_every_setting_is_documented() -> None:
    text = (SMOKE.parents[1] / "docs" / "recipe-keys.md").read_text()
    schema = TrainRecipe.model_json_schema()
    models = [schema, *schema["$defs"].values()]

    missing = sorted(
        {name for model in models for name in model.get("properties", {}) if f"`{name}`" not in text}
    )

    assert missing == []
