"""Shards at a URL: the loader reads of a web server what it reads of the disk, whatever the server does."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import loader_runs
from tests.range_server import RangeServer, serving
from vidcurate.errors import InputError, MissingError, ShardError, StorageError, VidcurateError
from vidcurate.executor.shared_memory import SharedArray
from vidcurate.loader import remote_clips
from vidcurate.loader.decode.worker_pool import DecodePool
from vidcurate.loader.decode_tasks import decode_task
from vidcurate.loader.loader import Loader
from vidcurate.loader.remote_clips import pool_for
from vidcurate.shards import index, index_file
from vidcurate.shards.index import Index
from vidcurate.shards.remote_index import RemoteSpec
from vidcurate.storage import object_store

STEPS = range(3)
Reported = dict[int, list[tuple[Any, ...]]]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return loader_runs.make(tmp_path_factory.mktemp("remote"), count=24)


@pytest.fixture(scope="module")
def reported_here(here: Index) -> Reported:
    return loader_runs.read(here, loader_runs.plan_of(here), STEPS)


@pytest.fixture(autouse=True)
def in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "PAUSES_SECONDS", (0.01, 0.02, 0.02))


@pytest.fixture
def server(here: Index) -> Iterator[RangeServer]:
    with serving(here.folder) as running:
        yield running


def opened(server: RangeServer, cache: Path, **settings: Any) -> Index:
    """Open the index with other constants of RemoteSpec."""
    size = {"cache_bytes": settings.pop("cache_bytes")} if "cache_bytes" in settings else {}
    constants = {"request_seconds": 20.0, "__module__": __name__, **settings}
    spec = type("Spec", (RemoteSpec,), constants)(cache_folder=cache, **size)
    return index.read_index(server.url, remote=spec)


def read(there: Index, **settings: Any) -> Reported:
    settings = {"prefetch_bytes": 300_000, **settings}  # a few micro-batches
    return loader_runs.read(there, loader_runs.plan_of(there), STEPS, **settings)


@pytest.mark.parametrize("settings", [{}, {"num_workers": 1, "world_size": 2}])
def test_ids_and_frames_are_those_of_the_disk(
    here: Index, reported_here: Reported, server: RangeServer, tmp_path: Path, settings: dict[str, int]
) -> None:
    there = opened(server, tmp_path)

    assert read(there, **settings) == reported_here
    assert there.structure_fingerprint == here.structure_fingerprint
    assert there.captions.equals(here.captions)


def test_a_clip_is_one_request_of_its_own_bytes_and_is_asked_for_once(
    here: Index, reported_here: Reported, server: RangeServer, tmp_path: Path
) -> None:
    there = opened(server, tmp_path)
    server.ranges.clear()
    read(there)
    read(there)
    rows = {here.word("clip_id", row): row for row in range(len(here))}
    shown = {clip_id for batches in reported_here.values() for batch in batches for clip_id in batch[3]}
    wanted = {
        (
            f"/{here.shards[here.shard_number[row]]}",
            int(here.numbers("json_offset")[row]),
            int(here.video_offset[row] + here.video_size[row]) - 1,
        )
        for row in map(rows.__getitem__, shown)
    }

    assert sorted(server.ranges) == sorted(wanted)
    assert server.asked["GET /index.parquet"] == 1  # an index of the same version is fetched once
    opened(server, tmp_path)
    assert server.asked["GET /index.parquet"] == 1


@pytest.mark.parametrize("num_workers", [pytest.param(0, marks=pytest.mark.soak), 1])
def test_what_passes_is_asked_again_and_reported(
    reported_here: Reported, server: RangeServer, tmp_path: Path, num_workers: int
) -> None:
    there = opened(server, tmp_path, request_seconds=3.0, requests_at_once=1)
    plan = loader_runs.plan_of(there)
    server.faults.extend([500, 503, None, 429, "cut", None, "reset", "reset", "slow", None])
    events: list[dict[str, Any]] = []
    spec = loader_runs.spec(num_workers=num_workers, prefetch_bytes=300_000)
    with Loader(there, plan, spec, on_event=events.append) as loader:
        found = {step: [loader_runs.reported(batch) for batch in loader.step(step)] for step in STEPS}

    assert {step: sorted(batches) for step, batches in found.items()} == reported_here
    assert [event["event"] for event in events] == ["request_retried"] * 6
    assert all(event["url"].startswith(f"{server.url}/train-00000") for event in events)
    reasons = " ".join(event["reason"] for event in events)
    assert all(word in reasons for word in ("500", "503", "429", "ended", "eset", "timed out"))


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        (500, StorageError, r"train-00000\d.tar: failed 4 times, at last: .*500"),
        ("reset", StorageError, r"train-00000\d.tar: failed 4 times"),
        (403, StorageError, r"train-00000\d.tar: the server refuses it to us"),
        (404, StorageError, r"train-00000\d.tar: is not there"),
        (416, ShardError, r"train-00000\d.tar: was changed .* become shorter"),
        (412, ShardError, r"train-00000\d.tar: was changed"),
        ("etag", ShardError, r"train-00000\d.tar: was changed since its index was opened.* ETag"),
        ("whole", ShardError, r"train-00000\d.tar: the server ignores byte ranges"),
    ],
)
def test_what_stays_ends_the_run_with_the_shards_name_and_no_fallback(
    server: RangeServer, tmp_path: Path, fault: Any, error: type[Exception], words: str
) -> None:
    there = opened(server, tmp_path)
    plan = loader_runs.plan_of(there)
    server.always = fault
    events: list[str] = []
    for num_workers in (0, 1) if fault in (500, "etag") else (0,):
        spec = loader_runs.spec(num_workers=num_workers)
        with (
            Loader(there, plan, spec, on_event=lambda event: events.append(event["event"])) as loader,
            pytest.raises(error, match=words),
        ):
            loader.step(0)

    assert set(events) <= {"request_retried"}


def test_a_shard_that_is_exchanged_is_refused_by_name(here: Index, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in here.folder.iterdir():
        os.link(path, copy / path.name)
    with serving(copy) as server:
        there = opened(server, tmp_path / "cache")
        plan = loader_runs.plan_of(there)
        for shard in here.shards:  # as long as before, one byte is another
            data = bytearray((copy / shard).read_bytes())
            data[0] ^= 1
            (copy / shard).unlink()
            (copy / shard).write_bytes(data)
        with (
            Loader(there, plan, loader_runs.spec(num_workers=1)) as loader,
            pytest.raises(ShardError, match=r"train-\d+.tar: was changed since its index was opened"),
        ):
            loader.step(0)
        assert read(opened(server, tmp_path / "cache")) == read(here)  # opened anew it is what it is now


def test_a_shard_that_is_missing_or_short_is_named_when_the_index_is_opened(
    here: Index, tmp_path: Path
) -> None:
    for name in (index_file.INDEX_NAME, *here.shards[1:]):
        os.link(here.folder / name, tmp_path / name)
    with serving(tmp_path) as server:
        with pytest.raises(StorageError, match=f"{server.url}/{here.shards[0]}: is not there"):
            opened(server, tmp_path / "cache")
        (tmp_path / here.shards[0]).write_bytes(bytes(600))
        with pytest.raises(ShardError, match=f"{server.url}/{here.shards[0]}: has 600 bytes and the index"):
            opened(server, tmp_path / "cache")
        with pytest.raises(MissingError, match=r"nowhere/index\.parquet: is not there"):
            index.read_index(f"{server.url}/nowhere", remote=RemoteSpec(cache_folder=tmp_path / "cache"))


def test_altered_bytes_are_asked_for_twice_and_then_a_fallback_substitutes(
    here: Index, tmp_path: Path
) -> None:
    for path in here.folder.iterdir():
        os.link(path, tmp_path / path.name)
    plan = loader_runs.plan_of(here)
    row = int(loader_runs.order.micro_batch(plan, 0).rows[0])
    shard = here.shards[here.shard_number[row]]
    data = bytearray((here.folder / shard).read_bytes())
    data[int(here.video_offset[row]) + 40] ^= 255
    (tmp_path / shard).unlink()
    (tmp_path / shard).write_bytes(data)
    events: list[dict[str, Any]] = []
    with serving(tmp_path) as server:
        there = opened(server, tmp_path / "cache")
        spec = loader_runs.spec(num_workers=1, prefetch_bytes=0)
        with Loader(there, plan, spec, on_event=events.append) as loader:
            far = [loader_runs.reported(batch) for batch in loader.step(0)]
        with Loader(index.read_index(tmp_path), plan, loader_runs.spec()) as loader:
            near = [loader_runs.reported(batch) for batch in loader.step(0)]

        asked = [
            got for got in server.ranges if got[:2] == (f"/{shard}", int(here.numbers("json_offset")[row]))
        ]
    assert len(asked) == 2
    assert [(event["event"], event["kind"]) for event in events] == [("clip_substituted", "crc_mismatch")]
    assert f"{server.url}/{shard}" in events[0]["reason"]
    assert far == near


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_cache_that_holds_a_clip_or_two_slows_and_changes_nothing(
    here: Index, reported_here: Reported, server: RangeServer, tmp_path: Path, num_workers: int
) -> None:
    largest = int((here.numbers("json_size") + here.video_size).max()) + 512
    there = opened(server, tmp_path, cache_bytes=2 * largest, requests_at_once=4)

    assert read(there, num_workers=num_workers) == reported_here
    clips = [path for path in tmp_path.glob("clips/*/*") if path.is_file()]
    assert 0 < sum(path.stat().st_size for path in clips) <= 2 * largest
    tiny = opened(server, tmp_path / "tiny", cache_bytes=100)
    with pytest.raises(InputError, match=r"the cache has 100 bytes and one entry needs .* raise cache_bytes"):
        read(tiny, num_workers=num_workers)


def test_loaders_that_read_at_once_share_a_cache_that_is_too_small(
    here: Index, reported_here: Reported, server: RangeServer, tmp_path: Path
) -> None:
    largest = int((here.numbers("json_size") + here.video_size).max()) + 512
    found: list[Reported] = []

    def work(there: Index, num_workers: int) -> None:
        found.append(read(there, num_workers=num_workers))

    # Opened one by one: `opened` makes a settings class, for which pydantic parses source code, and Python
    # 3.11 fails now and then when several threads parse (CPython gh-106905).
    four = [opened(server, tmp_path, cache_bytes=3 * largest, requests_at_once=3) for _ in range(4)]
    threads = [threading.Thread(target=work, args=(there, number % 2)) for number, there in enumerate(four)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == [reported_here] * 4
    clips = [path for path in tmp_path.glob("clips/*/*") if path.is_file()]
    assert sum(path.stat().st_size for path in clips) <= 3 * largest


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_clip_that_the_cache_lets_go_before_it_is_read_is_read_all_the_same(
    reported_here: Reported,
    server: RangeServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    num_workers: int,
) -> None:
    """A worker that was slow, in a cache for a clip or two: it found each of five files gone."""
    submit, decode = DecodePool.submit, remote_clips.decode

    def let_go() -> None:
        for path in tmp_path.glob("clips/*/[!.]*"):  # not those that are being written
            path.unlink(missing_ok=True)

    def late_submit(*words: Any, **more: Any) -> Any:
        let_go()
        return submit(*words, **more)

    def late_decode(*words: Any) -> Any:
        let_go()
        return decode(*words)

    monkeypatch.setattr(DecodePool, "submit", late_submit)
    monkeypatch.setattr(remote_clips, "decode", late_decode)
    there = opened(server, tmp_path)

    assert read(there, num_workers=num_workers, prefetch_bytes=0) == reported_here


def test_a_cached_clip_that_rots_is_fetched_again(
    reported_here: Reported, server: RangeServer, tmp_path: Path
) -> None:
    there = opened(server, tmp_path)
    read(there)
    for number, path in enumerate(sorted(path for path in tmp_path.glob("clips/*/*") if path.is_file())):
        data = path.read_bytes()
        path.write_bytes(data[:-1] if number % 2 else bytes(len(data)))
    server.ranges.clear()

    assert read(there, num_workers=1, prefetch_bytes=0) == reported_here
    assert len(server.ranges) == len({(path, first) for path, first, _ in server.ranges}) > 0


def test_closing_gives_up_what_a_silent_server_holds(server: RangeServer, tmp_path: Path) -> None:
    there = opened(server, tmp_path, request_seconds=0.5)
    plan = loader_runs.plan_of(there)
    server.always = "slow"
    task = decode_task(there, 0, plan.cells[0].bucket, first_frame=0)
    buffer = SharedArray((1, task.size_bytes))
    pool = pool_for(there, DecodePool(1, deadline_seconds=60))
    futures = [pool.submit(task, buffer, 0) for _ in range(20)]
    pool.close()

    assert all(future.done() for future in futures)
    assert all(future.cancelled() or future.exception() for future in futures)
    with pytest.raises(VidcurateError, match="the decode workers have stopped"):
        pool.submit(task, buffer, 0)


def test_file_urls_are_the_disk_and_other_schemes_are_refused(here: Index) -> None:
    assert index.read_index(f"file://{here.folder}").place == here.folder
    for ask in (object_store.place, index.read_index):
        with pytest.raises(
            InputError, match="ftp://x: no URL that is read; they begin with s3, gs, az, http"
        ):
            ask("ftp://x")
    assert object_store.place("s3://bucket/shards/") == "s3://bucket/shards"


def test_reading_from_the_disk_loads_no_obstore(here: Index) -> None:
    program = (
        "import json, sys; from pathlib import Path; from vidcurate.loader.loader import Loader; "
        "from vidcurate.shards.index import read_index; read_index(Path(sys.argv[1])); "
        "print(json.dumps([name for name in ('obstore', 'polars') if name in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(here.folder)], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == []
