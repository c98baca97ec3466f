"""The training act in one process: where it begins."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.shards_for_tests import events, make_shards, numbers, smoke
from tests.trainer.training.states import SHORT, fresh_state, same, tensors
from trainer.data import open_stage
from trainer.data import stages as data_stages
from trainer.recipe.recipe import TrainRecipe
from trainer.run_folder.checkpoint import checkpoint, checksum, convert
from trainer.train import train
from trainer.training import resume
from trainer.training.optim import adamw
from trainer.training.state import Origin


def test_a_run_resumes_where_it_stopped_and_proves_it(shards: Path, short_run: Path, half_run: Path) -> None:
    outcome = train(smoke(shards, half_run, *SHORT))

    assert (outcome.step, outcome.was_done) == (4, False)
    assert same(short_run, half_run)
    assert numbers(short_run) == numbers(half_run)
    assert not list(half_run.glob(".step*"))
    (proof,) = events(half_run, "resume")
    assert proof["path"].endswith("step-00000002")
    assert (proof["step"], proof["optimizer_updates"], proof["ema_updates"]) == (2, 2, 2)
    assert (proof["lr_before"], proof["lr_after"]) == (0.0004, pytest.approx(0.0006))
    assert proof["checksums_match_the_manifest"]
    assert proof["repeated_steps"] == 2
    assert proof["changed"]["output"][1] == str(half_run)
    clips = open_stage.clips(data_stages.open_stages(smoke(shards, half_run, *SHORT))[0], 2)
    assert proof["next_clip_ids"] == [clip.clip_id for clip in clips]


def test_a_finished_run_says_so_and_changes_nothing(shards: Path, short_run: Path) -> None:
    before = {path: path.read_bytes() for path in short_run.rglob("*") if path.is_file()}

    outcome = train(smoke(shards, short_run, *SHORT))

    assert outcome.was_done
    assert "is done: 4 of 4 steps" in outcome.to_text()
    assert before == {path: path.read_bytes() for path in short_run.rglob("*") if path.is_file()}


def test_a_run_killed_before_its_first_checkpoint_begins_again(
    shards: Path, short_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(short_run / "metrics.jsonl", run)

    train(smoke(shards, run, *SHORT))

    assert numbers(run) == numbers(short_run)
    assert events(run, "start")[0]["repeated_steps"] == 4


def test_stages_follow_each_other_and_a_resume_between_them_changes_nothing(
    shards: Path, tmp_path: Path
) -> None:
    document = smoke(shards, tmp_path / "run", *SHORT).model_dump(mode="json")
    first = document["stages"][0] | {"steps": 3}
    stages = [
        first | {"name": "easy", "data": first["data"] | {"levels": [1]}},
        first | {"name": "hard", "data": first["data"] | {"levels": [2]}, "carry_over": "weights"},
        first | {"name": "all", "steps": None, "epochs": 0.5},
    ]

    def recipe(run: str, stages: list[dict[str, Any]]) -> TrainRecipe:
        whole = document | {"output": str(tmp_path / run), "stages": stages}
        return TrainRecipe.model_validate_json(json.dumps(whole))

    train(recipe("once", stages))
    train(recipe("parts", stages[:1]))
    train(recipe("parts", stages[:2]))
    train(recipe("parts", stages))

    lines = numbers(tmp_path / "once")
    assert [line["stage"] for line in lines] == ["easy"] * 3 + ["hard"] * 3 + ["all"] * 2
    assert [line["stage_step"] for line in lines] == [1, 2, 3, 1, 2, 3, 1, 2]
    assert {tuple(line["loss_by_level"]) for line in lines[:3]} == {("1",)}
    assert lines[3]["lr"] == lines[0]["lr"]  # each stage has its own warm-up
    assert numbers(tmp_path / "parts") == lines
    assert same(tmp_path / "once", tmp_path / "parts")
    state = checkpoint.load(tmp_path / "once").state
    assert (state["optimizer_updates"], state["ema_updates"], state["step"]) == (5, 5, 8)


def test_load_resumes_in_a_new_folder(shards: Path, short_run: Path, tmp_path: Path) -> None:
    origin = Origin(load=short_run / "step-00000002")

    train(smoke(shards, tmp_path / "new", *SHORT), origin)
    again = train(smoke(shards, tmp_path / "new", *SHORT), origin)

    assert same(short_run, tmp_path / "new")
    assert numbers(tmp_path / "new") == numbers(short_run)[2:]
    assert events(tmp_path / "new", "load")[0]["step"] == 2
    assert again.was_done  # the same command again


def test_start_from_scratch_keeps_all_but_step_and_position(
    shards: Path, short_run: Path, tmp_path: Path
) -> None:
    other = make_shards(tmp_path / "other", num_clips=8, name="other")
    origin = Origin(load=short_run, start_from_scratch=True)

    train(smoke(other, tmp_path / "new", *SHORT), origin)

    (event,) = events(tmp_path / "new", "load_from_scratch")
    assert (event["step"], event["optimizer_updates"], event["ema_updates"]) == (0, 4, 4)
    saved = checkpoint.load(tmp_path / "new").state
    assert (saved["step"], saved["optimizer_updates"], saved["ema_updates"]) == (4, 8, 8)
    assert [line["step"] for line in numbers(tmp_path / "new")] == [1, 2, 3, 4]
    assert numbers(tmp_path / "new")[0]["lr"] == numbers(short_run)[0]["lr"]


@pytest.mark.parametrize("what", ["run", "checkpoint", "ema"])
def test_ckpt_path_takes_weights_only(shards: Path, short_run: Path, tmp_path: Path, what: str) -> None:
    path = {
        "run": short_run,
        "checkpoint": short_run / "step-00000004",
        "ema": short_run / "step-00000004" / "ema",
    }[what]
    recipe = smoke(shards, tmp_path / "new", *SHORT)
    state = fresh_state(recipe)

    begun = resume.start(recipe, Origin(ckpt_path=path), state)

    wanted = tensors(short_run, "ema" if what == "ema" else "model")
    assert begun.kind == "weights"
    assert checksum.checksum(state.model.state_dict()) == checksum.checksum(wanted)
    assert checksum.checksum(state.ema) == checksum.checksum(wanted)
    assert (state.step, state.ema_updates, adamw.update_count(state.optimizer)) == (0, 0, 0)


def test_ckpt_path_takes_published_files_in_half_precision(
    shards: Path, short_run: Path, tmp_path: Path
) -> None:
    recipe = smoke(shards, tmp_path / "new", *SHORT)
    half = {name: value.to(torch.bfloat16) for name, value in tensors(short_run, "ema").items()}
    convert.write_open_sora(half, recipe.model, tmp_path / "published", shard_bytes=50_000)
    state = fresh_state(recipe)

    resume.start(recipe, Origin(ckpt_path=tmp_path / "published"), state)

    for name, value in state.model.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, half[name].float()), name
