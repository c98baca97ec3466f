"""A run's records are files: what a copied, linked or forged one names is not touched."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.substitute_ranks import WAITS, Ranks, is_alive, ranks_of
from trainer.__main__ import main
from trainer.run_folder import process_records, process_table

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    with ranks_of(tmp_path / "run") as made:
        yield made


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[int]:
    """A process that is no rank of any run."""
    process = subprocess.Popen(["sleep", "600"])
    yield process.pid
    process.kill()
    process.wait()


def stop(run: Path) -> int:
    return main(
        ["cluster", "stop", "local", "--run", str(run), "--grace-seconds", "1", "--interrupt-seconds", "1"]
    )


def dump(run: Path, out: Path) -> int:
    return main(["cluster", "dump", "local", "--run", str(run), "--to", str(out), "--apart-seconds", "0.1"])


def forged(run: Path, pid: int) -> process_records.ProcessRecord:
    """Return a record in which everything about the process and the folder is true."""
    mine = process_records.record_of_this_process(run, rank=0, local_rank=0, world_size=1)
    return replace(mine, pid=pid, start_time=process_table.start_time(pid) or 0)


def copied(run: Path, copy: Path) -> None:
    shutil.copytree(run, copy)


def hard_linked(run: Path, copy: Path) -> None:
    shutil.copytree(run, copy, copy_function=os.link)


def linked_folder(run: Path, copy: Path) -> None:
    copy.mkdir()
    (copy / "processes").symlink_to(run / "processes")


def linked_files(run: Path, copy: Path) -> None:
    (copy / "processes").mkdir(parents=True)
    for file in (run / "processes").iterdir():
        (copy / "processes" / file.name).symlink_to(file)


@pytest.mark.parametrize("copy_run", [copied, hard_linked, linked_folder, linked_files])
def test_a_copy_of_a_live_run_ends_and_shows_nothing_of_the_original(
    ranks: Ranks, tmp_path: Path, capsys: Capture, copy_run: Callable[[Path, Path], None]
) -> None:
    pids = ranks.start(WAITS, WAITS)
    copy = tmp_path / "copy"
    copy_run(ranks.run, copy)

    stop(copy)
    said = " ".join(capsys.readouterr().out.split())
    assert all(map(is_alive, pids))
    assert re.search(r"left alone, its record was written in another folder|: is a link", said)
    dump(copy, tmp_path / "dump")
    shown = "".join(path.read_text() for path in tmp_path.glob("dump/**/*.txt"))
    assert "time.sleep" not in shown
    assert "has ended" not in shown

    assert stop(ranks.run) == 0
    assert not any(map(is_alive, pids))


def test_a_forged_record_of_somebody_elses_process_is_not_believed(
    stranger: int, tmp_path: Path, capsys: Capture
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    process_records.write_record(run, forged(run, stranger))

    stop(run)

    assert is_alive(stranger)
    assert "does not hold its record open" in capsys.readouterr().out
    dump(run, tmp_path / "dump")
    assert is_alive(stranger)  # the signal that asks a rank for its stack would end it
    assert (tmp_path / "dump").is_dir()


def test_a_dump_of_no_run_or_of_a_linked_one_writes_nothing_into_its_folder(
    ranks: Ranks, tmp_path: Path
) -> None:
    ranks.start(WAITS)
    copy = tmp_path / "copy"
    linked_folder(ranks.run, copy)

    for run in (tmp_path / "none" / "here", copy):
        assert main(["cluster", "dump", "local", "--run", str(run), "--apart-seconds", "0.1"]) == 1

    assert not (tmp_path / "none").exists()
    assert [path.name for path in copy.iterdir()] == ["processes"]


def test_a_record_that_names_pid_1_lists_and_ends_nothing(tmp_path: Path, capsys: Capture) -> None:
    run = tmp_path / "run"
    run.mkdir()
    process_records.write_record(run, forged(run, 1))

    assert main(["cluster", "stop", "local", "--run", str(run), "--dry-run", "--json"]) == 0

    (answer,) = json.loads(capsys.readouterr().out)["nodes"]
    assert answer["would_end"] == []


@pytest.mark.parametrize(
    "beat", [{}, {"time": "x", "step": 1, "phase": "data"}, [1], {"step": {}, "phase": 3}]
)
def test_a_forged_heartbeat_of_a_live_rank_is_left_out(
    ranks: Ranks, tmp_path: Path, capsys: Capture, beat: object
) -> None:
    ranks.start(WAITS)
    (ranks.run / "heartbeats").mkdir(exist_ok=True)
    (ranks.run / "heartbeats" / "rank-00000.json").write_text(json.dumps(beat))

    assert main(["cluster", "status", "local", "--run", str(ranks.run), "--seconds", "0.1", "--json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)["nodes"]
    mine = [line for line in answer["runs"] if line["run"] == str(ranks.run)]  # others may train here
    assert [line["step"] for line in mine] == [None]
    assert dump(ranks.run, tmp_path / "dump") == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_another_users_record_of_roots_process_is_not_believed(
    ranks: Ranks, tmp_path: Path, capsys: Capture
) -> None:
    (pid,) = ranks.start(WAITS)
    os.chown(process_records.record_path(ranks.run, 0), 65534, 65534)

    stop(ranks.run)

    assert is_alive(pid)
    assert "was written by" in capsys.readouterr().out
