"""Files that appear whole or not at all, whatever happens to their writers."""

import errno
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vidcurate.errors import StorageError
from vidcurate.storage import atomic_file

SLOW = """
import sys, time
from pathlib import Path
from vidcurate.storage import atomic_file
final = Path(sys.argv[1])
is_folder = sys.argv[2] == "folder"
with (atomic_file.atomic_folder if is_folder else atomic_file.atomic_path)(final) as partial:
    (partial / "a" if is_folder else partial).write_bytes(b"half")
    print("half", flush=True)
    time.sleep(600)
"""
MANY = """
import sys
from pathlib import Path
from vidcurate.storage import atomic_file
for turn in range(200):
    atomic_file.write_text(Path(sys.argv[1]), sys.argv[2] * 20_000, is_flushed=False)
"""
NOBODY = 4_194_305  # above the largest process id of Linux


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def left_by(final: Path, pid: int, host: str = "") -> Path:
    name = atomic_file.partial_path(final).name.replace(f"-{os.getpid()}-", f"-{pid}-")
    return final.with_name(
        re.sub(r"\.[^.]*(?=-\d+-[0-9a-f]{8}\.partial)", f".{host}", name) if host else name
    )


@pytest.fixture(autouse=True)
def nothing_cleaned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic_file, "_cleaned", set())


def test_what_is_written_is_there_and_nothing_beside_it(tmp_path: Path) -> None:
    atomic_file.write_text(tmp_path / "new" / "a.txt", "é")
    atomic_file.write_bytes(tmp_path / "b", memoryview(b"xy"), is_flushed=False)
    atomic_file.write_json(tmp_path / "c.json", {"a": ["é"]})
    with atomic_file.atomic_path(tmp_path / "d.mp4", suffix=".mp4") as partial:
        assert partial.name.startswith(".d.mp4.")
        assert partial.suffix == ".mp4"
        partial.write_bytes(b"d")
    with atomic_file.atomic_folder(tmp_path / "e") as partial:
        (partial / "f").write_text("f")
    with atomic_file.atomic_writer(tmp_path / "g", folder=tmp_path / "e") as file:
        file.write(b"g")

    assert names(tmp_path) == ["b", "c.json", "d.mp4", "e", "g", "new"]
    assert names(tmp_path / "e") == ["f"]
    assert (tmp_path / "new" / "a.txt").read_bytes() == "é".encode()
    assert (tmp_path / "c.json").read_bytes() == '{\n "a": [\n  "é"\n ]\n}\n'.encode()
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_an_error_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    final = tmp_path / "a"
    atomic_file.write_text(final, "old")

    def stop_in_a_file() -> None:
        with atomic_file.atomic_writer(final) as file:
            file.write(b"new")
            raise ValueError("stop")

    def stop_in_a_folder() -> None:
        with atomic_file.atomic_folder(tmp_path / "b") as partial:
            (partial / "half").write_text("")
            raise ValueError("stop")

    for work in (stop_in_a_file, stop_in_a_folder):
        with pytest.raises(ValueError, match="stop"):
            work()
    with atomic_file.atomic_path(final) as partial:
        partial.unlink()  # the block has nothing to write

    assert names(tmp_path) == ["a"]
    assert final.read_text() == "old"


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_kill_leaves_the_old_file_whole_and_the_next_writer_cleans_up(tmp_path: Path, kind: str) -> None:
    final = tmp_path / "a"
    if kind == "file":
        final.write_text("old")
    child = subprocess.Popen(
        [sys.executable, "-c", SLOW, str(final), kind], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "half\n"
    (left,) = (path for path in tmp_path.iterdir() if path != final)
    assert not atomic_file.remove_if_left(left)  # its writer lives
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert left.exists()
    assert kind == "folder" or final.read_text() == "old"

    atomic_file.put(tmp_path / "other", "text")

    assert names(tmp_path) == (["a", "other"] if kind == "file" else ["other"])


def test_two_writers_at_once_leave_the_whole_file_of_one(tmp_path: Path) -> None:
    final = tmp_path / "a"
    both = [subprocess.Popen([sys.executable, "-c", MANY, str(final), letter]) for letter in "xy"]
    seen = set()
    while any(child.poll() is None for child in both):
        if final.exists():
            text = final.read_text()
            assert len(text) == 20_000
            seen |= set(text)
    assert [child.returncode for child in both] == [0, 0]
    assert seen <= {"x", "y"}
    assert names(tmp_path) == ["a"]


def test_only_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    final = tmp_path / "a"
    dead = left_by(final, NOBODY)
    alive = left_by(final, os.getppid())
    foreign = left_by(final, NOBODY, host="node-7")
    old = left_by(final, NOBODY, host="node-8")
    strange = tmp_path / ".a.partial"
    for path in (dead, alive, foreign, old, strange):
        path.write_text("")
    long_ago = time.time() - 100_000
    os.utime(old, (long_ago, long_ago))

    atomic_file.put(final, "text")

    assert names(tmp_path) == sorted(["a", alive.name, foreign.name, strange.name])


def test_a_long_name_fits(tmp_path: Path) -> None:
    final = tmp_path / ("é" * 127)
    atomic_file.put(final, "text")
    assert names(tmp_path) == [final.name]


def test_a_line_for_a_pipe_that_nobody_reads_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "events.jsonl")
    with pytest.raises(StorageError, match=r"events\.jsonl: cannot be written"):
        atomic_file.append(tmp_path / "events.jsonl", b"{}\n")


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"/file/a: cannot be written \(.+\)\.$") as found:
        atomic_file.write_text(tmp_path / "file" / "a", "text")
    assert "\n" not in str(found.value)
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    if os.access(folder, os.W_OK):
        pytest.skip("root may write anywhere")
    with pytest.raises(StorageError, match=r"closed/a: cannot be written \(Permission denied\)\.$"):
        atomic_file.write_bytes(folder / "a", b"")


def test_a_full_disk_is_one_line_and_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    final = tmp_path / "a"
    atomic_file.write_text(final, "old")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"/a: cannot be written \(No space left on device\)\.$"):
        atomic_file.write_text(final, "new")
    assert names(tmp_path) == ["a"]
    assert final.read_text() == "old"
