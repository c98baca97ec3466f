"""Monitoring of a run: clocks, slow ranks, rates, claims, each alone."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.own_resources import open_files
from tests.trainer.shards_for_tests import events
from trainer.cli import exit_codes
from trainer.distributed.mesh import ALONE
from trainer.health import clock_steps
from trainer.health.clock_steps import ClockWatch
from trainer.health.watch import end_hung_run, heartbeat, monitor, stop_requests, throughput
from trainer.health.watch.spec import WatchSpec
from trainer.health.watch.step_monitor import StepWatch
from trainer.health.watch.throughput import OwnSeconds, SlowRanks, Throughput
from trainer.run_folder import jsonl, process_records, process_table
from vidcurate.errors import StorageError


def test_a_watch_that_cannot_begin_leaves_no_file_open(tmp_path: Path) -> None:
    (tmp_path / process_records.PROCESSES).write_text("a file where the folder should be")
    before = open_files()
    with (
        pytest.raises(StorageError),
        stop_requests.listening() as stop,
        monitor.watching(WatchSpec(), tmp_path, ALONE, stop),
    ):
        pass
    assert open_files() <= before


def test_sigusr2_writes_the_stacks_and_ends_nothing(tmp_path: Path) -> None:
    with stop_requests.listening() as stop, monitor.watching(WatchSpec(), tmp_path, ALONE, stop):
        (record,) = process_records.read_records(tmp_path)
        os.kill(os.getpid(), signal.SIGUSR2)
        text = Path(f"/proc/self/fd/{record.stack_descriptor}").read_text()
    assert "test_sigusr2_writes_the_stacks_and_ends_nothing" in text


def test_a_falling_rate_is_one_line_of_the_console(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = StepWatch(WatchSpec(), tmp_path, ALONE, stop_requests.Stop())
    for step in range(30):
        watch.add(step, own((0.0, 1.0, 1.0)), ["144p-51f"], 4000.0 if step < 20 else 1600.0)
    line = "throughput is 60 % below its median: 1,600 tokens/s for 4,000 (1x144p-51f)\n"
    assert capsys.readouterr().err == f"step 22: {line}"
    assert [event["share"] for event in events(tmp_path, "throughput_drop")] == [0.6]


# ── clocks ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("real", "seconds"),
    [
        ([100.0, 101.0, 102.0, 103.0], []),
        ([100.0, 101.0, 90.5, 91.5], [-11.5]),
        ([100.0, 101.0, 104.0, 105.0], [2.0]),
        ([100.0, 101.0005, 102.001, 103.0015], []),  # slewed by 500 ppm, as a daemon may
    ],
)
def test_a_clock_that_is_set_is_reported_and_one_that_is_slewed_is_not(
    real: list[float], seconds: list[float]
) -> None:
    clocks = iter(zip(real, [5.0, 6.0, 7.0, 8.0], strict=True))
    watched = ClockWatch(0.1, lambda: next(clocks))

    found = [step for _ in range(3) if (step := watched.look())]

    assert [step.seconds for step in found] == pytest.approx(seconds)
    for step in found:
        words = step.to_text("node3")
        assert words.startswith(f"node3: the clock was set {'back' if step.seconds < 0 else 'forward'} by ")
        assert "makestep" in words


def test_the_two_clocks_of_this_machine_agree() -> None:
    watched = ClockWatch(0.05)
    time.sleep(0.1)
    assert watched.look() is None
    before, (real, _), after = time.time(), clock_steps.read_clocks(), time.time()
    assert before <= real <= after


# ── pace ────────────────────────────────────────────────────────────────────────────────────────────────────


def own(*values: tuple[float, float, float]) -> list[OwnSeconds]:
    return [OwnSeconds(*value) for value in values]


def test_a_rank_that_waits_long_for_its_data_is_slow_by_data() -> None:
    ranks = SlowRanks(1.5, 3)
    step = own((0.0, 1.0, 5.0), (0.9, 1.0, 5.0), (0.0, 1.0, 5.0))
    assert [ranks.add(step) for _ in range(2)] == [[], []]
    (slow,) = ranks.add(step)
    assert (slow.rank, slow.by, slow.factor, slow.steps) == (1, "data", 1.9, 3)
    assert [ranks.add(step) for _ in range(6)] == [[]] * 6  # reported once

    for _ in range(3):  # it got better
        ranks.add(own((0.0, 1.0, 5.0), (0.0, 1.0, 5.0), (0.0, 1.0, 5.0)))
    assert [len(ranks.add(step)) for _ in range(3)] == [0, 0, 1]


def test_a_rank_that_was_given_more_work_is_not_slow() -> None:
    ranks = SlowRanks(1.5, 1)
    assert ranks.add(own((0.0, 2.0, 10.0), (0.0, 1.0, 5.0), (0.0, 0.0, 0.0))) == []
    (slow,) = ranks.add(own((0.0, 2.0, 5.0), (0.0, 1.0, 5.0), (0.0, 0.0, 0.0)))
    assert (slow.rank, slow.by) == (0, "compute")


def test_milliseconds_and_a_rank_alone_are_not_reported() -> None:
    assert SlowRanks(1.5, 1).add(own((0.0, 0.04, 1.0), (0.0, 0.01, 1.0))) == []
    assert SlowRanks(1.5, 1).add(own((9.0, 9.0, 1.0))) == []


def test_the_figures_of_the_ranks_are_least_median_and_most() -> None:
    found = throughput.rank_seconds(own((0.1, 1.0, 1.0), (0.3, 2.0, 1.0), (0.2, 3.0, 1.0)))
    assert found == {"data": [0.1, 0.2, 0.3], "compute": [1.0, 2.0, 3.0], "slowest": 2}


def test_a_rate_is_compared_with_that_of_the_same_buckets_only() -> None:
    rate = Throughput(0.3)
    images, videos = ["256px"] * 4, ["144p-51f"] * 2
    for _ in range(20):
        assert rate.add(images, 1000.0) is None
        assert rate.add(videos, 400.0) is None  # slower, and always so

    found = [drop for _ in range(6) if (drop := rate.add(videos, 200.0))]

    (drop,) = found  # reported once
    assert (drop.mix, drop.usual, drop.tokens_per_second, drop.share) == ("2x144p-51f", 400.0, 200.0, 0.5)
    assert rate.add(images, 1000.0) is None
    for _ in range(5):
        rate.add(videos, 400.0)
    assert [bool(rate.add(videos, 200.0)) for _ in range(4)].count(True) == 1  # and again, when it was over


@pytest.mark.parametrize(
    ("stopped_by", "code"),
    [
        (None, exit_codes.DONE),
        ("SIGTERM", exit_codes.REQUEUE),
        ("slow_rank", exit_codes.HALT),
    ],
)
def test_the_policy_decides_the_exit_code(stopped_by: str | None, code: int) -> None:
    spec = WatchSpec(on_slow_rank="stop")
    assert monitor.exit_code(spec, stopped_by) == code


def test_a_signal_counts_before_what_a_policy_asks_for() -> None:
    """The launch was asked to end: its ranks must leave with 75, not with 76."""
    with stop_requests.listening() as stop:
        stop.name = "slow_rank"
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.name == "SIGTERM"
        os.kill(os.getpid(), signal.SIGUSR1)
        assert stop.name == "SIGTERM"
    assert stop_requests.deciding_name(["", "slow_rank", "SIGUSR1"]) == "SIGUSR1"
    assert stop_requests.deciding_name(["", "slow_rank"]) == "slow_rank"


# ── meeting over the run's folder ───────────────────────────────────────────────────────────────────────────


def claim(run: Path, rank: int, start_id: str = "first") -> end_hung_run.Claim | None:
    return end_hung_run.claim(
        run, start_id, kind="stall", step=12, phase="data", rank=rank, host="n1", seconds=600.0
    )


def test_one_claims_a_stall_and_the_others_join_it(tmp_path: Path) -> None:
    first = claim(tmp_path, 3)
    assert first is not None
    assert claim(tmp_path, 5) is None
    assert end_hung_run.claimed(tmp_path, "first") == first
    assert first.folder == "stall-step-00000012"
    left = list((tmp_path / "stacks").iterdir())
    assert [path.name for path in left] == ["now-first.json"]


def test_a_claim_of_an_earlier_start_counts_no_more_even_where_it_comes_late(tmp_path: Path) -> None:
    """A killed rank's monitor process claimed it lost after the restart, and the restarted run was ended."""
    late = claim(tmp_path, 0, "first")
    assert late is not None
    (tmp_path / "stacks" / late.folder).mkdir()
    assert end_hung_run.claimed(tmp_path, "second") is None

    mine = claim(tmp_path, 0, "second")  # the late one does not keep the second start from its own
    assert mine is not None
    assert mine.folder == "stall-step-00000012-2"  # the earlier stacks stay
    assert end_hung_run.claimed(tmp_path, "second") == mine

    end_hung_run.forget(tmp_path)
    assert not list((tmp_path / "stacks").glob("now*"))


