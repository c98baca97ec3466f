import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from vidcurate.errors import StorageError
from vidcurate.executor import child_processes, map_clips


def square(number: int) -> map_clips.Row:
    return {"value": number * number, "pid": os.getpid()}


def die_on_seven(number: int) -> map_clips.Row:
    if number == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"value": number}


def lost(number: int, loss: str) -> map_clips.Row:
    return {"value": 1000 + number if loss == "timeout" else -number}


def values(rows: list[map_clips.Row]) -> list[int]:
    return [row["value"] for row in rows]


def test_results_come_in_the_order_of_the_items_for_any_number_of_workers(tmp_path: Path) -> None:
    one = map_clips.map_clips(square, range(20), on_lost=lost, num_workers=1, chunk_size=3)
    two = map_clips.map_clips(square, range(20), on_lost=lost, num_workers=2, chunk_size=3)

    assert values(one) == values(two) == [number**2 for number in range(20)]
    assert os.getpid() not in {row["pid"] for row in two}


def test_a_second_run_does_only_what_is_missing(tmp_path: Path) -> None:
    first = map_clips.map_clips(square, range(10), on_lost=lost, chunk_size=4, parts=tmp_path / "parts")
    (tmp_path / "parts" / "000001.json").write_text("[{half a fi")
    (tmp_path / "parts" / "000002.json").write_text('[{"value": 64, "pid": 0}, {"value": 81, "pid": 0}]')

    again = map_clips.map_clips(square, range(10), on_lost=lost, chunk_size=4, parts=tmp_path / "parts")

    assert values(first) == values(again)
    assert [row["pid"] for row in again][-2:] == [0, 0]


def test_progress_counts_every_item_once(tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []

    map_clips.map_clips(
        square,
        range(5),
        on_lost=lost,
        chunk_size=2,
        progress=lambda *reported: seen.append(reported),
        unit="files",
    )

    assert seen == [(0, 5, "files"), (2, 5, "files"), (4, 5, "files"), (5, 5, "files")]


def test_a_clip_that_kills_its_worker_is_a_row_and_no_other_is_lost() -> None:
    rows = map_clips.map_clips(die_on_seven, range(12), on_lost=lost, num_workers=2, chunk_size=4)

    assert values(rows) == [0, 1, 2, 3, 4, 5, 6, -7, 8, 9, 10, 11]


def test_a_parts_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StorageError, match="file/parts: cannot make this folder"):
        map_clips.map_clips(square, [1], on_lost=lost, parts=tmp_path / "file" / "parts")


def depend_on_three(number: int) -> map_clips.Row:
    if number == 3:
        time.sleep(600)
    return {"value": number}


def hold_on_three(number: int) -> map_clips.Row:
    """Spin in the interpreter: no other thread of the process does much meanwhile."""
    while number == 3:
        pass
    return {"value": number}


def stop_on_three(number: int) -> map_clips.Row:
    if number == 3:
        os.kill(os.getpid(), signal.SIGSTOP)
    return {"value": number}


def linger_on_three(number: int) -> map_clips.Row:
    time.sleep(1.5 * (number == 3))
    return {"value": number}


def refuse_four(number: int) -> map_clips.Row:
    if number == 4:
        raise StorageError("no room for 4.")
    return {"value": number}


@pytest.mark.parametrize(
    ("function", "num_workers"),
    [(depend_on_three, 1), (depend_on_three, 2), (hold_on_three, 2), (stop_on_three, 1)],
)
def test_an_item_that_hangs_costs_its_limit_and_the_others_resume(
    function: Callable[[int], map_clips.Row], num_workers: int
) -> None:
    started = time.monotonic()

    rows = map_clips.map_clips(
        function,
        range(8),
        on_lost=lost,
        time_limit_seconds=1.0,
        num_workers=num_workers,
        chunk_size=4,
    )

    assert values(rows) == [0, 1, 2, 1003, 4, 5, 6, 7]
    assert time.monotonic() - started < 60


def test_time_in_which_the_machine_stood_still_counts_for_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever suspended the machine in the middle of a probe found clips called timeout."""
    hours, now = 0, time.monotonic

    class Suspended(selectors.DefaultSelector):
        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            nonlocal hours
            found = super().select(timeout and min(timeout, 0.2))
            hours += 1  # the limit of this wait was over long ago
            return found

    monkeypatch.setattr(
        child_processes,
        "selectors",
        SimpleNamespace(DefaultSelector=Suspended, EVENT_READ=selectors.EVENT_READ),
    )
    monkeypatch.setattr(child_processes, "time", SimpleNamespace(monotonic=lambda: now() + 3600 * hours))

    rows = map_clips.map_clips(linger_on_three, range(5), on_lost=lost, time_limit_seconds=300.0)

    assert values(rows) == [0, 1, 2, 3, 4]
    assert hours > 1


def test_a_limit_changes_no_row_of_items_that_keep_it() -> None:
    plain = map_clips.map_clips(square, range(9), on_lost=lost)
    limited = map_clips.map_clips(square, range(9), on_lost=lost, time_limit_seconds=60, chunk_size=2)

    assert values(plain) == values(limited)
    assert os.getpid() not in {row["pid"] for row in limited}


def test_what_the_function_raises_is_raised_here() -> None:
    with pytest.raises(StorageError, match="no room for 4"):
        map_clips.map_clips(refuse_four, range(8), on_lost=lost, num_workers=2, chunk_size=2)


_MAIN = """
import os, sys, time
from pathlib import Path
from vidcurate.executor import map_clips

folder = Path(sys.argv[1])

def linger(number):  # lives in the main module, which workers do not import
    (folder / str(os.getpid())).touch()
    while True:
        pass

map_clips.map_clips(linger, range(4), on_lost=lambda item, loss: {}, num_workers=2, chunk_size=1)
"""


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_worker_outlives_a_killed_parent(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(_MAIN)
    (tmp_path / "pids").mkdir()
    process = subprocess.Popen([sys.executable, tmp_path / "main.py", tmp_path / "pids"])
    try:
        until = time.monotonic() + 60
        while len(list((tmp_path / "pids").iterdir())) < 2:
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()

    workers = [int(path.name) for path in (tmp_path / "pids").iterdir()]
    until = time.monotonic() + 60
    while any(_is_alive(pid) for pid in workers) and time.monotonic() < until:
        time.sleep(0.05)
    assert not [pid for pid in workers if _is_alive(pid)]
