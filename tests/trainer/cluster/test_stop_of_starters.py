"""`cluster stop` ends what would restart a rank, and no terminal above it that only has its words."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.substitute_ranks import LIMIT_SECONDS, RANK, ROOT, WAITS, Ranks, is_alive, ranks_of
from trainer.__main__ import main
from trainer.cluster.node.processes import TORCHRUN, program_of
from trainer.run_folder import process_records

Capture = pytest.CaptureFixture[str]
# Starts the rank and something of the user's beside it, as a terminal with two windows does.
SESSION = """
import subprocess, sys
from pathlib import Path
rank = subprocess.Popen([sys.executable, "-c", *sys.argv[2:6]])
beside = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
Path(sys.argv[3], "beside").write_text(str(beside.pid))
rank.wait()
beside.wait()
"""


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    with ranks_of(tmp_path / "run") as made:
        yield made


def started_by(ranks: Ranks, program: Path, *words: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start a session with a rank below; return it and the process beside the rank."""
    program.write_text(SESSION)
    rank = RANK.format(body=WAITS)
    session = subprocess.Popen(
        [sys.executable, str(program), words[0], rank, str(ranks.run), "0", "1", *words[1:]],
        cwd=ROOT,
    )
    ranks.started.append(session)
    until = time.monotonic() + LIMIT_SECONDS
    beside = ranks.run / "beside"
    while not (process_records.read_records(ranks.run) and beside.exists() and beside.read_text()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return session, int(beside.read_text())


def stop(ranks: Ranks, *words: str) -> int:
    quick = ["--grace-seconds", "30", "--interrupt-seconds", "1", "--json"]
    return main(["cluster", "stop", "local", "--run", str(ranks.run), *quick, *words])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("torchrun-jobs", ["new-session"]),
        ("tmux", ["torchrun-jobs", "--hostfile", "hosts"]),
        ("screen", ["torch/distributed/run", "-m trainer launch"]),
        ("sh", ["python -m trainer launch hosts recipe.yaml", "-m", "trainer", "launch"]),
    ],
)
def test_a_session_above_a_rank_and_what_else_it_runs_are_left_alone(
    ranks: Ranks, tmp_path: Path, capsys: Capture, name: str, words: list[str]
) -> None:
    session, beside = started_by(ranks, tmp_path / name, *words)
    (record,) = process_records.read_records(ranks.run)
    try:
        assert stop(ranks) == 0

        (answer,) = json.loads(capsys.readouterr().out)["nodes"]
        assert [one["pid"] for one in answer["ended"]] == [record.pid]
        assert (is_alive(session.pid), is_alive(beside)) == (True, True)
    finally:
        subprocess.run(["kill", "-9", str(beside)], check=True)


def test_a_dry_run_lists_torchrun_and_all_that_it_started(
    ranks: Ranks, tmp_path: Path, capsys: Capture
) -> None:
    session, beside = started_by(ranks, tmp_path / "torchrun", "x")
    (record,) = process_records.read_records(ranks.run)

    assert stop(ranks, "--dry-run") == 0
    (answer,) = json.loads(capsys.readouterr().out)["nodes"]
    would_end = {one["pid"]: one["what"] for one in answer["would_end"]}
    assert would_end == {
        record.pid: "rank 0",
        beside: "started by a starter",
        session.pid: "starter of the ranks",
    }

    assert stop(ranks) == 0
    (answer,) = json.loads(capsys.readouterr().out)["nodes"]
    assert {one["pid"] for one in answer["ended"]} == set(would_end)


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("/usr/bin/python3.11 -u -X dev -m torch.distributed.run --nproc 2", "torch.distributed.run"),
        ("python /opt/bin/torchrun --nproc 2 -m trainer r.yaml", "/opt/bin/torchrun"),
        ("/opt/bin/torchrun --nproc 2", "/opt/bin/torchrun"),
        ("python -c torchrun", "-c"),
        ("bash -c torchrun", "bash"),
        ("python -u", ""),
        ("", ""),
    ],
)
def test_the_program_of_a_command_line_is_its_own_word(line: str, program: str) -> None:
    assert program_of(line.split())[0] == program
    assert (TORCHRUN.fullmatch(program) is not None) == ("run" in program)
