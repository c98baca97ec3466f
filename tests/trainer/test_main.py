"""The command line: what it prints, how it ends, and that the example in its help is true."""

import io
import json
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from tests.trainer.shards_for_tests import SMOKE, make_shards, numbers, settings, smoke
from trainer import __main__ as command
from trainer.data import open_stage
from trainer.data import stages as data_stages
from trainer.report.preview import dry_run, inspect_command
from trainer.train import train

ROOT = SMOKE.parents[1]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("made") / "shards")


@pytest.fixture(scope="module")
def run(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("inspected") / "run"
    train(smoke(shards, run, "stages.0.steps=3", "sample=null"))
    return run


def arguments(shards: Path, output: Path, *more: str) -> list[str]:
    return [str(SMOKE), *(word for value in settings(shards, output, *more) for word in ("--set", value))]


def test_the_example_of_the_help_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = re.search(r"python -m trainer (recipes/.*)", help_of(command.main))
    assert line is not None
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    make_shards(tmp_path / "run" / "shards", num_clips=4, size=64)
    monkeypatch.chdir(tmp_path)
    words = [*shlex.split(line[1]), "--set", "stages.0.steps=2", "--set", "sample.steps=2"]

    assert command.main(words) == 0

    assert capsys.readouterr().out.startswith("done: 2 steps, loss ")
    assert (tmp_path / "runs" / "first" / "gallery.html").is_file()
    assert command.main(words) == 0
    assert capsys.readouterr().out.startswith("runs/first is done: 2 of 2 steps")


def test_the_answer_is_json_when_asked_for(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = arguments(shards, tmp_path / "run", "stages.0.steps=2", "sample=null")

    assert command.main([*given, "--json"]) == 0

    captured = capsys.readouterr()
    answer = json.loads(captured.out)
    assert (answer["step"], answer["num_steps"], answer["stopped_by"]) == (2, 2, None)
    assert answer["loss"] == numbers(tmp_path / "run")[-1]["loss"]
    assert "step 2/2" in captured.err


def test_a_dry_run_writes_nothing_and_its_numbers_are_the_loaders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shards = make_shards(tmp_path / "shards", num_clips=14)
    table = "{32px: {8: [[0.8, 0.8], 3], 4: [1.0, 2], 16: [1.0, 1]}, 144p: {8: [1.0, 1]}}"
    more = ("stages.0.epochs=1.5", "stages.0.steps=null", f"stages.0.data.buckets.table={table}", "seed=1")
    given = arguments(shards, tmp_path / "run", *more)

    assert command.main([*given, "--dry-run", "--json"]) == 0

    (report,) = json.loads(capsys.readouterr().out)["stages"]
    assert not (tmp_path / "run").exists()
    recipe = smoke(shards, tmp_path / "run", *more)
    (stage,) = data_stages.open_stages(recipe)
    batches, buckets = Counter[str](), Counter[str]()
    shown: dict[str, Counter[str]] = {}
    order: list[str] = []
    after: list[int] = []
    with open_stage.open_loader(
        stage, recipe.loader, recipe.video_encoder, rank=0, world_size=1, on_event=pytest.fail
    ) as loader:
        for step in range(report["steps"]):
            for batch in sorted(loader.step(step), key=lambda batch: batch.position):
                batches[batch.cell] += 1
                buckets[batch.bucket.name] += 1
                shown.setdefault(batch.cell, Counter()).update(batch.clip_ids)
                order += batch.clip_ids
            after.append(len(order))
    cells = {cell["name"]: cell for cell in report["cells"]}
    assert {name: cell["micro_batches"] for name, cell in cells.items()} == batches
    for name, times in shown.items():
        never = cells[name]["clips"] - len(times)
        counts = [*times.values(), *[0] * never]
        assert cells[name]["exposures"] == [min(counts), max(counts)]
    assert {bucket["name"]: bucket["micro_batches"] for bucket in report["buckets"]} == buckets
    assert sum(bucket["clips_read"] for bucket in report["buckets"]) == report["clips_read"] == len(order)
    assert report["first_clip_ids"] == order[: after[0]][:8]
    in_cells = sum(cell["clips"] for cell in cells.values())
    assert report["clips"] == in_cells
    assert in_cells + sum(report["clips_left_out"].values()) == 14
    assert next(step for step, count in enumerate(after, 1) if count >= in_cells) == report["steps_per_epoch"]
    assert after[-1] >= 1.5 * in_cells > after[-2]
    assert {"32px-16f-1.00", "32px-16f-0.50"} <= set(report["empty_buckets"])
    assert not set(report["empty_buckets"]) & set(buckets)
    assert report["notes"][0]["event"] == "small_cell"

    assert command.main([*given, "--dry-run"]) == 0
    words = capsys.readouterr().out
    assert f"one epoch is {report['steps_per_epoch']} steps" in words
    assert f"no clip in {len(report['empty_buckets'])} buckets: 144p-8f-" in words
    assert " times\n" in words


def test_a_dry_run_as_text_names_what_no_bucket_takes(shards: Path, tmp_path: Path) -> None:
    report = dry_run.dry_run(smoke(shards, tmp_path / "run"))
    long = dry_run.dry_run(
        smoke(
            shards,
            tmp_path / "run",
            "stages.0.data.buckets.table={32px: {9: [1.0, 1]}}",
            "blocks=fast",
            "parallel.recompute_blocks=fit",
        )
    )

    words = dry_run.to_text(report)
    assert "20 steps, stages: first" in words
    assert f"{report['parameters']:,} parameters" in words
    assert "level-1/32px-8f-1.00" in words
    found = report["stages"][0]["memory"]
    assert f"{found['largest_bytes'] / 1e9:.3g} GB of a micro-batch of {found['largest_cell']}" in words
    assert found["state_bytes"] == report["weights_and_optimizer_bytes"]  # float32, one rank
    assert found["least_bytes"] == found["largest_bytes"]
    fitted = long["stages"][0]["memory"]
    assert (fitted["lean_blocks"], fitted["recompute_blocks"]) == ("fit", "fit")
    assert fitted["least_bytes"] < fitted["largest_bytes"]
    assert "GB clip by clip, with blocks lean or recomputed" in dry_run.to_text(long)
    assert long["stages"][0]["clips"] == 12


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (["--set", "model.depht=3"], 2, "Did you mean model.depth?"),
        (["--set", "seed"], 2, "--set seed: write it as key=value"),
        (["--start-from-scratch"], 2, "--start-from-scratch needs --load"),
        (["--load", "a", "--ckpt-path", "b"], 2, "exclude each other"),
        (["--load", "WEIGHTS"], 2, "For weights only: --ckpt-path"),
        (["--load", "WEIGHTS_FOLDER"], 2, "holds weights alone"),
        (["--ckpt-path", "WEIGHTS"], 2, "cannot be read as weights"),
        (["--set", "OUTPUT_FILE"], 2, "cannot be written"),
        (["--set", "OUTPUT_FILE", "--dry-run"], 2, "cannot be written"),
        (["--set", "OUTPUT_BELOW", "--dry-run"], 2, "cannot be written"),
        (["--load", "nowhere"], 2, "nowhere: no such checkpoint or run folder"),
        (["--set", "stages.0.data.shards=nowhere"], 2, "no such index"),
        (["--set", "stages.0.data.levels=[7]"], 2, "no clip of level 7"),
        (["--set", "stages.0.data.buckets.table={144p: {51: [1.0, 1]}}"], 2, "no clip fits any bucket"),
    ],
)
def test_what_is_wrong_is_one_line_and_an_exit_code(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], code: int, said: str
) -> None:
    (tmp_path / "weights").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "weights" / name).write_text("{}")
    places = {
        "WEIGHTS": str(tmp_path / "weights" / "model.safetensors"),
        "WEIGHTS_FOLDER": str(tmp_path / "weights"),
        "OUTPUT_FILE": f"output={tmp_path / 'weights' / 'config.json'}",
        "OUTPUT_BELOW": f"output={tmp_path / 'weights' / 'config.json' / 'run'}",
    }
    words = [places.get(word, word) for word in more]

    assert command.main([*arguments(shards, tmp_path / "run"), *words]) == code

    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_shards_that_are_gone_from_a_run_that_has_begun_are_no_wrong_request(
    shards: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run, tmp_path / "run")

    assert command.main(arguments(tmp_path / "unmounted", tmp_path / "run")) == 1

    said = capsys.readouterr().err
    assert "unmounted/index.parquet: no such index" in said
    assert "has reached step 3" in said
    assert said.count("\n") == 1


