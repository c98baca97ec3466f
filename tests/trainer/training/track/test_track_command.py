"""The track's command: records, the same numbers again, and what is refused."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.shards_for_tests import SMOKE
from trainer.training.track import command, record, run
from trainer.training.track.spec import TrackRecipe
from vidcurate.errors import InputError, RecipeError, StateError
from vidcurate.recipe import recipe as strict

RECIPE = SMOKE.parents[1] / "recipes" / "track-tiny.yaml"
SHORT = (
    "steps=4",
    "batch=4",
    "target.every=2",
    "target.loss=9.0",
    "target.sample_steps=2",
    "clips.count=12",
    "clips.validation=4",
    "model.depth=3",
    "model.hidden_size=32",
)
BOTH = ("optim.muon=2.0", "routing={share: 0.5, pairs: [1, 1], dense_finish: 0.25}")


def words(folder: Path, *more: str) -> list[str]:
    values = (*SHORT, f"output={folder}", *more)
    return [str(RECIPE), *(word for value in values for word in ("--set", value))]


def recipe(folder: Path, *more: str) -> TrackRecipe:
    return strict.load(RECIPE, TrackRecipe, settings=(*SHORT, f"output={folder}", *more))


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The record of a run with Muon and routing."""
    folder = tmp_path_factory.mktemp("track")
    assert command.main([*words(folder, *BOTH), "--seed", "2"]) == 0
    return record.read_record(record.record_path(folder, "tiny", 2))


def test_a_record_says_what_the_run_took_and_what_it_read(first: dict[str, Any]) -> None:
    assert (first["seed"], first["steps"], first["tokens"]) == (2, 4, 4 * 4 * 8 * 36)
    assert [line["step"] for line in first["log"]] == [2, 4]
    assert first["seconds_to_target"] == first["log"][0]["seconds"]  # below 9.0 from the first line on
    assert first["order_sha256"] == run.order_hash(2, 12, 16)
    assert first["joules"] is None
    assert first["hardware"]
    assert first["recipe"]["routing"]["pairs"] == [1, 1]
    routed, dense = (line["model_flops"] for line in first["log"])
    assert dense - routed > routed * 0.9  # the last step is dense
    assert math.isfinite(first["final_loss"])


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others(
    first: dict[str, Any], tmp_path: Path
) -> None:
    data = run.load_data(recipe(tmp_path), torch.device("cpu"))
    again, other = (run.run(recipe(tmp_path, *BOTH, f"seed={seed}"), data) for seed in (2, 3))

    for key in ("final_loss", "clips_sha256", "order_sha256", "model_flops"):
        assert again[key] == first[key], key
    assert other["final_loss"] != first["final_loss"]
    assert other["order_sha256"] != first["order_sha256"]
    assert other["clips_sha256"] == first["clips_sha256"]


def test_the_command_again_runs_nothing_and_another_recipe_is_refused(
    first: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(first["recipe"]["output"])
    monkeypatch.setattr(command, "_run_in_turn", lambda *_, **__: pytest.fail("ran again"))

    assert command.main([*words(folder, *BOTH), "--seed", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == [first]
    assert command.main([*words(folder, *BOTH, "batch=3"), "--seed", "2"]) == 2
    assert "is the record of another recipe (batch was 4, is 3)" in capsys.readouterr().err


@pytest.mark.soak
def test_seeds_run_together_make_the_records_of_seeds_in_turn(first: dict[str, Any], tmp_path: Path) -> None:
    both = [*words(tmp_path, *BOTH), "--seed", "2", "--seed", "4"]
    assert command.main([*both, "--together", "2"]) == 0

    made = [record.read_record(record.record_path(tmp_path, "tiny", seed)) for seed in (2, 4)]
    assert made[0]["final_loss"] == first["final_loss"]
    assert [one["beside"] for one in made] == [1, 1]
    assert first["beside"] == 0


def test_ctrl_c_of_seeds_together_is_one_line_and_ends_all(tmp_path: Path) -> None:
    """A terminal sends Ctrl-C to the process group of the command."""
    both = [*words(tmp_path, "steps=100000"), "--seed", "2", "--seed", "4", "--together", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "trainer", "track", *both],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},  # print would write a line break by itself
    )
    records = [record.record_path(tmp_path, "tiny", seed) for seed in (2, 4)]
    until = time.monotonic() + 300
    while time.monotonic() < until and process.poll() is None:  # until both seeds run
        if all(path.with_name(f".{path.name}.lock").exists() for path in records):
            break
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)

    lines = process.communicate(timeout=300)[1].splitlines()  # returns when no process holds stderr
    assert [line for line in lines if "clips, sha256" not in line and not line.startswith("seed ")] == [
        "interrupted; the same command continues with the next seed."
    ]
    assert process.returncode == 130


def test_other_data_than_the_recipe_names_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="the data of a track may not change"):
        run.load_data(recipe(tmp_path, "clips.sha256=abc"), torch.device("cpu"))


def test_clips_in_another_order_void_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = recipe(tmp_path, "steps=1", "target.prompts=0")
    data = run.load_data(one, torch.device("cpu"))
    draw = run.batches.draw
    monkeypatch.setattr(
        run.batches, "draw", lambda recipe, shape, step, numbers: draw(recipe, shape, step, numbers[::-1])
    )

    with pytest.raises(StateError, match="another order than seed 1 has"):
        run.run(one, data)


