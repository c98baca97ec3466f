"""The console says as text what happens: no JSON, no hashes."""

import re
import shutil
from pathlib import Path

import pytest

from tests.trainer.shards_for_tests import make_shards, smoke
from tests.trainer.training.states import SHORT
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
    assert "32px-8f-0.50 has 1 clips, so its micro-batches have 1 instead of 2" in said
    assert "model, ema, optimizer have the checksums that they were saved with; 2 optimizer updates" in said
    assert "2 steps after the checkpoint are made again" in said
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
