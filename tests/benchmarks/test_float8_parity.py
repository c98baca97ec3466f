"""The parity benchmark compares forms seed by seed, keeps finished runs, and stops before a run too long."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_two_forms_are_compared_seed_by_seed_and_finished_runs_are_not_repeated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import float8_parity

    out = tmp_path / "runs.json"
    tiny = ["--recipe", str(ROOT / "recipes/track-tiny.yaml"), "--forms", "bfloat16,float32"]
    tiny += ["--depth", "1", "--steps", "2", "--batch", "1", "--seeds", "1", "2"]
    tiny += ["--set", "clips.count=8", "--set", "clips.validation=1"]
    monkeypatch.setattr(float8_parity, "TIMED", 2)
    monkeypatch.setattr(sys, "argv", ["float8_parity.py", str(out), *tiny, "--budget-seconds", "0"])
    with pytest.raises(SystemExit) as stopped:
        float8_parity.main()
    assert stopped.value.code == 3
    assert not out.exists()

    monkeypatch.setattr(sys, "argv", ["float8_parity.py", str(out), *tiny])
    float8_parity.main()
    records = json.loads(out.read_text())
    found = {one["seed"]: one["final_loss"] for one in records if one["recipe"]["precision"] == "bfloat16"}
    peers = {one["seed"]: one["final_loss"] for one in records if one["recipe"]["precision"] == "float32"}
    assert found.keys() == peers.keys() == {1, 2}
    assert found != peers
    rows = float8_parity.report(records, "bfloat16", "float32", 2, 1)
    distance = sum(abs(found[seed] - peers[seed]) for seed in (1, 2)) / 2
    assert rows[1]["value"] == pytest.approx(distance, rel=1e-3)
    assert rows[1]["peer_value"] == pytest.approx(abs(peers[1] - peers[2]) / 2**0.5, rel=1e-3)

    capsys.readouterr()
    monkeypatch.setattr(float8_parity.track, "run", None)
    float8_parity.main()
    assert "distance of the validation loss after 2 steps" in capsys.readouterr().out
