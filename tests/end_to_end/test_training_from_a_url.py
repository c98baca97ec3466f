"""A run whose shards lie on a web server is the run whose shards lie here, number for number."""

from pathlib import Path

import pytest

from tests.range_server import serving
from tests.trainer.shards_for_tests import events, make_shards, numbers, smoke
from trainer.data.latents.precompute import encode_ahead, request_of
from trainer.train import train
from vidcurate.errors import StorageError
from vidcurate.storage import object_store

QUICK = ("stages.0.steps=3", "sample=null")


def test_training_from_a_url_that_fails_at_times_equals_training_from_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "PAUSES_SECONDS", (0.01,) * 5)
    shards, cache = make_shards(tmp_path / "shards"), tmp_path / "cache"
    train(smoke(shards, tmp_path / "here", *QUICK))
    with serving(shards) as server:
        server.faults.extend([None, 503, None, None, 500, None, "cut"])
        far = smoke(
            shards, tmp_path / "there", *QUICK, f"stages.0.data.shards={server.url}",
            f"loader.cache_folder={cache}", "loader.num_workers=1",
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
    monkeypatch.setattr(object_store, "PAUSES_SECONDS", (0.01, 0.01))
    shards, run = make_shards(tmp_path / "shards"), tmp_path / "run"
    with serving(shards) as server:
        server.faults.extend([None] * 5)  # the index, and the four clips of the first step
        server.always = 503
        recipe = smoke(
            shards, run, *QUICK, f"stages.0.data.shards={server.url}",
            f"loader.cache_folder={tmp_path / 'cache'}",
        )  # fmt: skip
        with pytest.raises(
            StorageError, match=rf"{server.url}/train-level\d-000000.tar: failed 3 times.*503"
        ):
            train(recipe)

    assert len(numbers(run)) == 1
    assert not events(run, "clip_substituted")
    (stopped,) = events(run, "loader_stopped")
    assert server.url in stopped["reason"]


def test_latents_encoded_from_a_url_are_those_from_the_disk(tmp_path: Path) -> None:
    shards = make_shards(tmp_path / "shards", num_clips=6)
    encode_ahead(request_of(smoke(shards, tmp_path, "stages.0.data.views=1")), tmp_path / "here")
    with serving(shards) as server:
        far = smoke(
            shards, tmp_path, "stages.0.data.views=1", f"stages.0.data.shards={server.url}",
            f"loader.cache_folder={tmp_path / 'cache'}", "loader.num_workers=1",
        )  # fmt: skip
        encode_ahead(request_of(far), tmp_path / "there")

    here = {path.name: path.read_bytes() for path in (tmp_path / "here").iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "there").iterdir()} == here
    assert any(name.endswith(".tar") for name in here)
