"""The server beside a live training: killed, restarted, half-copied checkpoints, the right clip at each step.

Real processes: the training is one, the server another, the browser a third.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.browser import Browser
from tests.trainer.shards_for_tests import command_words, make_shards
from trainer.generation import sample_clips
from trainer.run_folder import metrics, sample_rounds

ROOT = Path(__file__).resolve().parents[2]
COPIED = "step-00009999"
SETTINGS = (
    "stages.0.steps=60",
    "stages.0.checkpoint_every=20",
    "stages.0.keep_last=50",
    "sample.every=100000",
    "sample.prompts=[a red square moves right, a blue square moves down, a green square moves up]",
    "sample.seeds=[0, 1]",
    "sample.steps=20",
    "validation.every=100000",
    "validation.clips_per_bucket=2",
)


@contextmanager
def process(folder: Path, name: str, *words: str) -> Iterator["subprocess.Popen[bytes]"]:
    """`python -m trainer WORDS` in the background, what it says in FOLDER/NAME.txt; killed at the end."""
    with (folder / f"{name}.txt").open("wb") as said:
        running = subprocess.Popen(
            [sys.executable, "-u", "-m", "trainer", *words],
            cwd=folder,
            stdout=said,
            stderr=said,
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )
        try:
            yield running
        finally:
            running.kill()
            running.wait()


def until(condition: Callable[[], object], what: str, seconds: float = 180.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.01)


def lines_of(run: Path, event: str) -> list[int]:
    lines = metrics.read_metrics(run / "serve" / "served.jsonl")
    return [line["step"] for line in lines if line["event"] == event]


def copy_by_file(source: Path, target: Path, count: int) -> None:
    """Copy as rsync does: manifest first, no optimizer; the file number `count` is cut short."""
    files = sorted(path for path in source.rglob("*") if path.is_file() and "optimizer" not in path.parts)
    first = [path for path in files if path.parent == source]
    for number, path in enumerate([*first, *(path for path in files if path not in first)][: count + 1]):
        to = target / path.relative_to(source)
        to.parent.mkdir(parents=True, exist_ok=True)
        data = path.read_bytes()
        to.write_bytes(data[: len(data) // 2] if number == count else data)


def clips_shown(run: Path, folder: Path) -> dict[tuple[int, int, int], Path]:
    """Return (number, seed, step) → the file that Chromium plays in that cell of the gallery."""
    read = """[...document.querySelectorAll('tbody tr')].flatMap(tr =>
        [...tr.querySelectorAll('td')].map(td =>
            [tr.dataset.key, Number(td.dataset.step), td.firstChild.currentSrc]))"""
    with Browser(folder) as browser:
        browser.size(1900, 1400)
        browser.open(run / "gallery.html")
        playing = "[...document.querySelectorAll('video')]"
        browser.until(f"{playing}.length === 24 && {playing}.every(v => v.dataset.state === 'ready')")
        browser.picture(folder / "gallery.png")
        cells = browser.value(read)
        assert browser.complaints == []
    found = {}
    for key, step, url in cells:
        number, seed = key.split("|")[:2]
        found[int(number), int(seed), step] = Path(url.removeprefix("file://").partition("?")[0])
    return found


@pytest.mark.soak
def test_the_server_follows_survives_its_kill_and_shows_the_right_clip_of_each_step(tmp_path: Path) -> None:
    shards, run = make_shards(tmp_path / "shards", validation=(10, 11)), tmp_path / "run"
    first, copied = run / "step-00000020", run / COPIED
    follow = ("serve", str(run), "--poll-seconds", "0.2")

    with process(tmp_path, "training", *command_words(shards, run, *SETTINGS)) as training:
        until((first / "manifest.json").is_file, "the first checkpoint")
        training.send_signal(signal.SIGSTOP)  # resumed once the server has shown how it handles this

        copy_by_file(first, copied, count=2)  # manifest, state, and half of ema/.metadata
        with process(tmp_path, "killed", *follow) as killed:
            until(lambda: list((run / "samples").glob(".step-*.serve.partial/*.mp4")), "a clip of a round")
            killed.kill()
        whole = len(sample_rounds.rounds(run))
        left = list((run / "samples").glob(".step-*.serve.partial"))

        with process(tmp_path, "server", *follow) as server:
            until(lambda: lines_of(run, "left_alone"), "the half-copied checkpoint is left alone")
            until(lambda: sample_rounds.rounds(run), "the first round")
            copy_by_file(first, copied, count=3)  # and half of the average's tensors
            time.sleep(1.0)  # several looks
            assert 9999 not in lines_of(run, "served")
            copy_by_file(first, copied, 100)
            until(lambda: 9999 in lines_of(run, "served"), "the copied checkpoint is sampled")
            training.send_signal(signal.SIGCONT)
            assert training.wait(180) == 0, (tmp_path / "training.txt").read_text()
            assert server.wait(180) == 0, (tmp_path / "server.txt").read_text()

    assert left or whole, "the kill came before anything was written"
    assert not list((run / "samples").glob(".step-*"))
    served = lines_of(run, "served")
    assert sorted(served) == sorted(set(served)), "a round was made twice"
    assert {20, 40, 9999} <= set(served)
    assert [facts["step"] for facts in sample_rounds.rounds(run)] == [20, 40, 60, 9999]
    assert {line["step"] for line in metrics.read_metrics(run / "serve/validation.jsonl")} >= {20, 40}

    # The clip that the gallery plays for a step is that of this checkpoint, sampled directly.
    shown = clips_shown(run, tmp_path)
    assert len(shown) == 24
    seen: dict[bytes, int] = {}
    for step in (20, 40, 60, 9999):
        model, recipe, state = sample_clips.load_model(run / f"step-{step:08d}")
        assert recipe.sample is not None
        for entry in sample_rounds.entries(recipe.sample):
            pipeline = sample_clips.pipeline_of(
                recipe.encoding, recipe.flow_of(state["stage_number"]), recipe.dtype, model
            )
            frames = sample_clips.sample_clip(pipeline, recipe.sample, entry)
            path = tmp_path / "direct" / f"{step}-{entry.file}"
            sample_clips.write_clip(path, frames, recipe.sample.fps)
            size = recipe.sample.model_dump()
            playing = shown[entry.number, entry.seed, step]
            assert (sample_clips.read_clip(path, size) == sample_clips.read_clip(playing, size)).all(), (
                step,
                entry,
            )
            seen[path.read_bytes()] = step
    assert len(seen) == 18  # every step has its own clips, but the copied one those of step 20

    # Nothing is made again, and a checkpoint that goes takes nothing with it.
    shutil.rmtree(copied)
    with process(tmp_path, "again", *follow, "--once") as again:
        assert again.wait(180) == 0
    assert lines_of(run, "served") == served
    assert (run / "samples" / COPIED / "samples.json").is_file()
