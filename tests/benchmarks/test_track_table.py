"""The page shows the runs that are kept, and a technique enters with three seeds and a small p."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCHMARK = "track_table"  # the module that the fixture `bench` imports


def record(name: str, seed: int, seconds: float, losses: list[float]) -> dict[str, Any]:
    log = [
        {
            "step": 100 * n,
            "seconds": seconds * n / len(losses),
            "joules": 400.0 * seconds * n / len(losses),
            "model_flops": 10 * n,
            "validation_loss": loss,
        }
        for n, loss in enumerate(losses, start=1)
    ]
    return {
        "name": name, "seed": seed, "steps": 100 * len(losses), "seconds": seconds, "joules": 400.0 * seconds,
        "model_flops": 10 * len(losses), "final_loss": losses[-1], "prompts": 64, "prompts_followed": 9,
        "time": 1_795_457_554, "log": log, "parameters": 39_569_248, "recipe": {"optim": {"lr": 0.002}},
    }  # fmt: skip


def made(muon: list[float]) -> dict[str, Any]:
    records = [record("adamw", seed, 40.0 + seed, [0.5, 0.4, 0.3, 0.2]) for seed in (1, 2, 3)]
    records += [record("muon", seed, 42.0 + seed, muon) for seed in (1, 2, 3)]
    return {"device": "NVIDIA H200", "steps": 400, "muon_lr_factor": 4.0, "commit": "abc1234",
            "records": records}  # fmt: skip


def test_an_arm_has_its_times_by_seed_and_p(bench: Any) -> None:
    heading, *_, adamw, muon = bench.table(made([0.4, 0.2, 0.1, 0.1]))

    assert "40 M parameters, 400 steps a run, target 0.2000, AdamW's rate 0.002, Muon's factor 4" in heading
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
    rows = json.loads((ROOT / "benchmarks" / "results" / "equal_quality.json").read_text())
    text = bench.PAGE.read_text(encoding="utf-8")

    assert bench.page(text, kept, rows) == text, "run `python benchmarks/track_table.py`"
    other = bench.page(text, [made([0.4, 0.2, 0.1, 0.1])])
    assert "2026-11-23, code of abc1234: 40 M parameters, 400 steps a run, target 0.2000" in other
    assert "What each technique gave" not in other, "two arms are missing"
    assert bench.page(other, kept, rows) == text


def test_an_arm_of_settings_says_them_in_its_row(bench: Any) -> None:
    kept = made([0.4, 0.2, 0.1, 0.1])
    kept["records"] += [record("muon, EMA 0.97", seed, 30.0, [0.2, 0.1]) for seed in (1, 2, 3)]
    kept["settings"] = {"muon, EMA 0.97": ["ema_decay=0.97", "optim.warmup_steps=10"]}

    *_, last = bench.table(kept)

    assert last.startswith("| muon, EMA 0.97 | `ema_decay=0.97`, `optim.warmup_steps=10` | 150.0 |")


def four_arms(both: float) -> dict[str, Any]:
    kept = made([0.4, 0.2, 0.1, 0.1])
    kept["records"] += [record("adamw + routing", seed, 40.0, [0.5, 0.4, 0.3, 0.25]) for seed in (1, 2, 3)]
    kept["records"] += [record("muon + routing", seed, both, [0.4, 0.2, 0.1, 0.1]) for seed in (1, 2, 3)]
    return kept


def test_each_technique_says_what_it_gave_alone_and_on_top_of_the_other(bench: Any) -> None:
    lines = {tuple(line.split(" | ")[:2]): line for line in bench.gains(four_arms(20.0))}

    assert "| 2.05" not in lines[("| muon", "adamw")]
    assert "1.91 (1.91 to 1.91)" in lines[("| muon", "adamw")]
    assert lines[("| muon", "adamw")].endswith("| gave it |")
    assert "not reached by 3 of 3 seeds" in lines[("| adamw + routing", "adamw")]
    assert lines[("| adamw + routing", "adamw")].endswith("| gave nothing |")
    assert "2.20 (2.15 to 2.25)" in lines[("| muon + routing", "muon")]
    # Routing alone missed the loss: Muon's gain over it counts its whole run.
    assert "4.00 (4.00 to 4.00)" in lines[("| muon + routing", "adamw + routing")]


def test_the_goal_is_met_by_three_seeds_that_are_three_times_faster(bench: Any) -> None:
    assert bench.gains(four_arms(20.0))[-1].endswith("4.20 (4.10 to 4.30), met.")
    assert bench.gains(four_arms(30.0))[-1].endswith("2.80 (2.73 to 2.87), missed.")
    two = four_arms(20.0)
    two["records"] = [one for one in two["records"] if one["seed"] < 3]
    assert bench.gains(two)[-1].endswith("missed.")


def test_a_table_says_that_its_code_has_changed_since(bench: Any) -> None:
    kept = made([0.4, 0.2, 0.1, 0.1])

    assert "changed since" not in bench.table(kept)[0]
    assert (
        "code of abc1234, changed since: 40 M parameters, 400 steps"
        in bench.table({**kept, "code_changed": True})[0]
    )


@pytest.mark.parametrize(
    ("changed", "is_marked"),
    [
        (["trainer/model/kernels/block.py"], True),
        (["vidcurate/recipe/recipe.py", "benchmarks/track_arms.py"], False),
        (None, False),  # the commit is not there
    ],
)
def test_a_kept_file_is_marked_when_code_that_computes_has_changed(
    bench: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changed: list[str] | None,
    is_marked: bool,
) -> None:
    page, path = tmp_path / "track.md", tmp_path / "arms-some-400.json"
    page.write_text(f"before\n{bench.BEGIN}\n{bench.END}\nafter\n")
    path.write_text(json.dumps(made([0.4, 0.2, 0.1, 0.1])))
    monkeypatch.setattr(bench, "RECORDS", tmp_path)
    monkeypatch.setattr(bench, "PAGE", page)
    monkeypatch.setattr(bench, "changes", lambda *_: changed)
    monkeypatch.setattr(sys, "argv", ["track_table.py"])

    bench.main()

    assert ("changed since" in page.read_text()) == is_marked
    assert json.loads(path.read_text()).get("code_changed", False) == is_marked


def test_a_new_file_is_kept_with_its_commit_and_can_replace_the_others(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(bench, "commit", lambda: "def5678")
    given, older = tmp_path / "arms.json", {**made([0.4, 0.2]), "steps": 300}
    given.write_text(json.dumps(older))
    bench.enter(given, alone=False)
    given.write_text(json.dumps({key: one for key, one in four_arms(20.0).items() if key != "commit"}))

    bench.enter(given, alone=True)

    (path,) = (tmp_path / "records").iterdir()
    assert path.name == "arms-nvidia-h200-400.json"
    assert json.loads(path.read_text())["commit"] == "def5678"
