"""The page shows the runs that are kept, and a technique enters with three seeds and a small p."""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BENCHMARK = "track_table"  # the module that the fixture `bench` imports


def record(name: str, seed: int, seconds: float, losses: list[float]) -> dict[str, Any]:
    log = [
        {
            "step": 100 * n,
            "seconds": seconds * n / len(losses),
            "model_flops": 10 * n,
            "validation_loss": loss,
        }
        for n, loss in enumerate(losses, start=1)
    ]
    return {
        "name": name, "seed": seed, "steps": 100 * len(losses), "seconds": seconds, "joules": 400.0 * seconds,
        "model_flops": 10 * len(losses), "final_loss": losses[-1], "prompts": 64, "prompts_followed": 9,
        "log": log,
    }  # fmt: skip


def made(muon: list[float]) -> dict[str, Any]:
    records = [record("adamw", seed, 40.0 + seed, [0.5, 0.4, 0.3, 0.2]) for seed in (1, 2, 3)]
    records += [record("muon", seed, 42.0 + seed, muon) for seed in (1, 2, 3)]
    return {"device": "NVIDIA H200", "steps": 400, "muon_lr_factor": 4.0, "records": records}


def test_an_arm_has_its_times_by_seed_and_p(bench: Any) -> None:
    *_, adamw, muon = bench.table(made([0.4, 0.2, 0.1, 0.1]))

    assert "| 1.00, 1.00, 1.00 | 1.00, 1.00, 1.00 |  |" in adamw
    assert "1.91, 1.91, 1.91" in muon
    assert "2.00, 2.00, 2.00" in muon
    assert "0.1000, 0.1000, 0.1000" in muon
    assert muon.endswith(", enters |")


def test_an_arm_that_does_not_reach_the_loss_does_not_enter(bench: Any) -> None:
    *_, muon = bench.table(made([0.5, 0.4, 0.3, 0.25]))

    assert "not reached, not reached, not reached" in muon
    assert muon.endswith("| – |")


def test_the_page_shows_what_is_kept(bench: Any) -> None:
    kept = [json.loads(path.read_text()) for path in sorted(bench.RECORDS.glob("arms-*.json"))]
    text = bench.PAGE.read_text(encoding="utf-8")

    assert bench.page(text, kept) == text
    other = bench.page(text, [made([0.4, 0.2, 0.1, 0.1])])
    assert "NVIDIA H200, 400 steps a run, target 0.2000" in other
    assert bench.page(other, kept) == text


def test_an_arm_of_settings_says_them_in_its_row(bench: Any) -> None:
    kept = made([0.4, 0.2, 0.1, 0.1])
    kept["records"] += [record("muon, EMA 0.97", seed, 30.0, [0.2, 0.1]) for seed in (1, 2, 3)]
    kept["settings"] = {"muon, EMA 0.97": ["ema_decay=0.97", "optim.warmup_steps=10"]}

    *_, last = bench.table(kept)

    assert last.startswith("| muon, EMA 0.97 | `ema_decay=0.97`, `optim.warmup_steps=10` | 150.0 |")
