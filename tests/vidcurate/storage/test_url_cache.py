"""The cache of fetched clips: bounded, whole or absent, shared by processes that may be killed."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from vidcurate.errors import InputError, StorageError
from vidcurate.storage.url_cache import ShardCache, key_of

# Writes and reads entries for ever: entry n is its number, n + 1 times 1,000 bytes.
WRITER = """
import random, sys
from pathlib import Path
from vidcurate.storage.url_cache import ShardCache, key_of
cache = ShardCache(Path(sys.argv[1]), 60_000)
draw = random.Random(int(sys.argv[2]))
print("ready", flush=True)
while True:
    n = draw.randrange(10)
    data = bytes([n]) * (1000 * (n + 1))
    path = cache.find(key_of(n), len(data))
    try:
        assert path is None or path.read_bytes() == data, n
    except FileNotFoundError:
        pass
    cache.put(key_of(n), data)
"""


def entry(n: int) -> bytes:
    return bytes([n]) * (1000 * (n + 1))


def held(folder: Path) -> int:
    found = 0
    for path in folder.glob("clips/*/*"):
        try:
            found += path.stat().st_size
        except FileNotFoundError:
            continue
    return found


def stand_still(processes: "list[subprocess.Popen[str]]") -> None:
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    for process in processes:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)


def test_the_least_recently_used_go_first_and_the_budget_holds(tmp_path: Path) -> None:
    cache = ShardCache(tmp_path, 10_000)
    for number in range(9):
        os.utime(cache.put(key_of(number), bytes(1000)), (number, number))
    assert cache.find(key_of(0), 1000)  # used now

    for number in range(9, 12):
        cache.put(key_of(number), bytes(1000))

    assert held(tmp_path) <= 10_000
    found = [number for number in range(12) if cache.find(key_of(number), 1000)]
    assert {0, 9, 10, 11} <= set(found)
    assert 1 not in found
    assert found[1:] == list(range(found[1], 12))  # what is gone was the oldest
    assert int((tmp_path / ".total").read_text()) == held(tmp_path)


def test_an_entry_of_another_size_is_none_and_goes(tmp_path: Path) -> None:
    cache = ShardCache(tmp_path, 10_000)
    path = cache.put(key_of("x"), b"abcd")
    path.write_bytes(b"ab")

    assert cache.find(key_of("x"), 4) is None
    assert not path.exists()
    assert cache.find(key_of("y"), 4) is None


def test_what_no_budget_or_disk_holds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the cache has 10 bytes and one entry needs 11; raise cache_bytes"):
        ShardCache(tmp_path / "a", 10).put(key_of(1), bytes(11))
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="no cache can be made here"):
        ShardCache(tmp_path / "file" / "b", 10)


class GivenUp(Exception):
    pass


def test_a_writer_waits_while_others_that_write_fill_the_budget(tmp_path: Path) -> None:
    """Several slow writers at once lay in the folder together, beyond its bytes, and stayed."""
    cache = ShardCache(tmp_path, 2000)
    folder = cache.put(key_of(0), bytes(10)).parent
    writer = threading.Thread(target=cache.put, args=(key_of(1), bytes(1000)))
    with suppress(GivenUp), cache._begun(folder / "entry", 1000):
        with suppress(GivenUp), cache._begun(folder / "entry", 1000):
            writer.start()
            time.sleep(0.2)
            assert held(tmp_path) <= 2000
            assert writer.is_alive()
            raise GivenUp
        writer.join(60)
        assert cache.find(key_of(1), 1000)
        assert held(tmp_path) <= 2000
        raise GivenUp
    assert int((tmp_path / ".total").read_text()) == held(tmp_path)


def test_writers_that_are_killed_leave_nothing_half_written_and_no_bytes_counted(tmp_path: Path) -> None:
    draw = random.Random(0)

    def start(seed: int) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(seed)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    for seed in range(0, 12, 2):
        writers = [start(seed), start(seed + 1)]
        time.sleep(draw.uniform(0.02, 0.15))
        assert [writer.poll() for writer in writers] == [None, None]
        stand_still(writers)  # a file that is moved while all are counted would be counted twice, or for two
        largest = held(tmp_path)
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            writer.wait()
            assert writer.stdout is not None
            writer.stdout.close()
        assert largest <= 60_000

    cache = ShardCache(tmp_path, 60_000)
    for number in range(10):
        path = cache.find(key_of(number), len(entry(number)))
        assert path is None or path.read_bytes() == entry(number)
    for number in range(10, 70):  # more than the budget: the killed ones' files go
        cache.put(key_of(number), bytes(2000))
    assert not list(tmp_path.glob("clips/*/*.partial"))
    assert int((tmp_path / ".total").read_text()) == held(tmp_path) <= 60_000
