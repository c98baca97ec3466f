"""Table of the track's records on docs/track.md, from the runs kept in benchmarks/track_records.

    python benchmarks/track_table.py --enter FILE    # keep what benchmarks/track_arms.py wrote on an H200
    python benchmarks/track_table.py                 # write the table
    python benchmarks/track_table.py --check         # exit 1 if the page shows other figures

An arm's times are those to its seed's AdamW loss; p is Welch's one-sided test on the logarithms of the
seconds to the target, which is the mean of AdamW's final losses. Without p: a seed did not reach the target.
"""

import argparse
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from trainer.training.track.record import LIMIT_P, welch
from trainer.training.track.run import reached

ROOT = Path(__file__).resolve().parents[1]
RECORDS, PAGE = ROOT / "benchmarks" / "track_records", ROOT / "docs" / "track.md"
BEGIN, END = "<!-- benchmarks/track_table.py writes from here -->", "<!-- to here -->"
BASE = "adamw"
CHANGES = {
    "adamw": "the baseline: AdamW, all tokens",
    "muon": "Muon for the matrices of the blocks",
    "adamw + routing": "half of the tubes skip all pairs but the first and the last",
    "muon + routing": "both",
}


def table(kept: dict[str, Any]) -> list[str]:
    """Return the lines of the page for one kept file."""
    by_arm: dict[str, list[dict[str, Any]]] = {}
    for one in kept["records"]:
        by_arm.setdefault(one["name"], []).append(one)
    base = {one["seed"]: one for one in by_arm[BASE]}
    target = statistics.fmean(one["final_loss"] for one in base.values())
    lines = [
        f"{kept['device']}, {kept['steps']} steps a run, target {target:.4f}, Muon's factor "
        f"{kept['muon_lr_factor']:g}, the runs one after the other:",
        "",
        "| arm | what it changes | ms a step | J a step | final loss, by seed | prompts followed "
        "| seconds to AdamW's loss: times fewer | FLOPs: times fewer | p |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, runs in by_arm.items():
        settings = kept.get("settings", {}).get(name, [])
        cells = [name, CHANGES.get(name, ", ".join(f"`{one}`" for one in settings))]
        cells.append(f"{1000 * statistics.fmean(one['seconds'] / one['steps'] for one in runs):.1f}")
        joules = [one["joules"] / one["steps"] for one in runs if one["joules"] is not None]
        cells.append(f"{statistics.fmean(joules):.1f}" if joules else "–")
        cells.append(", ".join(f"{one['final_loss']:.4f}" for one in runs))
        cells.append(", ".join(f"{one['prompts_followed']} of {one['prompts']}" for one in runs))
        for key in ("seconds", "model_flops"):
            cells.append(", ".join(_times(one, base, key) for one in runs))
        cells.append("" if name == BASE else _p(runs, list(base.values()), target))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _times(one: dict[str, Any], base: dict[int, dict[str, Any]], key: str) -> str:
    if one["seed"] not in base:
        return "–"
    found = reached(one["log"], base[one["seed"]]["final_loss"], key)
    return "not reached" if found is None else f"{base[one['seed']][key] / found:.2f}"


def _p(runs: list[dict[str, Any]], base: list[dict[str, Any]], target: float) -> str:
    """Return p of the seconds to the target; AdamW's seeds above it count their whole run."""
    ours = [reached(one["log"], target, "seconds") for one in runs]
    theirs = [reached(one["log"], target, "seconds") or one["seconds"] for one in base]
    if None in ours or len(ours) < 2 or len(theirs) < 2:
        return "–"
    p = welch([math.log(value) for value in ours if value], [math.log(value) for value in theirs])
    return f"{p:.2g}" + (", enters" if p < LIMIT_P and len(runs) >= 3 else "")


def page(text: str, records: list[dict[str, Any]]) -> str:
    """Return the page with the tables of all kept files."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    lines = [line for kept in records for line in [*table(kept), ""]]
    inside = "\n".join(lines) if lines else "No run of the arms on a GPU is kept yet.\n"
    return f"{before}{BEGIN}\n\n{inside}\n{END}{after}"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--enter", type=Path, metavar="FILE")
    arguments.add_argument("--check", action="store_true")
    given = arguments.parse_args()
    RECORDS.mkdir(exist_ok=True)
    if given.enter:
        kept = json.loads(given.enter.read_text())
        name = kept["device"].lower().replace(" ", "-")
        (RECORDS / f"arms-{name}-{kept['steps']}.json").write_text(
            json.dumps(kept, separators=(",", ":")) + "\n"
        )
    records = [json.loads(path.read_text()) for path in sorted(RECORDS.glob("arms-*.json"))]
    text = PAGE.read_text(encoding="utf-8")
    made = page(text, records)
    if given.check and made != text:
        sys.exit("docs/track.md does not show what is kept; run `python benchmarks/track_table.py`.")
    if not given.check:
        PAGE.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
