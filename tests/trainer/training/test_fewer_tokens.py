"""A run with Muon and token routing: resume bit for bit, dense finish, recipes that do not fit."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.shards_for_tests import numbers, smoke
from tests.trainer.training.states import same, tensors
from trainer.model.flops import flops_per_step
from trainer.recipe import recipe as recipes
from trainer.report.preview import dry_run
from trainer.run_folder.checkpoint import convert
from trainer.train import train
from trainer.training import micro_batch
from trainer.training.state import Origin
from vidcurate.errors import RecipeError, StateError

ON = (
    "model.depth=3",
    "stages.0.steps=4",
    "stages.0.checkpoint_every=2",
    "stages.0.routing={share: 0.5, pairs: [1, 1], dense_finish: 0.25}",
    "stages.0.optim.muon=2.0",
    "stages.0.data.captions={caption: 1}",
    "stages.0.data.captions_from={2: {caption: 1, clip_id: 1}, 4: {clip_id: 1}}",
    "sample=null",
)


@pytest.fixture(scope="module")
def run(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fewer") / "run"
    train(smoke(shards, folder, *ON))
    return folder


def test_a_resumed_run_is_the_run_that_never_stopped(shards: Path, run: Path, tmp_path: Path) -> None:
    half = tmp_path / "half"
    shutil.copytree(run, half)
    shutil.rmtree(half / "step-00000004")
    (half / "LATEST").write_text("step-00000002\n")

    train(smoke(shards, half, *ON))

    assert same(run, half)
    assert [line["loss"] for line in numbers(run)] == [line["loss"] for line in numbers(half)][-4:]
    moments = tensors(run, "optimizer")
    assert moments["momentum.spatial_blocks.0.mlp.fc1.weight"].abs().max() > 0
    assert "exp_avg_sq.spatial_blocks.0.mlp.fc1.weight" not in moments


def test_the_clips_and_their_order_are_those_of_a_run_without_any_of_it(
    shards: Path, run: Path, tmp_path: Path
) -> None:
    plain = [word for word in ON if not re.search("routing|muon|captions", word)]

    train(smoke(shards, tmp_path / "run", *plain))

    ours, theirs = numbers(run), numbers(tmp_path / "run")
    for name in ("clips_hash", "clips", "tokens", "lr"):
        assert [line[name] for line in ours] == [line[name] for line in theirs], name
    assert ours[0]["loss"] != theirs[0]["loss"]  # routed


def test_the_dry_run_names_all_of_it(shards: Path, tmp_path: Path) -> None:
    recipe = smoke(shards, tmp_path / "run", *ON, "power_ema=[0.05, 0.1]", "precision=bfloat16")
    report = dry_run.dry_run(recipe)
    text = dry_run.to_text(report)

    assert "computes in bfloat16 with eager blocks; averages of the weights: ema_decay 0.9, and" in text
    assert "power_ema's 0.05 and 0.1" in text
    assert "  optimizer: Muon for the matrices of blocks, at 2 × lr; AdamW for the rest" in text
    assert "  routing: 50% of a clip's tubes skip the pairs 1 to 1 of blocks; dense from step 4 on" in text
    assert "  captions: caption 1; from data step 2 caption 1, clip_id 1; from data step 4 clip_id 1" in text
    (stage,) = report["stages"]
    assert stage["routing"]["dense_from"] == 4
    assert (stage["muon"], stage["captions_from"]["4"]) == (2.0, {"clip_id": 1.0})
    short = dry_run.to_text(dry_run.dry_run(smoke(shards, tmp_path / "run", *ON, "stages.0.steps=3")))
    assert "from data step 4 (beyond the stage's last) clip_id 1" in short
    two = report["weights_and_optimizer_bytes"]
    one = dry_run.dry_run(smoke(shards, tmp_path / "run", *ON))["weights_and_optimizer_bytes"]
    assert two - one == 2 * 4 * report["trained_parameters"]


def test_the_dry_run_says_nothing_of_what_is_off(shards: Path, tmp_path: Path) -> None:
    text = dry_run.to_text(dry_run.dry_run(smoke(shards, tmp_path / "run", "sample=null")))

    assert not re.search("Muon|routing|power_ema|captions:", text)


def test_the_last_step_is_dense_and_the_flops_follow(
    shards: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    add_gradient = micro_batch.add_gradient

    def watched(*arguments: Any, routed: Any, **named: Any) -> Any:
        seen.append(routed)
        return add_gradient(*arguments, routed=routed, **named)

    monkeypatch.setattr(micro_batch, "add_gradient", watched)
    recipe = smoke(shards, tmp_path / "run", *ON)
    train(recipe)

    spec = recipe.stages[0].routing
    assert spec is not None
    assert seen == [spec] * 6 + [None] * 2  # two micro-batches a step
    assert [line["loss"] for line in numbers(tmp_path / "run")] == [line["loss"] for line in numbers(run)]
    first, *_, last = numbers(run)
    per_token = [line["model_flops"] / line["tokens"] for line in (first, last)]
    assert per_token[0] < 0.9 * per_token[1]
    dense, routed = (flops_per_step(recipe.model, [(8, 8, 8)], [5], one) for one in (None, spec))
    assert routed < dense


def test_its_weights_convert(run: Path) -> None:
    state = convert.read_open_sora(convert.part_of(run, raw=False))

    assert state["spatial_blocks.2.mlp.fc1.weight"].shape == (128, 32)


def test_the_moments_of_another_optimizer_are_refused(shards: Path, run: Path, tmp_path: Path) -> None:
    plain = tuple(word for word in ON if "muon" not in word)

    with pytest.raises(StateError, match="saved with the optimizer Muon and this trainer has AdamW"):
        train(smoke(shards, tmp_path / "run", *plain), Origin(load=run))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("stages.0.routing.pairs=[1, 3]", "routing.pairs ends at 3, and the last pair of model.depth 3 is 2"),
        ("stages.0.routing.pairs=[2, 1]", "give \\[first, last\\]"),
        ("stages.0.optim.muon=0", "optim.muon"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    shards: Path, tmp_path: Path, setting: str, message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        smoke(shards, tmp_path / "run", *ON, setting)


def test_muon_in_one_of_two_stages_is_refused(shards: Path, tmp_path: Path) -> None:
    recipe = smoke(shards, tmp_path / "run", *ON)
    saved = recipes.to_json(recipe)
    (first,) = saved["stages"]
    second = first | {"name": "second", "optim": {"lr": 1e-3}}

    with pytest.raises(ValueError, match=r"optim\.muon is set in one of the stages first and second"):
        recipes.from_saved(saved | {"stages": [first, second]})


def test_a_longer_stage_moves_the_dense_finish_and_is_asked_for(
    shards: Path, run: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "step-00000004")
    (copy / "LATEST").write_text("step-00000002\n")

    with pytest.raises(RecipeError, match=r"stages\.0\.steps was 4"):
        train(smoke(shards, copy, *ON, "stages.0.steps=5"))
