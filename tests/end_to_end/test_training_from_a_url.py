"""A run whose shards lie on a web server is the run whose shards lie here, number for number."""

from pathlib import Path

import pytest

from tests.range_server import serving
from tests.trainer.shards_for_tests import events, make_shards, numbers, smoke
from trainer.loop import train
from vidcurate import stores
from vidcurate.errors import StorageError

QUICK = ("stages.0.steps=3", "sample=null")


def test_training_from_a_url_that_fails_at_times_equals_training_from_the_disk(
    tmp_path: Path,
) -> None:
    shards, cache = make_shards(tmp_path / "shards"), tmp_path / "cache"
    train(smoke(shards, tmp_path / "here", *QUICK))
    with serving(shards) as server:
        server.faults.extend([None, 503, None, None, "reset", None, "cut"])
        far = smoke(
            shards, tmp_path / "there", *QUICK, f"stages.0.data.shards={server.url}",
            f"loader.remote.cache_folder={cache}", "loader.num_workers=1",
        )  # fmt: skip
        train(far)
        asked = len(server.ranges)

    assert numbers(tmp_path / "there") == numbers(tmp_path / "here")
    retried = events(tmp_path / "there", "request_retried")
    assert len(retried) == 3
    assert all(event["url"].startswith(server.url) for event in retried)
    assert asked >= 12


def test_a_server_that_stays_broken_stops_the_run_with_the_shards_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "PAUSES_SECONDS", (0.01, 0.01))
    shards, run = make_shards(tmp_path / "shards"), tmp_path / "run"
    with serving(shards) as server:
        server.faults.extend([None] * 5)  # the index, and the four clips of the first step
        server.always = 503
        recipe = smoke(
            shards, run, *QUICK, f"stages.0.data.shards={server.url}",
            f"loader.remote.cache_folder={tmp_path / 'cache'}",
        )  # fmt: skip
        with pytest.raises(
            StorageError, match=rf"{server.url}/train-level\d-000000.tar: failed 3 times.*503"
        ):
            train(recipe)

    assert len(numbers(run)) == 1
    assert not events(run, "clip_substituted")
    (stopped,) = events(run, "loader_stopped")
    assert server.url in stopped["reason"]
