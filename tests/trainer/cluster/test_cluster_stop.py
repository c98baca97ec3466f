"""`cluster stop` ends exactly the processes of a run: real ones, with their records, on this machine."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.substitute_ranks import (
    DEAF,
    DEAF_TO_TERM,
    LEAVES_A_CHILD,
    LIMIT_SECONDS,
    RANK,
    ROOT,
    SAVES,
    WAITS,
    Ranks,
    all_end,
    is_alive,
    ranks_of,
)
from tests.trainer.smi_for_tests import process, put, put_smi, xml
from trainer.__main__ import main
from trainer.cluster.node import processes as node_processes
from trainer.run_folder import process_records

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    with ranks_of(tmp_path / "run") as made:
        yield made


def stop(ranks: Ranks, *words: str) -> int:
    quick = ["--grace-seconds", "1", "--interrupt-seconds", "1"]
    return main(["cluster", "stop", "local", "--run", str(ranks.run), *quick, *words])


@pytest.mark.parametrize(
    ("body", "seconds", "by"), [(DEAF_TO_TERM, "60", "INT"), (DEAF, "0.5", "KILL")], ids=["term", "both"]
)
def test_a_rank_that_ignores_term_ends_by_int_and_one_that_ignores_both_is_killed(
    ranks: Ranks, capsys: Capture, body: str, seconds: str, by: str
) -> None:
    (pid,) = ranks.start(body)

    code = stop(ranks, "--json", "--grace-seconds", "0.5", "--interrupt-seconds", seconds)

    answer = json.loads(capsys.readouterr().out)["nodes"][0]
    assert code == 0
    assert {one["pid"]: one["by"] for one in answer["ended"]} == {pid: by}
    assert answer["left"] == []
    assert not is_alive(pid)


def test_what_a_kill_costs_is_said(ranks: Ranks, capsys: Capture) -> None:
    (pid,) = ranks.start(DEAF)

    assert stop(ranks) == 0

    out, reported = capsys.readouterr()
    found = re.search(
        rf"rank 0, pid {pid} of \w+: ended after KILL, (\d+\.\d) s; what it had not saved is lost", out
    )
    assert found
    assert float(found[1]) >= 2.0  # TERM and INT had a second each
    assert [line.split()[1] for line in reported.splitlines()] == ["TERM", "INT", "KILL"]


def test_a_rank_has_its_time_to_save_before_it_is_pressed(ranks: Ranks, capsys: Capture) -> None:
    slow = SAVES.replace("time.sleep(0.3)", "time.sleep(2.5)")
    ranks.start(slow)

    assert stop(ranks, "--grace-seconds", "30") == 0

    assert ranks.started[0].wait() == 75
    assert "newest checkpoint is step-00000007" in capsys.readouterr().out


def test_a_rank_that_was_stopped_by_hand_is_woken_and_saves(ranks: Ranks) -> None:
    (pid,) = ranks.start(SAVES)
    os.kill(pid, signal.SIGSTOP)

    assert stop(ranks, "--grace-seconds", "30") == 0

    assert ranks.started[0].wait() == 75


def test_a_process_that_got_the_id_of_a_rank_is_left_alone(ranks: Ranks, capsys: Capture) -> None:
    (pid,) = ranks.start(WAITS)
    record = process_records.read_records(ranks.run)[0]
    process_records.write_record(ranks.run, replace(record, start_time=record.start_time - 1))

    assert stop(ranks) == 0

    assert is_alive(pid)
    out = capsys.readouterr().out
    assert re.search(rf"rank 0, pid {pid}: left alone, the id is another process's now: \w+: ", out)


def test_a_rank_of_an_earlier_start_of_the_machine_is_not_looked_for(ranks: Ranks, capsys: Capture) -> None:
    (pid,) = ranks.start(WAITS)
    process_records.write_record(
        ranks.run, replace(process_records.read_records(ranks.run)[0], boot_id="of another start")
    )

    assert stop(ranks) == 0

    assert is_alive(pid)
    assert "had ended before" in capsys.readouterr().out


def test_a_child_that_outlives_its_rank_is_ended_too(ranks: Ranks, capsys: Capture) -> None:
    (pid,) = ranks.start(LEAVES_A_CHILD)
    child = int((ranks.run / "child").read_text())

    assert stop(ranks, "--json", "--grace-seconds", "60") == 0

    ended = {
        one["pid"]: (one["what"], one["by"])
        for one in json.loads(capsys.readouterr().out)["nodes"][0]["ended"]
    }
    assert ended == {pid: ("rank 0", "TERM"), child: ("worker of rank 0", "KILL")}
    assert all_end([child])


def test_a_dry_run_says_what_it_would_end_and_touches_nothing(ranks: Ranks, capsys: Capture) -> None:
    (pid,) = ranks.start(LEAVES_A_CHILD)

    assert stop(ranks, "--dry-run") == 0

    out = capsys.readouterr().out
    assert re.search(rf"rank 0, pid {pid} of \w+, would be ended", out)
    assert "worker of rank 0, pid " in out
    assert out.endswith("2 processes would be ended; nothing was done\n")
    time.sleep(0.2)
    assert is_alive(pid)


# What torchrun does: it begins again whatever its rank ended with; what it begins has no record yet. This one
# begins while its rank leaves, and once more when it hears TERM: at no moment can a stop be too early or too
# late for it.
TORCHRUN = """
import signal, subprocess, sys, time
from pathlib import Path

