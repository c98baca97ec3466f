"""Write the tables of docs/track.md from the runs kept in track_records.

    python benchmarks/track_table.py --enter FILE         # keep what benchmarks/track_arms.py wrote
    python benchmarks/track_table.py --enter FILE --alone # and drop what was kept before
    python benchmarks/track_table.py                      # write the tables
    python benchmarks/track_table.py --check              # exit 1 if the page shows other figures

An arm's times are those to its seed's AdamW loss; p is Welch's one-sided test on the logarithms of the
seconds to the target, which is the mean of AdamW's final losses. Without p: a seed did not reach the target.
Of the newest file with all four arms a second table says what each technique gave, alone and on top of the
other. Each table names its day and the commit of its code; where the code that computes (COMPUTES) has
changed since, writing the tables marks the kept file, and its table says so.
"""

import argparse
import datetime
import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rows import RESULTS, changes, commit

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from trainer.training.track.record import LIMIT_P, welch
from trainer.training.track.run import reached

ROOT = Path(__file__).resolve().parents[1]
RECORDS, PAGE = ROOT / "benchmarks" / "track_records", ROOT / "docs" / "track.md"
BEGIN, END = "<!-- benchmarks/track_table.py writes from here -->", "<!-- to here -->"
BASE = "adamw"
GOAL = 3.0  # times fewer seconds than AdamW to its loss, three seeds each
COMMAND = "python benchmarks/track_arms.py"
COMPUTES = (
    "trainer/model/",
    "trainer/training/",
    "trainer/distributed/",
)  # code that a run's figures rest on
CHANGES = {
    "adamw": "the baseline: AdamW, all tokens",
    "muon": "Muon for the matrices of the blocks",
    "adamw + routing": "half of the tubes skip all pairs but the first and the last",
    "muon + routing": "both",
}

PAIRS = (  # what a technique is over: alone, together, and on top of the other
    ("muon", "adamw"),
    ("adamw + routing", "adamw"),
    ("muon + routing", "adamw"),
    ("muon + routing", "muon"),
    ("muon + routing", "adamw + routing"),
)
Record = dict[str, Any]


def measured(kept: dict[str, Any]) -> str:
    """Return the day of a kept file's last run and the commit of its code."""
    last = max(one["time"] for one in kept["records"])
    day = datetime.datetime.fromtimestamp(last, datetime.UTC).date()
    since = ", changed since" if kept.get("code_changed") else ""
    return f"{day.isoformat()}, code of {kept.get('commit') or 'an unknown commit'}{since}"


def arms_of(kept: dict[str, Any]) -> dict[str, list[Record]]:
    """Return the runs by their arm."""
    by_arm: dict[str, list[Record]] = {}
    for one in kept["records"]:
        by_arm.setdefault(one["name"], []).append(one)
    return by_arm


