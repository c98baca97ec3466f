"""A training outlives its console: it saves when its terminal closes, and continues without its pipe."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.trainer.shards_for_tests import command_words, events, make_shards, numbers
from trainer.run_folder.checkpoint import checkpoint

LONG = ("stages.0.steps=100000", "stages.0.log_every=1", "loader.num_workers=1", "sample=null")
LIMIT_SECONDS = 120.0


def wait_for_steps(process: subprocess.Popen[bytes], run: Path, steps: int) -> None:
    until = time.monotonic() + LIMIT_SECONDS
    while not (run / "metrics.jsonl").exists() or len(numbers(run)) < steps:
        assert time.monotonic() < until
        assert process.poll() is None, "the training ended"
        time.sleep(0.02)


@pytest.mark.parametrize("console", ["terminal", "pipe"])
def test_a_training_whose_console_closes_continues_and_saves_on_the_signal(
    tmp_path: Path, console: str
) -> None:
    run = tmp_path / "run"
    reading, writing = os.openpty() if console == "terminal" else os.pipe()
    words = command_words(make_shards(tmp_path / "shards"), run, *LONG)
    process = subprocess.Popen(
        [sys.executable, "-m", "trainer", *words],
        stdout=writing,
        stderr=writing,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # the tests may run under nohup
    )
    try:
        os.close(writing)
        wait_for_steps(process, run, 2)
        os.close(reading)
        wait_for_steps(process, run, len(numbers(run)) + 5)  # its lines are written nowhere now
        os.killpg(process.pid, signal.SIGHUP)  # to its workers, too, as a terminal does

        assert process.wait(LIMIT_SECONDS) == 75
    finally:
        process.kill()
        process.wait()
    assert [stop["signal"] for stop in events(run, "stop")] == ["SIGHUP"]
    assert events(run, "failed") == []
    assert checkpoint.load(run).state["step"] == len(numbers(run))


def test_a_training_that_ignores_its_terminals_end_as_nohup_has_it_continues(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = command_words(make_shards(tmp_path / "shards"), run, *LONG)
    process = subprocess.Popen(
        ["nohup", sys.executable, "-m", "trainer", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for_steps(process, run, 2)
        process.send_signal(signal.SIGHUP)
        wait_for_steps(process, run, len(numbers(run)) + 5)
        process.send_signal(signal.SIGTERM)

        assert process.wait(LIMIT_SECONDS) == 75
    finally:
        process.kill()
        process.wait()
