"""Choose the share of the predicted rate that a kept real run reached.

benchmarks/mixture.py keeps one file for each number of GPUs and for float8: `mixture_h200.json`,
`mixture_2xh200.json`, `mixture_h200_float8.json`. The rule: of a precision's files of one GPU model the one
with the most GPUs counts, as ranks wait for each other and the speed run has many. float8 takes the other
files where it has none of its own.
"""

import json
import re
from pathlib import Path

from rows import RESULTS

REAL_RUN = "tokens/s, real run"  # of benchmarks/mixture.py, over what was predicted
FLOAT8 = "_float8"


def share_of(path: Path) -> tuple[str, float]:
    """Return the day of a kept mixture, and the share of the predicted rate that its run reached."""
    entry = next(one for one in json.loads(path.read_text()) if one["metric"].startswith(REAL_RUN))
    return str(entry["date"]), float(entry["ratio"])


def most_gpus(precision: str, model: str, folder: Path = RESULTS) -> Path:
    """Return the kept mixture that counts for a precision on a GPU model, by the rule above."""
    named = re.compile(rf"mixture_(?:(\d+)x)?{model}({FLOAT8})?")
    every = [(found, path) for path in folder.glob("mixture_*.json") if (found := named.fullmatch(path.stem))]
    of_float8 = [(found, path) for found, path in every if found[2]]
    others = [(found, path) for found, path in every if not found[2]]
    counted = of_float8 if precision == "float8" and of_float8 else others
    if not counted:
        raise SystemExit(f"{folder} has no mixture_{model}.json; run benchmarks/mixture.py with --keep.")
    return max(counted, key=lambda one: int(one[0][1] or 1))[1]
