"""The training act in one process: what it refuses, and what it keeps, replaces and takes besides."""

import fcntl
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.shards_for_tests import events, make_shards, numbers, smoke
from tests.trainer.training.states import SHORT, same
from trainer.cli import exit_codes
from trainer.data import stages as data_stages
from trainer.run_folder import layout as run_folder_layout
from trainer.run_folder import metrics
from trainer.run_folder.checkpoint import checkpoint, checksum
from trainer.train import train
from trainer.training.guard.decide import Halted
from trainer.training.state import Origin
from vidcurate.errors import CheckpointError, InputError, RecipeError, StateError, VidcurateError


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"load": "RUN", "ckpt_path": "RUN"}, "exclude each other"),
        ({"ckpt_path": "RUN", "start_from_scratch": True}, "belongs to --load"),
        ({"start_from_scratch": True}, "needs --load CHECKPOINT"),
        ({"load": "RUN/step-00000004/state.json"}, "For weights only: --ckpt-path"),
        ({"load": "nowhere"}, "no such checkpoint or run folder"),
        ({"ckpt_path": "nowhere"}, "nowhere: there is no such file"),
        ({"ckpt_path": "RUN/step-00000004/state.json"}, "cannot be read as weights"),
        ({"ckpt_path": "RUN/step-00000004/optimizer"}, "it is not this STDiT3"),
        ({"load": "RUN/samples"}, "no such checkpoint"),
    ],
)
def test_a_wrong_origin_is_refused_with_the_right_flag_named(
    shards: Path, short_run: Path, tmp_path: Path, flags: dict[str, Any], said: str
) -> None:
    given = {k: Path(v.replace("RUN", str(short_run))) if isinstance(v, str) else v for k, v in flags.items()}

    with pytest.raises(VidcurateError, match=said) as caught:
        train(smoke(shards, tmp_path / "new", *SHORT), Origin(**given))
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "new").glob("step-*"))


def test_a_run_is_not_begun_from_elsewhere_while_it_has_checkpoints(
    shards: Path, short_run: Path, half_run: Path
) -> None:
    for origin in (Origin(ckpt_path=short_run), Origin(load=short_run, start_from_scratch=True)):
        with pytest.raises(InputError, match="already holds a run that began without a checkpoint"):
            train(smoke(shards, half_run, *SHORT), origin)
    train(smoke(shards, half_run, *SHORT), Origin(load=half_run))  # itself: the same as without


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("seed=1", "seed was 42 .* and is 1 now"),
        ("ema_decay=0.5", "ema_decay was 0.9"),
        ("stages.0.steps=1", r"stages\.0\.steps was 4"),
        ("stages.0.caption_dropout=0.5", r"stages\.0\.caption_dropout"),
        ("stages.0.data.micro_batches_per_step=1", "Alternatives, .*--start-from-scratch"),
        ("stages.0.mask_ratios={}", r"stages\.0\.mask_ratios\.image_head was 0.25"),
        ("stages.0.flow.shift_scale=null", r"stages\.0\.flow\.shift_scale was "),
    ],
)
def test_a_recipe_that_changes_the_past_is_refused(
    shards: Path, half_run: Path, setting: str, said: str
) -> None:
    with pytest.raises(RecipeError, match=said):
        train(smoke(shards, half_run, *SHORT, setting), settings=[setting])


def test_another_model_is_refused_by_the_setting_that_differs(shards: Path, half_run: Path) -> None:
    with pytest.raises(StateError, match=r"model\.depth is 1 in the checkpoint and 2 in the recipe"):
        train(smoke(shards, half_run, *SHORT, "model.depth=2"))


def test_another_learning_rate_is_taken_when_it_is_asked_for_and_recorded(
    shards: Path, half_run: Path
) -> None:
    setting = "stages.0.optim.lr=5e-4"
    with pytest.raises(RecipeError, match=r"say that it is meant: --set stages\.0\.optim\.lr=0\.0005"):
        train(smoke(shards, half_run, *SHORT, setting))

    train(smoke(shards, half_run, *SHORT, setting), settings=[setting])

    assert numbers(half_run)[-1]["lr"] == pytest.approx(0.8 * 5e-4)
    assert events(half_run, "resume")[0]["changed"]["stages.0.optim.lr"] == [0.001, 0.0005]
    with pytest.raises(RecipeError, match=r"stages\.0\.optim\.lr was 0\.0005"):
        train(smoke(shards, half_run, *SHORT))