@pytest.mark.parametrize("folder", ["/etc", "../../elsewhere", "..", "", 7, None, ["a"], "brackets"])
def test_a_claim_whose_folder_is_not_one_of_stacks_is_none(tmp_path: Path, folder: object) -> None:
    mine = claim(tmp_path, 0)
    assert mine is not None
    text = json.dumps(dataclasses.asdict(mine) | {"folder": folder})
    path = tmp_path / "stacks" / "now-first.json"
    path.write_text("[" * 100_000 if folder == "brackets" else text)
    assert end_hung_run.claimed(tmp_path, "first") is None


@pytest.mark.timeout(60)
def test_a_pipe_in_place_of_a_claim_is_no_claim(tmp_path: Path) -> None:
    (tmp_path / "stacks").mkdir()
    os.mkfifo(tmp_path / "stacks" / "now-first.json")
    assert end_hung_run.claimed(tmp_path, "first") is None


def test_ranks_of_a_host_that_is_silent_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(end_hung_run, "ANSWER_SECONDS", 0.3)
    program = "import time; print(1, flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    here = process_records.record_of_this_process(tmp_path, rank=0, local_rank=0, world_size=2)
    mine = dataclasses.replace(here, pid=child.pid, start_time=process_table.start_time(child.pid) or 0)
    for record in (mine, dataclasses.replace(mine, rank=1, host="n9")):
        process_records.write_record(tmp_path, record)
    now = claim(tmp_path, 0)
    assert now is not None

    seen = heartbeat.RankState(step=12, phase="update", since=0.0, phase_since=0.0, limit_seconds=1.0)
    end_hung_run.take_part(
        tmp_path, now, mine, lambda: seen, is_first=True, policy="restart", apart_seconds=0.5
    )

    child.kill()
    child.wait()
    child.stdout.close()
    (event,) = events(tmp_path, "stall")
    assert (event["rank"], event["host"], event["silent_ranks"]) == (1, "n9", [1])
    assert event["why"] == "gave no stack (nothing came from its host)"
    text = (tmp_path / event["stacks"] / "stacks.txt").read_text()
    assert "1 of 1 did not move" in text


def test_events_of_several_processes_are_whole_lines(tmp_path: Path) -> None:
    children = []
    for number in range(4):
        pid = os.fork()
        if pid == 0:
            for step in range(50):
                jsonl.record_event(tmp_path, "clock_step", step, host=f"n{number}", text="x" * 500)
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    lines = (tmp_path / jsonl.EVENTS).read_text().splitlines()
    assert len([json.loads(line) for line in lines]) == 200
