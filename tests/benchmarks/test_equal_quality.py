"""Hours for equal loss follow from the track's updates, the cost of an update and the kept projection."""

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCHMARK = "equal_quality"  # the module that the fixture `bench` imports


def record(name: str, seed: int, losses: list[float]) -> dict[str, Any]:
    log = [{"step": 100 * n, "validation_loss": loss} for n, loss in enumerate(losses, start=1)]
    return {"name": name, "seed": seed, "steps": 100 * len(losses), "final_loss": losses[-1], "log": log}


RECORDS = [
    *(record("adamw", seed, [0.5, 0.4, 0.3, 0.2]) for seed in (1, 2, 3)),
    *(record("muon", seed, [0.4, 0.2, 0.1, 0.1]) for seed in (1, 2, 3)),
    record("adamw + routing", 1, [0.5, 0.4, 0.3, 0.25]),
]


def test_updates_are_compared_seed_by_seed(bench: Any) -> None:
    found = bench.fewer_updates(RECORDS, "muon")

    assert (found.mean, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))
    assert bench.fewer_updates(RECORDS, "adamw + routing") is None  # not reached
    slower = [*RECORDS[:5], record("muon", 3, [0.5, 0.3, 0.2, 0.1])]
    wide = bench.fewer_updates(slower, "muon")
    assert wide.low < wide.mean < 2.0 < wide.high


def test_a_routed_update_costs_what_its_tokens_cost(bench: Any) -> None:
    from trainer.model.stdit import XL_2

    routed = bench.cost_of_update(XL_2, muon=False, routed=True)
    assert pytest.approx(routed, abs=0.02) == 0.85 * 0.57 + 0.15  # half of the tokens past 24 of 28 pairs
    assert bench.cost_of_update(XL_2, muon=False, routed=False) == 1.0
    assert 0 < bench.cost_of_update(XL_2, muon=True, routed=False) - 1 < 0.01


def test_encoding_is_not_divided_and_what_a_real_run_loses_is(bench: Any) -> None:
    kept = json.loads((ROOT / "benchmarks" / "results" / "project_speedrun.json").read_text())
    hours = {one["metric"]: one["value"] for one in kept}

    def of(what: str) -> float:
        return sum(float(hours[f"stage-{n}_gpu_hours_{what}"]) for n in (1, 2, 3))

    training = of("training") + of("lost") * of("training") / (of("training") + of("update"))
    rest = of("update") + of("lost") + of("ahead") + of("training") - training

    rows = bench.projected(kept, RECORDS)

    assert [one["metric"].rpartition(", ")[2] for one in rows] == ["muon", "low", "high"]
    assert rows[0]["value"] == pytest.approx(training / 2 * 1.0004 + rest, rel=2e-3)
    assert rows[0]["peer_value"] == pytest.approx(training + rest, rel=1e-3)
    assert "extrapolated" in rows[0]["metric"]
