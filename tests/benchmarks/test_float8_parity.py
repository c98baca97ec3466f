"""The parity benchmark compares forms seed by seed, after as many steps as its budget allows."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_two_forms_are_compared_seed_by_seed_after_the_steps_that_the_budget_allows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import float8_parity

    out = tmp_path / "runs.json"
    tiny = ["--recipe", str(ROOT / "recipes/track-tiny.yaml"), "--forms", "bfloat16,float32"]
    tiny += ["--depth", "1", "--steps", "3", "--seeds", "1", "2", "--budget-seconds", "0"]
    tiny += ["--set", "clips.count=8", "--set", "clips.validation=1"]
    monkeypatch.setattr(float8_parity, "CURVE", 2)
    monkeypatch.setattr(sys, "argv", ["float8_parity.py", str(out), *tiny])
    float8_parity.main()

    assert "distance of the validation loss after 2 steps" in capsys.readouterr().out
    records = json.loads(out.read_text())
    found, peers = (
        {one["seed"]: one["validation loss"] for one in records if one["form"] == form}
        for form in ("bfloat16", "float32")
    )
    assert found.keys() == peers.keys() == {1, 2}
    assert found != peers
    rows = float8_parity.report(records, "bfloat16", "float32", 1)
    distance = sum(abs(found[seed] - peers[seed]) for seed in (1, 2)) / 2
    assert rows[1]["value"] == pytest.approx(distance, rel=1e-3)
    assert rows[1]["peer_value"] == pytest.approx(abs(peers[1] - peers[2]) / 2**0.5, rel=1e-3)
