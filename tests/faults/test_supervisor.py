"""What a launch does when its ranks end: real agents and processes, whose program ends as each test asks."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ranks_that_end import launch, log_file
from tests.substitute_ranks import all_end
from trainer.cluster.launch import start_on_hosts, supervisor
from trainer.run_folder import jsonl, metrics

pytestmark = pytest.mark.usefixtures("forked_agents")


def test_a_rank_that_hung_is_restarted_and_the_line_says_from_where_to_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hung = {"0": {"step": 7, "after": 600}, "1": {"exit": 76, "when": ["process-0-0"]}}

    assert launch(tmp_path, [hung, {"0": {"step": 9}}]) == 0

    (line,) = log_file(tmp_path)
    assert line["event"] == "restart"
    assert line["codes"] == {"0": -signal.SIGTERM, "1": 76}
    assert (line["rank"], line["host"]) == (1, "this host")
    assert line["last_lines"] == ["attempt 0 rank 1 says something last"]
    assert line["reason"] == "this host rank 1 ended with 76: attempt 0 rank 1 says something last"
    assert (line["step_before"], line["step_after"], line["restart"]) == (0, 7, 1)
    assert abs(line["time"] - time.time()) < 60
    reported = capsys.readouterr().err
    assert "restart 1 (1 of 3 without progress) in 0.1 s; the run was at step 7" in reported


EARLIER = {"when": ["process-0-1"]}  # ends when rank 1 has come up, or that had no time for a word
LATER = {"outlives": 0, "after": 0.3}  # than rank 0, whose end is reported by then


@pytest.mark.parametrize(
    ("codes", "code"),
    [((1, 78), 78), ((2, 1), 2), ((75, 75), 75)],
    ids=["the guard stopped it", "a wrong request", "saved after a signal"],
)
def test_some_exit_codes_are_never_tried_again(tmp_path: Path, codes: tuple[int, int], code: int) -> None:
    up = [f"process-0-{rank}" for rank in range(2)]
    ends = {
        str(rank): {"exit": number, "after": 0.3 * (number == 1), "when": up}
        for rank, number in enumerate(codes)
    }

    assert launch(tmp_path, [ends, {}]) == code

    assert not log_file(tmp_path)


@pytest.mark.parametrize(
    ("first", "then", "code", "rank"),
    [
        (76, 78, 78, None),
        (76, 77, 77, 1),
        (1, 76, 0, 0),
        # Which code says more of every two is a test of exit_codes, without processes.
        pytest.param(2, 77, 77, 1, marks=pytest.mark.soak),
        pytest.param(77, 78, 78, None, marks=pytest.mark.soak),
        pytest.param(76, 75, 0, 0, marks=pytest.mark.soak),
    ],
)
def test_of_ranks_that_end_at_about_the_same_time_the_code_that_says_most_counts(
    tmp_path: Path, first: int, then: int, code: int, rank: int | None
) -> None:
    """`rank` is the one the event names; None where the launch just ends."""
    ends: dict[str, dict[str, Any]] = {"0": {"exit": first, **EARLIER}, "1": {"exit": then, **LATER}}

    assert launch(tmp_path, [ends, {}]) == code

    lines = log_file(tmp_path)
    assert [line["event"] for line in lines] == {0: ["restart"], 77: ["excluded", "gave_up"], 78: []}[code]
    if rank is not None:
        assert lines[-1]["codes"] == {"0": first, "1": then}
        assert (lines[-1]["rank"], lines[-1]["last_lines"]) == (
            rank,
            [f"attempt 0 rank {rank} says something last"],
        )


@pytest.mark.parametrize(
    ("first", "then", "code"),
    [
        (76, 77, 77),
        (-9, 76, 1),
        pytest.param(76, 1, 1, marks=pytest.mark.soak),
        pytest.param(76, 75, 76, marks=pytest.mark.soak),
    ],
)
def test_ranks_that_only_check_end_with_the_code_that_says_most(
    tmp_path: Path, first: int, then: int, code: int
) -> None:
    ends: dict[str, dict[str, Any]] = {"0": {"exit": first, **EARLIER}, "1": {"exit": then, **LATER}}

    assert launch(tmp_path, [ends], restarts=None) == code


def test_a_launch_gives_up_after_restarts_without_progress_and_progress_begins_the_count_anew(
    tmp_path: Path,
) -> None:
    steps = [{"0": {"step": step, "exit": 1}} for step in (3, 5, 4)]

    assert launch(tmp_path, steps, ranks=1, restarts=1) == 1

    *restarts, end = log_file(tmp_path)
    counted = [(line["step_before"], line["step_after"], line["without_progress"]) for line in restarts]
    assert counted == [(0, 3, 1), (3, 5, 1)]
    assert (end["event"], end["step_after"], end["exit_code"], end["codes"]) == ("gave_up", 4, 1, {"0": 1})
    assert end["reason"] == "1 restart brought no progress beyond step 5."


def test_ranks_whose_heartbeats_stand_still_are_ended_strictly_and_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_on_hosts, "SETTLE_SECONDS", 2.0)
    both = {"when": ["process-0-0", "process-0-1"]}
    stuck = {"0": {"beats": "polite", **both}, "1": {"beats": "deaf", **both}}

    assert launch(tmp_path, [stuck, {}], stall_seconds=1.5) == 0

    (line,) = log_file(tmp_path)
    assert line["codes"] == {"0": -signal.SIGTERM, "1": -signal.SIGKILL}
    assert line["reason"].startswith("no rank has moved for ")
    assert "(rank 0 step 2 (step), rank 1 step 2 (step))." in line["reason"]
    assert line["rank"] is None


def test_an_agent_that_dies_takes_its_ranks_with_it_and_the_run_resumes(tmp_path: Path) -> None:
    dies = {"0": {"kills_agent": True, "when": ["process-0-1"]}, "1": {"after": 600}}

    assert launch(tmp_path, [dies, {}]) == 0

    assert all_end([int((tmp_path / "process-0-1").read_text())])

    (line,) = log_file(tmp_path)
    assert line["reason"].startswith("this host: the connection ended (")
    assert list(line["lost"]) == ["this host"]


def test_a_node_that_is_bad_and_the_only_one_ends_the_launch(tmp_path: Path) -> None:
    assert launch(tmp_path, [{"0": {"exit": 77}}], ranks=1) == 77

    excluded, end = log_file(tmp_path)
    assert (excluded["event"], excluded["host"]) == ("excluded", "this host")
    assert excluded["reason"] == "a rank of it ended with 77"
    assert (end["event"], end["reason"]) == ("gave_up", "0 hosts left, 1 needed.")


def test_a_bad_node_is_left_out_though_its_rank_was_killed_before_it_could_say_77(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LAST_WORDS_SECONDS", "SETTLE_SECONDS"):
        monkeypatch.setattr(start_on_hosts, name, 0.2)
    verdict = {"cause": "hardware", "reason": "it computed another gradient", "ranks": [1]}
    drain = {"event": "guard", "step": 3, "time": time.time(), "action": "drain", "verdict": verdict}
    slow = {"writes": {"events.jsonl": json.dumps(drain) + "\n"}, "beats": "deaf"}

    ends = {"exit": 76, "when": ["heartbeats/rank-00001.json"]}
    assert launch(tmp_path, [{"0": ends, "1": slow}]) == 77

    _, excluded, end = metrics.read_metrics(tmp_path / jsonl.EVENTS)
    assert (excluded["event"], excluded["host"]) == ("excluded", "this host")
    assert excluded["reason"] == "rank 1: it computed another gradient"
    assert end["codes"] == {"0": 76, "1": -signal.SIGKILL}


def test_ranks_that_only_check_run_once_whatever_they_say(tmp_path: Path) -> None:
    assert launch(tmp_path, [{"0": {"exit": 77}}], ranks=1, restarts=None) == 77

    assert not log_file(tmp_path)


def when(number: signal.Signals, *conditions: Callable[[], object]) -> threading.Thread:
    """Send this process a signal as each of the conditions, in turn, has come to hold."""

    def wait() -> None:
        until = time.monotonic() + 300
        for condition in conditions:
            while not condition() and time.monotonic() < until:
                time.sleep(0.02)
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                return  # the launch has ended: nobody takes the signal, and it would end the tests
            os.kill(os.getpid(), number)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def wait_of(run: Path, ranks: int) -> bool:
    return all((run / f"rank-{rank}-waits").exists() for rank in range(ranks))


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGTERM, "SIGTERM: no rank runs; the same command resumes from the newest checkpoint"),
        (signal.SIGINT, "\ninterrupted; the same command continues from the newest checkpoint\n"),
    ],
)
def test_a_signal_while_nothing_runs_ends_the_launch_as_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: signal.Signals, said: str
) -> None:
    signalled = when(number, (tmp_path / supervisor.LOG_FILE).exists)

    assert launch(tmp_path, [{"0": {"exit": 1}}], ranks=1, backoff_seconds=60.0) == 75

    signalled.join()
    assert said in capsys.readouterr().err


def test_the_save_signal_reaches_every_rank_as_itself(tmp_path: Path) -> None:
    waiting = {str(rank): {"leaves": 75} for rank in range(2)}
    signalled = when(signal.SIGUSR1, lambda: wait_of(tmp_path, 2))

    assert launch(tmp_path, [waiting]) == 75  # SIGUSR1 is all that these ranks listen to

    signalled.join()
    assert not log_file(tmp_path)


def test_a_failure_after_a_signal_is_not_tried_again(tmp_path: Path) -> None:
    waiting = {"0": {"leaves": 75}, "1": {"leaves": 1}}
    signalled = when(signal.SIGUSR1, lambda: wait_of(tmp_path, 2))

    assert launch(tmp_path, [waiting]) == 1

    signalled.join()
    assert not log_file(tmp_path)


@pytest.mark.parametrize(
    ("times", "code"), [(2, 128 + signal.SIGINT), (1, 1)], ids=["a second one", "too slow"]
)
def test_ranks_that_do_not_leave_are_killed(tmp_path: Path, times: int, code: int) -> None:
    deaf = {"0": {"leaves": 75, "beats": "deaf"}}
    beats = (tmp_path / "heartbeats" / "rank-00000.json").exists
    heard = (tmp_path / "rank-0-heard").exists  # or the second could come before the first is looked at
    signalled = when(signal.SIGINT, *[beats, heard][:times])
    began = time.monotonic()

    assert launch(tmp_path, [deaf], ranks=1, grace_seconds=300.0 if times == 2 else 1.0) == code

    signalled.join()
    assert time.monotonic() - began < 200  # neither the grace nor the rank's own time is waited for
    assert not log_file(tmp_path)
