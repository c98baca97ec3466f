"""Experiment with real runs: arms, restarts, and a table that depends on nothing else."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.forked_runs import Forks
from tests.trainer.shards_for_tests import TINY, events, make_shards
from trainer.report.experiment import arms, results, run_arms
from trainer.report.experiment import command as experiment_command
from trainer.report.experiment.spec import ExperimentSpec
from trainer.run_folder import metrics
from vidcurate.errors import RecipeError, StateError, VidcurateError
from vidcurate.recipe import recipe as strict

ROOT = Path(__file__).resolve().parents[4]
ARMS: list[dict[str, Any]] = [
    {"name": "whole", "segments": [{"times": 2}]},
    {"name": "stops", "segments": [{}, {"begins": "resume"}]},
    {
        "name": "reset",
        "segments": [
            {"stage": {"data": {"levels": [1]}}},
            {"begins": "weights", "stage": {"data": {"levels": [2]}}},
        ],
    },
]  # fmt: skip


def written(folder: Path, shards: Path, **changes: Any) -> Path:
    """Write an experiment of tests/tiny.yaml: two updates a segment, one seed."""
    recipe = yaml.safe_load(TINY.read_text())
    recipe |= {
        "name": "tried",
        "sample": None,
        "output": str(folder / "out"),
        "validation": {"every": 2, "levels": [1, 2]},
    }
    recipe["stages"][0] |= {"steps": 2, "checkpoint_every": 1}
    recipe["stages"][0]["optim"] = {"lr": 1e-3}
    recipe["stages"][0]["data"]["shards"] = str(shards)
    whole = {
        "question": "Is it so?",
        "recipe": recipe,
        "arms": ARMS,
        "seeds": [1],
        "window_steps": 1,
    }
    path = folder / "experiment.yaml"
    path.write_text(yaml.safe_dump(whole | changes))
    return path


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "trainer", "experiment", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


def spec_of(path: Path) -> ExperimentSpec:
    return strict.load(path, ExperimentSpec)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("experiment")
    return written(home, make_shards(home / "shards", validation=(8, 9, 10, 11)))


@pytest.fixture(scope="module")
def done(file: Path, forks: Forks) -> Path:
    """The folder of the finished experiment, whose trainings were processes that had torch loaded."""
    words = run_arms.words
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as reported:
        patch.setattr(run_arms, "words", lambda *given: [*forks.python(), *words(*given)[2:]])
        assert experiment_command.main([str(file), "--jobs", "2", "--json"]) == 0
    out = Path(json.loads(reported.getvalue())["out"])
    assert json.loads(reported.getvalue())["arms"] == json.loads((out / "table.json").read_text())["arms"]
    return out


def test_arms_really_run_and_their_restarts_really_restart(done: Path) -> None:
    runs = done / "runs"
    for name in ("whole/seed-1", "stops/seed-1"):
        assert [line["step"] for line in metrics.read_metrics(runs / name / metrics.METRICS)] == [1, 2, 3, 4]
    assert not events(runs / "whole/seed-1", "resume")
    (resumed,) = events(runs / "stops/seed-1", "resume")
    assert (resumed["step"], resumed["optimizer_updates"]) == (2, 2)
    (reset,) = events(runs / "reset/seed-1-part-2", "weights")
    assert reset["step"] == 0
    levels = [
        line["loss_by_level"].keys()
        for line in metrics.read_metrics(runs / "reset/seed-1-part-2" / metrics.METRICS)
    ]
    assert levels == [{"2"}, {"2"}]


def test_the_table_says_that_a_restart_changed_no_loss_and_new_weights_did(done: Path) -> None:
    whole, stops, reset = json.loads((done / "table.json").read_text())["arms"]

    assert (whole["num_starts"], stops["num_starts"], reset["num_starts"]) == (1, 2, 2)
    assert stops["equals"] == ["whole"]
    assert stops["against"] == [0.0, None]
    assert stops["jump"] == stops["jump_there"]
    assert (reset["equals"], reset["validation_clips"]) == ([], 4)
    page = (done / "table.md").read_text()
    assert "| `stops` | 2 |" in page
    assert "the 4 clips that all arms validated on" in page
    plot = (done / "plot.svg").read_text()
    assert plot.count("<polyline") == 6  # training and validation of three arms
    assert "stop and restart of stops after" in plot
    assert "restart with the weights alone of reset" in plot


@pytest.mark.soak
def test_killed_in_the_middle_and_run_again_it_gives_the_same_table(
    done: Path, file: Path, tmp_path: Path
) -> None:
    words = [str(file), "--out", str(tmp_path / "out"), "--arm", "whole", "--arm", "stops"]
    home = tmp_path / "out" / "runs" / "stops" / "seed-1"
    command = [sys.executable, "-m", "trainer", "experiment", *words]
    begun = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while not (home / "LATEST").exists():  # within the first segment of the second arm
        assert time.monotonic() < until
        assert begun.poll() is None
        time.sleep(0.01)
    os.killpg(begun.pid, signal.SIGKILL)
    begun.wait()
    assert not (tmp_path / "out" / "table.json").exists()

    ended = run(*words)

    assert ended.returncode == 0, ended.stderr
    table = json.loads((tmp_path / "out" / "table.json").read_text())["arms"]
    undisturbed = json.loads((done / "table.json").read_text())["arms"][:2]
    for row in [*table, *undisturbed]:
        del row["validation_clips"], row["validation"], row["against"]  # over the clips of all arms there
    assert table == undisturbed
    assert len(metrics.read_metrics(home / metrics.METRICS)) == 4


def test_a_finished_experiment_is_not_trained_again(done: Path, file: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (done / "runs").rglob("*.jsonl")}
    table = (done / "table.md").read_bytes()

    ended = run(str(file))

    assert ended.returncode == 0, ended.stderr
    assert {path: path.stat().st_mtime_ns for path in (done / "runs").rglob("*.jsonl")} == before
    assert (done / "table.md").read_bytes() == table


def test_a_start_that_another_experiment_began_first_is_waited_for(
    done: Path, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder was free when this experiment looked; the other's run is whole at the second look."""
    (chain, *_) = arms.chains(spec_of(file), tmp_path)
    (start,) = chain.starts
    refused = "import sys; print('error: another process is training into this folder'); sys.exit(2)"
    monkeypatch.setattr(run_arms, "words", lambda *_: [sys.executable, "-c", refused])
    looks: list[float] = []

    def is_free(folder: Path, seconds: float, *_: Any) -> bool:
        looks.append(seconds)
        if len(looks) == 3:  # the wait of the second try
            shutil.copytree(done / "runs" / "whole" / "seed-1", folder, dirs_exist_ok=True)
        return len(looks) != 2

    monkeypatch.setattr(run_arms.progress, "is_free", is_free)
    reported: list[str] = []

    run_arms.run([chain], jobs=1, limit_seconds=60.0, tell=reported.append)

    assert looks == [60.0, 0.0, 60.0]
    assert reported == [f"whole, seed 1: start 1 of 1 done in {reported[0].split()[-2]} s"]
    shutil.rmtree(start.folder)
    with pytest.raises(VidcurateError, match=r"exit code 2: error: another process"):
        run_arms.run([chain], jobs=1, limit_seconds=60.0, tell=reported.append)


