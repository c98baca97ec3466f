"""Choose the share of the predicted rate that a kept real run reached.

benchmarks/mixture.py keeps one file for each number of GPUs and for float8: `mixture_h200.json`,
`mixture_2xh200.json`, `mixture_h200_float8.json`. The rule: of a precision's files of one GPU model the one
with the newest run counts, of several runs of one day the one that reached least. float8 takes the other
files where it has none of its own.
"""

import json
from pathlib import Path

from rows import RESULTS

REAL_RUN = "tokens/s, real run"  # of benchmarks/mixture.py, over what was predicted
FLOAT8 = "_float8"


def share_of(path: Path) -> tuple[str, float]:
    """Return the day of a kept mixture, and the share of the predicted rate that its run reached."""
    entry = next(one for one in json.loads(path.read_text()) if one["metric"].startswith(REAL_RUN))
    return str(entry["date"]), float(entry["ratio"])


def newest(precision: str, model: str, folder: Path = RESULTS) -> Path:
    """Return the kept mixture that counts for a precision on a GPU model, by the rule above."""
    every = sorted(path for path in folder.glob("mixture_*.json") if model in path.stem)
    of_float8 = [path for path in every if path.stem.endswith(FLOAT8)]
    others = [path for path in every if path not in of_float8]
    found = of_float8 if precision == "float8" and of_float8 else others
    if not found:
        raise SystemExit(f"{folder} has no mixture_{model}.json; run benchmarks/mixture.py with --keep.")

    def rank(path: Path) -> tuple[str, float]:
        day, share = share_of(path)
        return day, -share

    return max(found, key=rank)