def test_more_steps_and_other_cadences_are_taken(shards: Path, short_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "longer"
    shutil.copytree(short_run, run)

    outcome = train(
        smoke(shards, run, *SHORT, "stages.0.steps=6", "stages.0.log_every=1", "loader.num_workers=0")
    )

    assert (outcome.step, len(numbers(run))) == (6, 6)


def test_a_cosine_is_not_stretched_unasked(shards: Path, tmp_path: Path) -> None:
    cosine = (*SHORT, "stages.0.optim.schedule=cosine")
    train(smoke(shards, tmp_path / "run", *cosine))
    with pytest.raises(RecipeError, match=r"stages\.0\.steps was 4"):
        train(smoke(shards, tmp_path / "run", *cosine, "stages.0.steps=6"))

    train(smoke(shards, tmp_path / "run", *cosine, "stages.0.steps=6"), settings=["stages.0.steps=6"])

    assert len(numbers(tmp_path / "run")) == 6


def test_another_data_set_is_refused_and_a_moved_one_is_not(
    shards: Path, half_run: Path, short_run: Path, tmp_path: Path
) -> None:
    other = make_shards(tmp_path / "other", num_clips=16)
    said = r"4 clips added in 2 shards \(train-level1-000000.tar: clip-012, clip-014.*--append.*--start-from-"
    with pytest.raises(StateError, match=said):
        train(smoke(other, half_run, *SHORT))

    moved = shutil.copytree(shards, tmp_path / "moved")
    train(smoke(moved, half_run, *SHORT))

    assert same(half_run, short_run)


def test_a_checkpoint_that_does_not_fit_is_refused_and_left_alone(shards: Path, half_run: Path) -> None:
    path = half_run / "step-00000002" / "ema" / "__0_0.distcp"
    before = path.read_bytes()
    path.write_bytes(before[:-4])
    metrics_before = (half_run / "metrics.jsonl").read_bytes()

    with pytest.raises(CheckpointError, match=r"ema/__0_0\.distcp: has .* bytes"):
        train(smoke(shards, half_run, *SHORT))

    assert (half_run / "metrics.jsonl").read_bytes() == metrics_before
    path.write_bytes(before)
    train(smoke(shards, half_run, *SHORT))


@pytest.mark.parametrize("part", checkpoint.PARTS)
def test_a_renamed_key_is_refused_by_name_even_where_every_hash_is_right(
    shards: Path, half_run: Path, part: str
) -> None:
    found = checkpoint.load(half_run)
    renamed = dict(found.parts[part])
    key = sorted(renamed)[3]
    renamed[key + "_old"] = renamed.pop(key)
    checkpoint.save(half_run, 2, found.parts | {part: renamed}, found.state)

    with pytest.raises(CheckpointError, match=rf"{part}: lacks {key} and has unknown {key}_old"):
        train(smoke(shards, half_run, *SHORT))


def test_two_processes_do_not_train_into_one_folder(shards: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with (run / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another process is training into this folder"):
            train(smoke(shards, run, *SHORT))

    train(smoke(shards, run, *SHORT))


def test_an_output_that_cannot_be_a_folder_is_named(shards: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"output .*file/run: cannot be written"):
        train(smoke(shards, tmp_path / "file" / "run", *SHORT))


def test_a_loss_that_is_not_finite_stops_the_run_before_the_update(shards: Path, half_run: Path) -> None:
    weights = checkpoint.load(half_run)
    broken = {name: value.clone() for name, value in weights.parts["model"].items()}
    broken["final_layer.linear.bias"][0] = float("nan")
    checksums = weights.state["checksums"] | {"model": checksum.checksum(broken)}
    state = weights.state | {"checksums": checksums}
    checkpoint.save(half_run, 2, weights.parts | {"model": broken}, state)

    with pytest.raises(
        Halted, match=r"step 3: the loss of 4 clips is not finite.*no weight was updated. Its clips: clip-"
    ) as raised:
        train(smoke(shards, half_run, *SHORT))
    assert raised.value.exit_code == exit_codes.HALT
    (event,) = events(half_run, "guard")
    assert (event["action"], event["finding"], event["step"]) == ("stop", "nonfinite", 3)
    assert event["verdict"]["cause"] == "data"  # or the model: the same computed again

    assert checkpoint.find(half_run).name == "step-00000002"
    assert len(numbers(half_run)) == 2


def test_a_clip_that_cannot_be_decoded_is_replaced_and_recorded(tmp_path: Path) -> None:
    damaged = make_shards(tmp_path / "shards", cut_short=(3,))

    train(smoke(damaged, tmp_path / "run", "stages.0.steps=6", "sample=null"))

    found = events(tmp_path / "run", "clip_substituted")
    assert {event["clip_id"] for event in found} == {"clip-003"}
    assert {event["fallback"] for event in found} <= {f"clip-{number:03d}" for number in range(12)}
    assert all(event["rank"] == 0 and event["kind"] == "too_few_frames" for event in found)
    assert [line["clips"] for line in metrics.read_metrics(tmp_path / "run" / "metrics.jsonl")] == [4] * 6


def test_only_the_newest_checkpoints_are_kept(shards: Path, tmp_path: Path) -> None:
    recipe = smoke(shards, tmp_path / "run", *SHORT, "stages.0.checkpoint_every=1", "stages.0.keep_last=2")

    train(recipe)

    assert [path.name for path in run_folder_layout.checkpoints(tmp_path / "run")] == [
        "step-00000003",
        "step-00000004",
    ]
    assert events(tmp_path / "run", "save")[-1]["deleted"] == ["step-00000002"]


def test_cuts_and_mirrors_resume_bit_for_bit_and_validate_plain(shards: Path, tmp_path: Path) -> None:
    drawn = (
        "stages.0.data.crop=random",
        "stages.0.data.flip=0.5",
        "stages.0.checkpoint_every=3",
        "sample=null",
    )
    train(smoke(shards, tmp_path / "whole", *drawn, "stages.0.steps=6"))
    train(smoke(shards, tmp_path / "cut", *drawn, "stages.0.steps=3"))
    train(smoke(shards, tmp_path / "cut", *drawn, "stages.0.steps=6"))
    resumed, whole = (
        [{**line, "weight_norm": 0} for line in numbers(tmp_path / run)] for run in ("cut", "whole")
    )
    assert resumed == whole
    train(smoke(shards, tmp_path / "plain", *drawn[2:], "stages.0.steps=6"))
    with_draws, plain = numbers(tmp_path / "whole"), numbers(tmp_path / "plain")
    assert [line["clips_hash"] for line in with_draws] == [line["clips_hash"] for line in plain]
    assert [line["loss"] for line in with_draws] != [line["loss"] for line in plain]
    recipe = smoke(shards, tmp_path / "v", *drawn, "validation={every: 3}")
    assert recipe.validation is not None
    spec = data_stages.validation_spec(recipe.validation, recipe.stages[0].data)
    assert (spec.crop, spec.flip) == ("center", 0.0)


def test_another_crop_is_refused_by_name_and_taken_where_it_is_meant(shards: Path, half_run: Path) -> None:
    key = "stages.0.data.crop"
    now = smoke(shards, half_run, *SHORT, f"{key}=random")
    with pytest.raises(
        RecipeError,
        match=rf"^{key} was 'center' when .* was saved and is 'random' now\. Restore the value or say that "
        rf"it is meant: --set {key}=random\.",
    ):
        train(now)

    train(now, settings=[f"{key}=random"])

    (resumed,) = events(half_run, "resume")
    assert resumed["changed"][key] == ["center", "random"]
    assert [line["step"] for line in numbers(half_run)] == [1, 2, 3, 4]


def test_what_latents_do_not_have_is_refused_beside_views(shards: Path, tmp_path: Path) -> None:
    for key in ("crop=random", "flip=0.5"):
        with pytest.raises(RecipeError, match=rf"{key.replace('=', ': ')} is not for views: 2"):
            smoke(shards, tmp_path, f"stages.0.data.{key}", "stages.0.data.views=2")
