"""The console says as text what happens: no JSON, no hashes."""

import re
import shutil
from pathlib import Path

import pytest
import torch

from tests.trainer.shards_for_tests import events, make_shards, smoke
from tests.trainer.training.states import SHORT
from trainer.distributed.mesh import World
from trainer.train import train
from trainer.training import log


def test_a_start_and_a_resume_print_no_json_and_no_hash(
    short_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    few = make_shards(tmp_path / "few", num_clips=6)
    train(smoke(few, tmp_path / "run", *SHORT))
    shutil.rmtree(tmp_path / "run" / "step-00000004")
    (tmp_path / "run" / "LATEST").write_text("step-00000002\n")
    train(smoke(few, tmp_path / "run", *SHORT))

    said = capfd.readouterr().err
    assert "32px-8f-0.50 has 1 clip, so its micro-batches have 1 instead of 2" in said
    assert "model, ema, optimizer have the checksums that they were saved with; 2 optimizer updates" in said
    assert "made again: 2 steps after the checkpoint" in said
    assert "learning rate 0.0004, then 0.0006" in said
    assert not re.search(r"[0-9a-f]{16}", said.replace(str(tmp_path), ""))
    assert not re.search(r"[{}\[\]]", said)


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (
            {"event": "worker_replaced", "reason": "has ended", "clip_id": None, "exit_status": -9},
            "worker replaced (reason has ended, exit status -9)",
        ),
        ({"event": "request_retried"}, "request retried"),
    ],
)
def test_an_event_of_the_loader_is_text(event: dict[str, object], said: str) -> None:
    assert log.to_text(event) == said


def test_a_damaged_clip_has_one_line_and_an_event_for_every_showing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def lost(clip_id: str) -> dict[str, object]:
        facts = {"kind": "truncated", "fallback": "c"}
        return {"event": "clip_substituted", "clip_id": clip_id, **facts}

    world = World(rank=0, size=1, device=torch.device("cpu"))
    for step, clip_ids in ((1, "a"), (2, "ab"), (9, "ab")):
        log.record_data_events([lost(clip_id) for clip_id in clip_ids], step, world, tmp_path)
    log.record_data_events([{"event": "request_retried"}] * 2, 10, world, tmp_path)

    assert capfd.readouterr().err.splitlines() == [
        "step 1: clip a cannot be read (truncated); fallback clip c replaces it",
        "step 2: clip b cannot be read (truncated); fallback clip c replaces it",
        "step 10: request retried",
        "step 10: request retried",
    ]
    assert [event["clip_id"] for event in events(tmp_path, "clip_substituted")] == ["a", "a", "b", "a", "b"]