def test_a_recipe_that_is_not_there_is_a_wrong_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["nowhere.yaml"]) == 2
    assert "nowhere.yaml: no such recipe file" in capsys.readouterr().err


def test_a_misspelt_command_is_named_with_the_near_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["reprot", "runs/smoke"]) == 2
    assert capsys.readouterr().err == "error: reprot: no command and no recipe file. Did you mean report?\n"


def test_a_flag_is_never_guessed() -> None:
    with pytest.raises(SystemExit) as ended:
        command.main([str(SMOKE), "--start"])
    assert ended.value.code == 2


def test_inspect_says_what_a_run_and_a_checkpoint_hold(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect_command.main([str(run), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["checkpoints"] == ["step-00000003"]
    assert report["last_metrics"]["step"] == 3
    newest = report["newest"]
    assert (newest["step"], newest["optimizer_updates"], newest["data_position"]["step"]) == (3, 3, 3)
    assert newest["ema_distance"] > 0

    assert inspect_command.main([str(run / "step-00000003")]) == 0
    assert "optimizer_updates: 3" in capsys.readouterr().out


def test_inspect_lists_the_clips_of_a_step_with_their_captions(
    run: Path, shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = smoke(shards, run)
    (stage,) = data_stages.open_stages(recipe)

    assert inspect_command.main([str(run), "--step", "2", "--json"]) == 0

    listed = json.loads(capsys.readouterr().out)
    assert [clip["clip_id"] for clip in listed] == list(
        data_stages.step_plan(stage, 1, recipe.video_encoder, recipe.model.patch_size).clip_ids
    )
    assert all(clip["caption"].startswith("a ") for clip in listed)
    assert inspect_command.main([str(run), "--step", "4"]) == 2
    assert "has the steps 1 to 3" in capsys.readouterr().err


def test_the_examples_of_inspect_are_true(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, tmp_path / "runs" / "smoke")
    lines = re.findall(r"^  python -m trainer inspect (.*)", help_of(inspect_command.main), re.MULTILINE)
    assert len(lines) == 3

    for line in lines:  # the run has three steps
        words = shlex.split(line.replace("step-00000020", "step-00000003").replace("--step 7", "--step 3"))
        assert inspect_command.main(words) == 0


def help_of(main: Callable[[list[str]], int]) -> str:
    """Return a command's help, each example on one line."""
    reported = io.StringIO()
    with pytest.raises(SystemExit, match=r"^0$"), redirect_stdout(reported):
        main(["--help"])
    return re.sub(r"\\\n +", "", reported.getvalue())


def test_inspect_of_a_run_shows_the_last_round_of_validation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shards, run = make_shards(tmp_path / "shards", validation=(10, 11)), tmp_path / "run"
    train(smoke(shards, run, "stages.0.steps=1", "sample=null", "validation.every=1"))

    assert inspect_command.main([str(run), "--json"]) == 0

    last = json.loads(capsys.readouterr().out)["last_validation"]
    assert (last["step"], last["clips"]) == (1, 2)
    assert "loss_by_clip" not in last


def test_a_folder_that_is_no_run_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect_command.main([str(tmp_path)]) == 2
    assert "is neither a checkpoint nor a run" in capsys.readouterr().err


@pytest.mark.parametrize("arguments_", [["nowhere"], ["nowhere", "--step", "1"]])
def test_inspect_of_nothing_is_refused(arguments_: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect_command.main(arguments_) in (1, 2)
    assert "nowhere: no such" in capsys.readouterr().err
