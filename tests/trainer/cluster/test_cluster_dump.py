"""`cluster dump` says where all ranks and workers stand, who did not move, and who stands apart."""

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.substitute_ranks import LOOPS, WAITS, Ranks, ranks_of
from trainer.__main__ import main
from trainer.health.watch import flight_recorder, heartbeat, stacks
from trainer.health.watch.flight_recorder import Collective
from trainer.run_folder import process_records

Capture = pytest.CaptureFixture[str]

# A worker below the rank that waits in a function of its own.
WITH_A_WORKER = (
    """
CHILD = "import time\\ndef waits_for_a_file():\\n    print('up', flush=True)\\n    time.sleep(600)\\n"
CHILD += "waits_for_a_file()"
child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE)
child.stdout.readline()
(run / "child").write_text(str(child.pid))
"""
    + WAITS
)


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    with ranks_of(tmp_path / "run") as made:
        yield made


def dump(ranks: Ranks, to: Path, *words: str) -> int:
    return main(
        [
            "cluster",
            "dump",
            "local",
            "--run",
            str(ranks.run),
            "--apart-seconds",
            "0.2",
            "--to",
            str(to),
            *words,
        ]
    )


def needs_py_spy() -> None:
    if stacks.py_spy() is None:
        pytest.skip("py-spy is not installed: the other test covers the ranks without it")


def test_ranks_and_workers_are_seen_twice_and_written_down(
    ranks: Ranks, tmp_path: Path, capsys: Capture
) -> None:
    needs_py_spy()
    ranks.start(WITH_A_WORKER, WAITS)

    assert dump(ranks, tmp_path / "dump") == 0

    out = capsys.readouterr().out
    assert f"rank 0 worker {(ranks.run / 'child').read_text()}" in out
    assert "3 of 3 processes stood where they were" in out
    assert out.endswith(f"written to {tmp_path / 'dump'}\n")
    assert {path.name for path in (tmp_path / "dump").iterdir()} == {
        "first.txt",
        "second.txt",
        "dump.json",
        "summary.txt",
    }
    for name in ("first.txt", "second.txt"):
        text = (tmp_path / "dump" / name).read_text()
        assert "thread MainThread" in text
        assert "waits_for_a_file (" in text


def test_without_py_spy_the_ranks_write_their_stacks_themselves(
    ranks: Ranks, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks.start(WAITS, LOOPS, WAITS)
    # The agent needs no package: the interpreter alone, without the programs beside this one.
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "python").symlink_to(Path(sys.executable).resolve())
    monkeypatch.setattr(sys, "executable", str(plain / "python"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")

    assert dump(ranks, tmp_path / "dump", "--json") == 0

    answer = json.loads(capsys.readouterr().out)
    assert {stack["how"] for stack in answer["nodes"][0]["second"]} == {"faulthandler"}
    assert re.search(r"rank 1 stands elsewhere than the others, in turns_for_ever ", answer["odd"])
    assert [len(group["processes"]) for group in answer["groups"]] == [2, 1]


def test_the_collective_in_which_ranks_wait_is_named_by_their_heartbeats(
    ranks: Ranks, tmp_path: Path, capsys: Capture
) -> None:
    ranks.start(WAITS, WAITS)
    seen = heartbeat.RankState(step=7, phase="update", since=0.0, phase_since=0.0, limit_seconds=600.0)
    for rank, enqueued in ((0, 41), (1, 42)):
        reported = Collective(
            group="nccl group 0", ranks=(0, 1), name="all_reduce", enqueued=enqueued, started=-1, completed=41
        )
        heartbeat.write_heartbeat(ranks.run, rank, seen, flight_recorder.to_json([reported]))

    assert dump(ranks, tmp_path / "dump", "--json") == 0

    answer = json.loads(capsys.readouterr().out)
    assert re.search(r"rank 0 is not in the collective .* \(all_reduce 42 of nccl group 0\)", answer["odd"])
    assert answer["collectives"] == [
        {"collective": "all_reduce 42 of nccl group 0", "waiting": [1], "late": [0]}
    ]
    assert "rank 1: in all_reduce 42 of nccl group 0" in (tmp_path / "dump" / "summary.txt").read_text()


def test_a_rank_that_has_ended_is_the_odd_one_and_its_id_is_not_looked_at(
    ranks: Ranks, tmp_path: Path, capsys: Capture
) -> None:
    ranks.start(WAITS, WAITS)
    record = process_records.read_records(ranks.run)[1]
    # The id is that of this test by now.
    process_records.write_record(ranks.run, replace(record, pid=os.getpid()))

    assert dump(ranks, tmp_path / "dump") == 0

    out = capsys.readouterr().out
    assert re.match(r"odd: \S+ rank 1 has ended", out)
    assert "test_cluster_dump" not in out


def test_a_rank_on_a_host_that_was_not_asked_is_said(ranks: Ranks, tmp_path: Path, capsys: Capture) -> None:
    ranks.start(WAITS, WAITS)
    process_records.write_record(ranks.run, replace(process_records.read_records(ranks.run)[1], host="node7"))

    assert dump(ranks, tmp_path / "dump") == 1

    assert "rank 1 is recorded on node7, from which no answer came" in capsys.readouterr().out


def test_the_stacks_lie_in_the_run_when_no_folder_is_named(ranks: Ranks, capsys: Capture) -> None:
    ranks.start(WAITS)
    words = ["cluster", "dump", "local", "--run", str(ranks.run), "--apart-seconds", "0"]

    assert main(words) == 0

    (folder,) = (ranks.run / "stacks").iterdir()
    assert re.fullmatch(r"\d{8}-\d{6}", folder.name)
    assert "rank 0" in (folder / "summary.txt").read_text()
