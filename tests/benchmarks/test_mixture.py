"""The benchmark of a run in mixed buckets: too few clips for them, and a report of a run that was made."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.forked_runs import Forks
from trainer.recipe import recipe as recipes
from vidcurate.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
WORDS = ["--recipe", "tests/tiny.yaml", "--steps", "6", "--warm-up", "1", "--repeats", "1", "--clips", "40"]


@pytest.mark.soak
def test_a_report_again_says_the_same_and_trains_nothing(tmp_path: Path) -> None:
    def reported(*words: str) -> str:
        command = [sys.executable, "benchmarks/mixture.py", str(tmp_path / "out"), *WORDS, *words]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
        return ended.stdout

    first, again = reported(), reported("--report")
    assert "tokens/s, real run" in again
    assert first.endswith(again)


def test_too_few_clips_for_a_bucket_are_reported_in_one_line(forks: Forks, tmp_path: Path) -> None:
    reported = tmp_path / "reported.txt"
    words = ["benchmarks/mixture.py", str(tmp_path / "out"), "--clips", "3"]
    script = "sys.path.insert(0, 'benchmarks'); runpy.run_path(sys.argv[0], run_name='__main__')"
    ended = forks.start(["-c", f"import runpy, sys; sys.argv = {words}; {script}"], reported=reported)
    assert ended.codes() == [2], reported.read_text()
    line = reported.read_text()
    assert line.startswith("error: level-")
    assert "fewer than a micro-batch of" in line
    assert len(line.splitlines()) == 1


def test_as_many_clips_as_are_made_unasked_fill_a_micro_batch_of_each_bucket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    made = importlib.import_module("make_latents")
    table = made.XL_2["stages"][0]["data"]["buckets"]["table"]
    sizes = [size for lengths in table.values() for _, size in lengths.values()]

    assert made.CLIPS // len(sizes) >= max(sizes)


def test_a_save_costs_what_the_updates_after_it_took_beyond_their_prediction(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    mixture = importlib.import_module("mixture")
    # Updates 1 to 6, saved after 4. Those before the save take 2 s each as predicted, those after 2 s more.
    ends_seconds = [2.0, 4.0, 6.0, 8.0, 12.0, 16.0]
    lines = [{"step": step, "time": end} for step, end in enumerate(ends_seconds, 1)]
    files = {"metrics.jsonl": lines, "events.jsonl": [{"event": "save", "step": 4}]}
    monkeypatch.setattr(mixture.metrics, "read_metrics", lambda path: files[path.name])
    monkeypatch.setattr(mixture, "predicted", lambda *_: 2.0)
    ran = mixture.Ran(run=tmp_path, ranks=2, stage=None, warm_up=1, cache=tmp_path)

    assert ran.save_costs(None) == 4.0


def test_a_run_cut_off_in_its_warm_up_is_named_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    mixture = importlib.import_module("mixture")
    ran = mixture.Ran(run=tmp_path / "cut", ranks=4, stage=None, warm_up=5, cache=tmp_path)
    monkeypatch.setattr(mixture.metrics, "read_metrics", lambda _: [{"step": 1, "time": 2.0}] * 5)

    with pytest.raises(SystemExit, match=r"cut has 5 updates, of which 5 warm up: train it without --report"):
        mixture.report(ran, None, "a GPU")


def test_float8_lies_beside_the_models_own_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    named = importlib.import_module("mixture").named

    assert [named("alone", one) for one in ("float32", "bfloat16", "float8")] == [
        "alone",
        "alone",
        "alone-float8",
    ]
    assert named("mixture_h200", "float8", "_") == "mixture_h200_float8"


def test_the_mixtures_recipe_can_be_in_float8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    source = tmp_path / "recipe.json"
    made = json.loads(json.dumps(importlib.import_module("make_latents").XL_2)) | {"output": str(tmp_path)}
    made["stages"][0]["data"] |= {"latents": str(tmp_path), "views": 1}
    source.write_text(json.dumps(made))

    recipe = recipes.load(source, ["precision=float8", "blocks=fast"])

    assert (recipe.precision, recipe.blocks, recipe.dtype) == ("float8", "fast", torch.bfloat16)


def test_made_up_clips_are_not_written_over_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    write_clips = importlib.import_module("make_latents").write_clips
    with pytest.raises(InputError, match="is there already; name another OUT, or delete it"):
        write_clips(tmp_path, [], 0)
    assert list(tmp_path.iterdir()) == []
