"""Failures, limits and errors on a Ray cluster are those of the local engine."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from vidcurate.errors import InputError, MediaError
from vidcurate.executor import map_clips, ray_actors
from vidcurate.executor.parts_folder import ExecutorSpec

LIMIT_SECONDS = 5.0


def odd_one(number: int) -> map_clips.Row:
    if number == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 7:
        time.sleep(600)
    return {"value": number * number}


def broken(number: int) -> map_clips.Row:
    raise MediaError(f"clip {number}: is broken.", kind="empty")


def lost(number: int, loss: str) -> map_clips.Row:
    return {"value": loss}


def rows(executor: ExecutorSpec, function=odd_one) -> list[map_clips.Row]:  # type: ignore[no-untyped-def]
    found = map_clips.map_clips_in_parts(
        function,
        range(10),
        on_lost=lost,
        time_limit_seconds=LIMIT_SECONDS,
        executor=executor,
        chunk_size=3,
    )
    return list(found)


@pytest.fixture(scope="module")
def ray_of_one_machine() -> Iterator[None]:
    ray = pytest.importorskip("ray", reason="Ray (the extra `ray`) is not installed")
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=80 << 20,
        address="local",
    )
    yield
    ray.shutdown()


@pytest.mark.engine
def test_crashes_and_limits_are_rows_on_a_cluster_as_they_are_here(ray_of_one_machine: None) -> None:
    there, here = rows(ExecutorSpec(engine="ray", num_workers=2)), rows(ExecutorSpec(num_workers=2))

    assert there == here
    assert [row["value"] for row in there] == [0, 1, 4, 9, "crashed", 25, 36, "timeout", 64, 81]
    assert ray_actors.num_cpus() == 2


@pytest.mark.engine
def test_an_error_of_the_function_is_raised_as_it_is(ray_of_one_machine: None) -> None:
    with pytest.raises(MediaError, match=r"clip \d: is broken") as raised:
        rows(ExecutorSpec(engine="ray", num_workers=1), broken)
    assert raised.value.kind == "empty"


@pytest.mark.engine
def test_a_worker_that_is_lost_with_its_node_is_replaced(ray_of_one_machine: None, tmp_path: Path) -> None:
    seen = tmp_path / "seen"

    def end_the_hand(number: int) -> map_clips.Row:
        if number == 5 and not seen.exists():
            seen.touch()
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(600)
        return {"value": number}

    assert [row["value"] for row in rows(ExecutorSpec(engine="ray", num_workers=1), end_the_hand)] == [
        *range(10)
    ]
    assert seen.exists()


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not there

    with pytest.raises(InputError, match=r"Ray is not installed. Run `pip install 'vidcurate\[ray\]'`"):
        ray_actors.connect_ray()