def test_the_recipes_of_the_repository_fit_and_differ_in_size_alone(tmp_path: Path) -> None:
    large = strict.load(RECIPE.with_name("track.yaml"), TrackRecipe)

    space = (large.clips.height // 8) * (large.clips.width // 8)
    assert large.clips.frames * space >= 2000
    assert large.clips.count >= 20_000
    assert large.clips.sha256
    assert large.routing is None
    assert large.optim.muon is None


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.in_channels=4", "set model.in_channels=12"),
        ("routing={pairs: [1, 3]}", "less than model.depth"),
        ("name=../x", "without a slash"),
        ("name=..", "without a slash"),
        ("batch=13", "batch is 13 and there are 12 clips"),
        ("precision=float8", "which only fast blocks compute; set blocks=fast"),
    ],
)
def test_a_recipe_that_does_not_fit_is_refused(tmp_path: Path, setting: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        recipe(tmp_path, setting)


def made(seed: int, seconds: float | None, **more: object) -> dict[str, Any]:
    return {"seed": seed, "seconds_to_target": seconds, "clips_sha256": "a", "target_loss": 0.2, **more}


def test_a_technique_enters_with_three_seeds_and_p_below_a_hundredth() -> None:
    base = [made(1, 100.0), made(2, 104.0), made(3, 98.0)]
    fast = [made(1, 60.0), made(2, 63.0), made(3, 59.0)]

    found = record.compare(fast, base)
    assert found.enters
    assert found.times == pytest.approx(1.66, abs=0.01)
    assert found.p is not None
    assert found.p < 0.001
    assert "fewer than 3 seeds" in record.compare(fast[:2], base).why_not
    assert "seed 3 did not reach" in record.compare([*fast[:2], made(3, None)], base).why_not
    assert (
        "differ in clips_sha256" in record.compare([*fast[:2], made(3, 59.0, clips_sha256="b")], base).why_not
    )
    noisy = [made(1, 60.0), made(2, 120.0), made(3, 75.0)]
    assert not record.compare(noisy, base).enters
    assert "p is" in record.compare(base, base).why_not


@pytest.mark.parametrize(
    ("t", "freedom", "p"), [(4.604, 4, 0.005), (2.776, 4, 0.025), (6.965, 2, 0.01), (0.0, 3, 0.5)]
)
def test_p_is_that_of_the_tables_of_students_t(t: float, freedom: int, p: float) -> None:
    assert record._beyond(t, freedom) == pytest.approx(p, rel=1e-3)


def test_the_test_is_one_sided() -> None:
    low, high = [1.0, 2.0, 3.0], [2.0, 3.0, 4.5]

    assert record.welch(low, high) < 0.5 < record.welch(high, low)
    assert record.welch(low, high) + record.welch(high, low) == pytest.approx(1, abs=1e-6)
    assert (record.welch([1.0] * 3, [2.0] * 3), record.welch([2.0] * 3, [1.0] * 3)) == (0.0, 1.0)


def test_the_target_is_reached_between_two_lines() -> None:
    log = [{"validation_loss": loss, "seconds": 10.0 * n} for n, loss in enumerate((1.0, 0.5, 0.4), start=1)]

    assert run.reached(log, 0.75, "seconds") == pytest.approx(15.0)
    assert run.reached(log, 1.5, "seconds") == 10.0
    assert run.reached(log, 0.3, "seconds") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("recipe", value) for value in (None, [], "x", -1, math.nan)),
        *(("seconds_to_target", value) for value in ("x", 0, -1.0, math.inf, 10**400, True)),
        *((key, None) for key in ("name", "seed", "log", "final_loss", "seconds", "prompts", "clips_sha256")),
        ("name", "\x1b[31m"),
        ("target_loss", {}),
        ("prompts_followed", -1),
    ],
)
def test_a_forged_record_is_refused(
    first: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, value: object
) -> None:
    (tmp_path / "tiny-seed2.json").write_text(json.dumps(first | {key: value}))

    assert command.main([*words(tmp_path, *BOTH), "--seed", "2"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert f"is not a record of the track; its {key} is" in error
    assert "\x1b" not in error


def test_records_in_a_moved_folder_are_still_the_recipes_records(
    first: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "tiny-seed2.json").write_text(json.dumps(first))

    assert command.main([*words(tmp_path, *BOTH), "--seed", "2"]) == 0


def test_a_seed_that_another_command_runs_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with record.alone(tmp_path, "tiny", 1):
        assert command.main(words(tmp_path)) == 2
    assert "another command (process" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()

    assert command.main(words(tmp_path / "file")) == 1
    assert "cannot be written (File exists)" in capsys.readouterr().err


@pytest.mark.parametrize("setting", ["clips.count=1000000000000", "clips.height=1000000000"])
def test_clips_beyond_the_memory_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], setting: str
) -> None:
    assert command.main([*words(tmp_path), "--set", setting]) == 2
    assert "Set a smaller clips.count" in capsys.readouterr().err


def test_what_is_no_record_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text in ("{}", "[1", "[]", '"name"', "[" * 100_000):
        path.write_text(text)
        with pytest.raises(InputError, match="is not a record of the track"):
            record.read_record(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError, match="it is no regular file"):
        record.read_record(path)


def test_a_gradient_that_is_not_finite_ends_the_run_and_names_its_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The host reads a norm after the next update; no line of the log may come in between."""
    wanted, lines = recipe(tmp_path, "steps=2", "model.depth=1"), []
    one = run.Run(wanted, run.load_data(wanted, torch.device("cpu")), graphs=False)
    inputs = one.inputs

    def broken(drawn: Any) -> Any:
        given = inputs(drawn)
        given["latents"][0, 0, 0, 0, 0] = math.nan if len(calls) == 1 else 0.0
        calls.append(drawn)
        return given

    calls: list[Any] = []
    monkeypatch.setattr(one, "inputs", broken)
    with pytest.raises(StateError, match=r"step 2: the gradient's norm is nan; lower optim.lr"):
        one.train(lines.append)
    assert lines == []
