"""What a server of a run's checkpoints sampled and reported."""

import json
from pathlib import Path
from typing import Any

import pytest

from trainer.__main__ import main
from trainer.generation import sample_command
from trainer.run_folder import metrics

Printed = list[dict[str, Any]]
SHORT = (
    "stages.0.steps=4",
    "stages.0.checkpoint_every=2",
    "sample.every=100",
    "sample.prompts=[a red square moves right, a blue square moves down]",
)


def serve(capsys: pytest.CaptureFixture[str], *words: object) -> Printed:
    """Run the server over what is there; return the line of each round."""
    capsys.readouterr()
    assert main(["serve", "--once", "--json", *map(str, words)]) == 0, capsys.readouterr().err
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def served(run: Path, event: str = "served") -> list[int]:
    lines = metrics.read_metrics(run / "serve" / "served.jsonl")
    return [line["step"] for line in lines if line["event"] == event]


def by_hand(path: Path, out: Path, *words: str) -> Path:
    assert sample_command.main([str(path), "--out", str(out), *words]) == 0
    return out
