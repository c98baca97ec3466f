"""Loader retries: a short read error is retried; a lasting one stops the run, without a fallback clip."""

import errno
import io
import shutil
import threading
from typing import Any, ClassVar

import pytest

from tests.loader_runs import (
    first_clip,
    make,
    plan_of,
    read,
    reported,
    shard_of,
    spec,
    wait_until_one_reads,
)
from vidcurate.errors import StorageError
from vidcurate.loader.decode import decode_clip
from vidcurate.loader.loader import Loader
from vidcurate.sampler.plan import Plan
from vidcurate.shards.index import Index


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return make(tmp_path_factory.mktemp("read_again"), per_shard=1)


@pytest.fixture(scope="module")
def plan(opened: Index) -> Plan:
    return plan_of(opened)


@pytest.fixture(scope="module")
def undisturbed(opened: Index, plan: Plan) -> list[Any]:
    return read(opened, plan, [0])[0]


class Flaky(io.FileIO):
    """A file of a disk that fails: by `faults`, one for each file that is opened, in turn."""

    faults: ClassVar[list[str]] = []
    opened = 0

    def __init__(self, path: str, mode: str, buffering: int) -> None:
        super().__init__(path, "r")
        Flaky.opened += 1
        self._fault = Flaky.faults.pop(0) if Flaky.faults else ""
        self._reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self._reads += 1
        if self._fault == "cut off" and self._reads == 3:  # in the middle of the video
            raise OSError(errno.EIO, "Input/output error")
        data = super().read(min(size or 0, 100) if self._fault == "cut off" else size)
        if self._fault == "flipped":
            data = data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]
        return data


@pytest.mark.parametrize(
    ("faults", "reads"),
    [(["cut off"], 2), (["cut off"] * 3, 4), (["flipped"], 2), (["flipped", "cut off"], 3)],
    ids=["once", "three-times", "other-bytes", "both"],
)
def test_a_disk_that_fails_for_a_moment_changes_nothing(
    opened: Index,
    plan: Plan,
    undisturbed: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    faults: list[str],
    reads: int,
) -> None:
    monkeypatch.setattr(decode_clip, "open", Flaky, raising=False)
    Flaky.faults, Flaky.opened = list(faults), 0
    events: list[dict[str, Any]] = []
    with Loader(opened, plan, spec(), on_event=events.append) as loader:
        assert sorted(map(reported, loader.step(0))) == undisturbed
    assert events == []
    assert Flaky.opened == sum(len(batch[3]) for batch in undisturbed) + reads - 1


def test_a_shard_that_comes_back_within_two_seconds_is_waited_for_and_one_that_does_not_stops_the_run(
    opened: Index, plan: Plan, undisturbed: list[Any]
) -> None:
    clip = first_clip(opened, plan)
    shard = shard_of(opened, clip)
    kept = shard.with_suffix(".kept")

    def come_back() -> None:
        shutil.rmtree(shard)
        kept.rename(shard)

    def come_back_when_it_is_missed(loader: Loader) -> None:
        wait_until_one_reads(loader, clip, seconds=0.05)
        come_back()

    for comes_back in (True, False):
        shard.rename(kept)
        shard.mkdir()  # as a mount point without its mount
        events: list[dict[str, Any]] = []
        with Loader(opened, plan, spec(num_workers=1), on_event=events.append) as loader:
            if comes_back:
                returns = threading.Thread(target=come_back_when_it_is_missed, args=(loader,))
                returns.start()
                assert sorted(map(reported, loader.step(0))) == undisturbed
                returns.join()
            else:
                with pytest.raises(StorageError, match=rf"{shard}: cannot read clip '.*' \(Is a dir"):
                    loader.step(0)
                come_back()
        assert events == []