def test_what_would_be_run_and_the_recipe_of_an_arm_are_printed(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert experiment_command.main([str(file), "--dry-run", "--json", "--out", "nowhere"]) == 0
    chains = json.loads(capsys.readouterr().out)["chains"]
    assert [(one["arm"], one["starts"], one["starts_done"]) for one in chains] == [
        ("whole", 1, 0),
        ("stops", 2, 0),
        ("reset", 2, 0),
    ]
    assert experiment_command.main([str(file), "--print", "whole", "--set", "recipe.stages.0.steps=7"]) == 0
    assert json.loads(capsys.readouterr().out)["stages"][0]["steps"] == 14


WRONG = {
    "an arm with an unknown key": ({"arms": [{**ARMS[0], "seeds": 1}, ARMS[1]]}, "arms.0.seeds is not"),
    "an arm that changes the seed": ({"arms": [{**ARMS[0], "recipe": {"seed": 3}}, ARMS[1]]}, "changes seed"),
    "a segment of a stage's unknown key": (
        {"arms": [{"name": "a", "segments": [{"stage": {"data": {"levles": [1]}}}]}, ARMS[1]]},
        "arm a: stages.0.data.levles",
    ),
    "two arms of one name": ({"arms": [ARMS[0], ARMS[0]]}, "whole is taken"),
    "more of nothing": (
        {"arms": [{"name": "a", "segments": [{"begins": "resume"}]}, ARMS[1]]},
        "first segment needs a stage",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_fit_is_refused_by_name(what: str, tmp_path: Path) -> None:
    changes, message = WRONG[what]

    with pytest.raises(RecipeError, match=re.escape(message)):
        arms.chains(spec_of(written(tmp_path, tmp_path / "shards", **changes)), tmp_path / "out")


@pytest.mark.parametrize("name", ["restarts", "curriculum"])
@pytest.mark.parametrize("scales", [[], ["latents"], ["gpu", "latents"]])
def test_the_recipes_experiments_can_be_laid_out(
    name: str, scales: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for scale in scales for word in ("--scale", scale)]
    assert (
        experiment_command.main([str(ROOT / "recipes" / f"{name}.yaml"), "--dry-run", "--json", *words]) == 0
    )

    chains = json.loads(capsys.readouterr().out)["chains"]
    assert len({one["updates"] for one in chains}) == 1  # all arms see as much
    assert len(chains) == 3 * len({one["arm"] for one in chains})


def test_a_run_without_all_its_updates_is_refused(file: Path, tmp_path: Path) -> None:
    (chain, *_) = arms.chains(spec_of(file), tmp_path)
    with pytest.raises(StateError, match=r"4 of 4 updates are not in metrics.jsonl, the first is 1\. Remove"):
        results.track(chain)


def strict_json(text: str) -> Any:
    """Parse JSON that any reader takes: NaN and Infinity are no numbers there."""
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} in JSON"))


METRICS_OF_STOPS = f"runs/stops/seed-1/{metrics.METRICS}"


def edited(source: Path, out: Path, file: str, key: str, value: Any) -> Path:
    """Copy a finished experiment with another `key` in each line of a file; None removes the key."""
    shutil.copytree(source, out)
    lines = [json.loads(line) for line in (out / file).read_text().splitlines()]
    for line in lines:
        new = value(line[key]) if callable(value) else value
        line |= {key: new}
        if new is None:
            del line[key]
    (out / file).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return out


@pytest.mark.parametrize(
    ("name", "key", "value", "column", "shown"),
    [
        (metrics.METRICS, "loss", "nan", "final_loss", "nan"),
        (metrics.METRICS, "loss", "inf", "final_loss", "inf"),
        (metrics.METRICS, "grad_norm", "nan", "grad_peak", "nan"),
        (metrics.METRICS, "grad_norm", None, "grad_peak", "nan"),
        (metrics.METRICS, "grad_norm", 0.0, "grad_peak", "nan"),
        (
            metrics.VALIDATION,
            "loss_by_clip",
            lambda losses: dict.fromkeys(losses, "-inf") | {next(iter(losses)): "inf"},
            "validation",
            "nan",
        ),
    ],
)
def test_an_arm_that_diverged_has_its_place_in_table_and_plot(
    done: Path, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    name: str, key: str, value: Any, column: str, shown: str,
) -> None:  # fmt: skip
    out = edited(done, tmp_path / "out", f"runs/stops/seed-1/{name}", key, value)

    assert experiment_command.main([str(file), "--out", str(out), "--json"]) == 0

    whole, stops, _ = strict_json((out / "table.json").read_text())["arms"]
    assert stops[column] == [shown, None]
    assert strict_json(capsys.readouterr().out)["arms"][1] == stops
    assert whole == strict_json((done / "table.json").read_text())["arms"][0]
    assert shown in (out / "table.md").read_text()
    assert not re.search("nan|inf", re.sub("<title>.*?</title>", "", (out / "plot.svg").read_text()))


@pytest.mark.parametrize("value", ["x", -4, 1e308, None, [1]])
def test_forged_counts_of_clips_end_in_one_line(
    done: Path, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], value: Any
) -> None:
    out = edited(done, tmp_path / "out", METRICS_OF_STOPS, "clips", value)
    (out / "table.md").unlink()

    assert experiment_command.main([str(file), "--out", str(out)]) in (1, 2)

    (said,) = capsys.readouterr().err.splitlines()
    assert "sed -i 1d" in said or "Remove this folder and run the experiment again" in said
    assert not (out / "table.md").exists()


def test_a_pipe_in_place_of_a_log_ends_in_one_line_and_is_not_waited_for(
    done: Path, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shutil.copytree(done, tmp_path / "out")
    (out / METRICS_OF_STOPS).unlink()
    os.mkfifo(out / METRICS_OF_STOPS)

    assert experiment_command.main([str(file), "--out", str(out)]) == 1

    assert "cannot be read (it is no regular file)" in capsys.readouterr().err