def table(kept: dict[str, Any]) -> list[str]:
    """Return the lines of the page for one kept file."""
    by_arm = arms_of(kept)
    base = {one["seed"]: one for one in by_arm[BASE]}
    target = statistics.fmean(one["final_loss"] for one in base.values())
    first = by_arm[BASE][0]
    lines = [
        f"{kept['device']}, {measured(kept)}: {first['parameters'] / 1e6:.0f} M parameters, {kept['steps']} "
        f"steps a run, target {target:.4f}, AdamW's rate {first['recipe']['optim']['lr']:g}, Muon's "
        f"factor {kept['muon_lr_factor']:g}, the runs one after the other:",
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


def _p(runs: Sequence[Record], base: Sequence[Record], target: float) -> str:
    """Return p of the seconds to the target; the base's seeds above it count their whole run."""
    ours = [reached(one["log"], target, "seconds") for one in runs]
    theirs = [reached(one["log"], target, "seconds") or one["seconds"] for one in base]
    if None in ours or len(ours) < 2 or len(theirs) < 2:
        return "–"
    p = welch([math.log(value) for value in ours if value], [math.log(value) for value in theirs])
    return f"{p:.2g}" + (", enters" if p < LIMIT_P and len(runs) >= 3 else "")


def times_of(by_arm: dict[str, list[Record]], arm: str, base: str, key: str) -> list[float | None]:
    """Return, seed by seed, how many times fewer of `key` an arm needs than `base` to the seed's AdamW loss.

    None: the arm did not reach it. A base that did not counts its whole run.
    """
    losses = {one["seed"]: one["final_loss"] for one in by_arm[BASE]}
    bases = {one["seed"]: one for one in by_arm[base]}
    found: list[float | None] = []
    for one in by_arm[arm]:
        if one["seed"] not in losses or one["seed"] not in bases:
            continue
        ours = reached(one["log"], losses[one["seed"]], key)
        other = bases[one["seed"]]
        theirs = reached(other["log"], losses[one["seed"]], key) or other[key]
        found.append(theirs / ours if ours and theirs else None)
    return found


def _mean(times: Sequence[float | None]) -> str:
    """Return geometric mean and range over seeds, or how many seeds did not get there."""
    known = [one for one in times if one]
    if len(known) < len(times) or not known:
        return f"not reached by {len(times) - len(known)} of {len(times)} seeds"
    return f"{statistics.geometric_mean(known):.2f} ({min(known):.2f} to {max(known):.2f})"


def gains(kept: dict[str, Any]) -> list[str]:
    """Return the lines that say what each technique gave, alone and on top of the other."""
    by_arm = arms_of(kept)
    target = statistics.fmean(one["final_loss"] for one in by_arm[BASE])
    lines = [
        f"What each technique gave ({kept['device']}, {measured(kept)}: {kept['steps']} steps a run): times "
        "fewer to AdamW's loss, geometric mean of the seeds and their range.",
        "",
        "| technique | over | seconds | joules | FLOPs | p | verdict |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for arm, base in PAIRS:
        seconds = times_of(by_arm, arm, base, "seconds")
        cells = [_mean(times_of(by_arm, arm, base, key)) for key in ("seconds", "joules", "model_flops")]
        p, _, enters = _p(by_arm[arm], by_arm[base], target).partition(", ")
        known = [one for one in seconds if one]
        gave = bool(known) and statistics.geometric_mean(known) > 1
        verdict = "gave it" if enters else "not shown" if gave else "gave nothing"
        lines.append(f"| {' | '.join([arm, base, *cells, p, verdict])} |")
    both = times_of(by_arm, "muon + routing", BASE, "seconds")
    known = [one for one in both if one]
    is_met = len(known) == len(both) >= 3 and statistics.geometric_mean(known) >= GOAL
    said = "met" if is_met else "missed"
    lines += ["", f"The goal of {GOAL:g} times fewer seconds with three seeds: {_mean(both)}, {said}."]
    return lines


def hours(rows: Sequence[Record]) -> list[str]:
    """Return the line about the speed run's hours for equal loss, from benchmarks/equal_quality.py's rows."""
    found = {one["metric"].removeprefix("extrapolated hours for equal loss, "): one for one in rows}
    parts = [
        f"{one['value']:,.0f} ({found[f'{arm}, low']['value']:,.0f} to "
        f"{found[f'{arm}, high']['value']:,.0f}) with {arm}"
        for arm, one in found.items()
        if f"{arm}, low" in found
    ]
    if not parts:
        return []
    file = next(word for word in rows[0]["command"].split() if word.endswith(".json"))
    whole = rows[0]["peer_value"]
    return [
        f"What the ratios of `{Path(file).name}` would be worth in the {whole:,.0f} hours of the speed run, "
        f"by name an extrapolation (`python benchmarks/equal_quality.py FILE --keep`): {'; '.join(parts)}.",
        "",
    ]


def page(text: str, records: list[dict[str, Any]], rows: Sequence[Record] = ()) -> str:
    """Return the page with the tables of all kept files, newest first, and what the techniques gave."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    ordered = sorted(records, key=lambda kept: -max(one["time"] for one in kept["records"]))
    whole = [kept for kept in ordered if CHANGES.keys() <= arms_of(kept).keys()]
    lines = [line for kept in whole[:1] for line in [*gains(kept), ""]] + hours(rows)
    lines += [line for kept in ordered for line in [*table(kept), ""]]
    inside = "\n".join(lines) if lines else "No run of the arms on a GPU is kept yet.\n"
    return f"{before}{BEGIN}\n\n{inside}\n{END}{after}"


def write(path: Path, kept: dict[str, Any]) -> None:
    """Write a kept file."""
    path.write_text(json.dumps(kept, separators=(",", ":")) + "\n")


def enter(path: Path, alone: bool) -> None:
    """Keep the file of benchmarks/track_arms.py, by its device and steps; with `alone` drop the others."""
    kept = json.loads(path.read_text())
    kept.setdefault("commit", commit())
    name = kept["device"].lower().replace(" ", "-")
    RECORDS.mkdir(exist_ok=True)
    for other in RECORDS.glob("arms-*.json") if alone else ():
        other.unlink()
    write(RECORDS / f"arms-{name}-{kept['steps']}.json", kept)


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--enter", type=Path, metavar="FILE")
    arguments.add_argument("--alone", action="store_true", help="drop the files that were kept before")
    arguments.add_argument("--check", action="store_true")
    given = arguments.parse_args()
    if given.enter:
        enter(given.enter, given.alone)
    paths = sorted(RECORDS.glob("arms-*.json"))
    records = [json.loads(path.read_text()) for path in paths]
    for path, kept in zip(paths, records, strict=True):
        found = changes(kept.get("commit", ""), COMMAND) or []
        since = [name for name in found if name.startswith(COMPUTES)]
        if not since or kept.get("code_changed"):
            continue
        print(f"{path.name}: changed since {kept['commit']}: {', '.join(since)}")
        if not given.check:
            kept["code_changed"] = True
            write(path, kept)
    text = PAGE.read_text(encoding="utf-8")
    made = page(text, records, json.loads((RESULTS / "equal_quality.json").read_text()))
    if given.check and made != text:
        sys.exit("docs/track.md does not show what is kept; run `python benchmarks/track_table.py`.")
    if not given.check:
        PAGE.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