def begin():
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", *sys.argv[2:]])

def begin_and_end(*_):
    begin()
    sys.exit(1)

signal.signal(signal.SIGTERM, begin_and_end)
rank = subprocess.Popen([sys.executable, "-c", *sys.argv[1:]])
leaves, again = Path(sys.argv[2], "leaves"), Path(sys.argv[2], "again")
while not leaves.exists():
    time.sleep(0.01)
begin()
again.touch()
rank.wait()
time.sleep(600)
"""
LEAVES_WHEN_ANOTHER_HAS_BEGUN = (
    """
def leave(*_):
    (run / "leaves").touch()
    while not (run / "again").exists():
        time.sleep(0.01)
    sys.exit(1)

signal.signal(signal.SIGTERM, leave)
"""
    + WAITS
)


def test_a_supervisor_that_begins_again_is_ended_with_what_it_began(
    ranks: Ranks, tmp_path: Path, capsys: Capture
) -> None:
    program = tmp_path / "torchrun"
    program.write_text(TORCHRUN)
    rank = RANK.format(body=LEAVES_WHEN_ANOTHER_HAS_BEGUN)
    words = [sys.executable, str(program), rank, str(ranks.run), "0", "1"]
    supervisor = subprocess.Popen(words, cwd=ROOT)
    ranks.started.append(supervisor)
    until = time.monotonic() + LIMIT_SECONDS
    while not process_records.read_records(ranks.run):
        assert time.monotonic() < until
        time.sleep(0.02)

    assert stop(ranks, "--grace-seconds", "30") == 0

    assert supervisor.wait() == -signal.SIGKILL
    out = capsys.readouterr().out
    assert "starter of the ranks, pid " in out
    assert out.count("started by a starter, pid ") == 1
    here = [process for process in node_processes.everything().values() if str(ranks.run) in process.command]
    assert [process for process in here if process.pid != os.getpid()] == []


def test_a_rank_on_a_host_that_was_not_asked_is_left_and_said(ranks: Ranks, capsys: Capture) -> None:
    ranks.start(WAITS, WAITS)
    record = process_records.read_records(ranks.run)[1]
    process_records.write_record(ranks.run, replace(record, host="node7"))

    assert stop(ranks, "--grace-seconds", "60") == 1

    out = capsys.readouterr().out
    assert "rank 1 is recorded on node7, from which no answer came; name that host in NODES" in out
    assert is_alive(record.pid)


def test_who_still_holds_the_gpu_of_the_run_is_named(
    ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (pid,) = ranks.start(WAITS)
    stranger = os.getpid()
    # The driver shows both while the rank lives; the GPU beside it is nobody's business.
    path = put_smi(
        tmp_path / "bin", {"processes": process(pid) + process(stranger)}, {"processes": process(1)}
    )
    (path / "after.xml").write_text(xml({"processes": process(stranger)}, {"processes": process(1)}))
    # Dead, and not yet waited for, it holds nothing any more.
    lives = f"grep -qs '^State:.[^ZX]' /proc/{pid}/status"
    put(path, "nvidia-smi", f"{lives} && exec cat {path}/smi.xml; exec cat {path}/after.xml")
    monkeypatch.setenv("PATH", f"{path}:{os.environ['PATH']}")

    assert stop(ranks, "--grace-seconds", "60") == 0

    out = capsys.readouterr().out
    assert f"! GPU 0: 1.0 GiB are held by pid {stranger} (not this run): " in out
    assert "GPU 1" not in out


def test_a_folder_that_is_no_run_is_refused_by_the_node(tmp_path: Path, capsys: Capture) -> None:
    assert main(["cluster", "stop", "local", "--run", str(tmp_path / "nowhere")]) == 1
    assert "no such folder on this node" in " ".join(capsys.readouterr().out.split())
