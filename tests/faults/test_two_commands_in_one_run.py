"""Two commands in one run folder at once: one works, the other is refused or waits; no file breaks."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from vidcurate.curation.clip_table import run_lock, table
from vidcurate.curation.clip_table.schema import COLUMNS
from vidcurate.curation.filter.spec import FilterSpec
from vidcurate.curation.filter.stage import run_filter
from vidcurate.curation.probe import cache
from vidcurate.errors import StageError

ROWS = 60_000
TRIES = 5
NAMES = ("clip_id", "video_path", "width", "height", "ingest_problem", "probe_status", "probe_problem")

ADD = """
import sys
from pathlib import Path
from vidcurate.curation.probe import cache
who = sys.argv[2]
for turn in range(20):
    with cache.added_to(Path(sys.argv[1])) as add:
        for n in range(40):
            add((f"{who}-{turn}-{n}.mp4", n, n), {"sha256": f"{who}{turn}{n}"})
"""
FILTER = """
import sys
from vidcurate.cli.main import main
from vidcurate.curation.filter import stage
print("ready", flush=True)
sys.stdin.readline()
main(["filter", *sys.argv[1:]])
"""
HOLD = """
import sys, time
from pathlib import Path
from vidcurate.curation.clip_table import run_lock
with run_lock.alone(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two") / "run"
    number = pl.int_range(ROWS, eager=True)
    facts = {
        "clip_id": "clip-" + number.cast(pl.String),
        "video_path": number.cast(pl.String) + ".mp4",
        "width": number % 1000 + 100,
        "height": number % 700 + 100,
        "ingest_problem": pl.Series([None] * ROWS, dtype=pl.String),
        "probe_status": pl.Series(["ok"] * ROWS),
        "probe_problem": pl.Series([None] * ROWS, dtype=pl.String),
    }
    frame = pl.DataFrame({name: facts[name].cast(COLUMNS[name].dtype) for name in NAMES})
    table.write(frame, folder / "probe.parquet", table.Provenance(stage="probe", settings={}, inputs={}))
    return folder


def started(*command: object) -> "subprocess.Popen[str]":
    words, pipe = [sys.executable, *map(str, command)], subprocess.PIPE
    return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_two_filters_at_once_leave_the_files_of_one_command(run: Path) -> None:
    refused = 0
    for turn in range(TRIES):
        asked = {200 + turn, 600 + turn}
        both = [started("-c", FILTER, run, "--set", f"min_height={n}", "--json") for n in asked]
        for child in both:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for child in both:
            assert child.stdin is not None
            child.stdin.write("\n")
            child.stdin.flush()
        ended = [(child.communicate(timeout=300), child.returncode) for child in both]

        for (_, errors), code in ended:
            assert code in (0, 2), errors
            if code == 2:
                refused += 1
                (line,) = (line for line in errors.splitlines() if line.startswith("error:"))
                assert f"{run}: another vidcurate command (" in line
                assert "Wait until" in line
        done = [json.loads(out)["rows_kept"] for (out, _), code in ended if code == 0]
        assert done
        origin = table.provenance(run / "filter.parquet")
        assert origin == table.provenance(run / "ledger.parquet")
        assert origin.settings["limits"]["height"]["min"] in asked
        kept = pl.read_parquet(run / "filter.parquet")["is_kept"].sum()
        rejected = pl.read_parquet(run / "ledger.parquet")["clip_id"].n_unique()
        steps = json.loads((run / "funnel.json").read_text())
        assert kept + rejected == ROWS
        assert sum(step["rejected"] for step in steps) == rejected
        assert kept in done
        assert not [path.name for path in run.iterdir() if path.name.startswith(".")]
        if refused and turn:
            break
    assert refused  # at least once both were inside the same second


def test_a_run_that_is_held_names_its_holder_and_a_killed_holder_leaves_nothing_locked(run: Path) -> None:
    run_filter(run, FilterSpec(limits={"height": {"min": 320}}))
    holder = started("-c", HOLD, run)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == "held"
        with pytest.raises(StageError, match=rf"{run}: .*\(process {holder.pid} on {os.uname().nodename}\)"):
            run_filter(run, FilterSpec(limits={"height": {"min": 321}}))
        for other in ("filter", "split-by-difficulty"):
            command = started("-m", "vidcurate", other, run)
            _, errors = command.communicate(timeout=300)
            assert (command.returncode, f"{run}: another vidcurate command (" in errors) == (2, True), errors
    finally:
        holder.kill()
        holder.communicate()

    assert run_filter(run, FilterSpec(limits={"height": {"min": 321}})).rows_in == ROWS
    assert not (run / run_lock.NAME).exists()


def test_a_command_holds_its_run_once_though_its_stages_ask_again(run: Path) -> None:
    with run_lock.alone(run), run_lock.alone(run, wait=True):
        assert run_filter(run, FilterSpec(limits={"height": {"min": 322}})).rows_in == ROWS


def test_who_waits_gets_the_run_when_the_holder_ends(run: Path) -> None:
    holder = started("-c", HOLD.replace("600", "1"), run)
    assert holder.stdout is not None
    assert holder.stdout.readline().strip() == "held"
    began = time.monotonic()
    with run_lock.alone(run, wait=True):
        assert time.monotonic() - began > 0.5
    holder.communicate()


def test_a_refused_run_leaves_no_folder_behind(tmp_path: Path) -> None:
    with pytest.raises(StageError), run_lock.alone(tmp_path / "new"):
        raise StageError("refused")
    assert not (tmp_path / "new").exists()


def test_two_writers_of_one_file_of_known_files_keep_the_entries_of_both(tmp_path: Path) -> None:
    known = tmp_path / "known.parquet"
    both = [started("-c", ADD, known, who) for who in ("a", "b")]
    for child in both:
        _, errors = child.communicate(timeout=300)
        assert child.returncode == 0, errors

    with cache.opened(known) as found:
        paths = set(found.keys["video_path"])
    assert paths == {f"{who}-{turn}-{n}.mp4" for who in "ab" for turn in range(20) for n in range(40)}
    assert [path.name for path in tmp_path.iterdir()] == ["known.parquet"]
