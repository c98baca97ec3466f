"""`python -m trainer report RUN…`: one HTML file that shows a run, or several over each other.

It is drawn from the run's diaries, opens without a network and holds no script.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from trainer import terminal
from vidcurate.errors import InputError, StorageError

PAGE = "report.html"
EXAMPLE = """\
  python -m trainer report runs/smoke
  python -m trainer report runs/smoke --json
  python -m trainer report runs/first runs/second --out both.html
"""


def _act(given: argparse.Namespace) -> None:
    from trainer.report.page import page
    from trainer.report.read import read

    if len(given.runs) > 1 and given.out is None and not given.json:
        raise InputError(
            f"{len(given.runs)} runs: say with --out where their page goes, such as --out both.html."
        )
    runs = [read(run) for run in given.runs]
    out = given.out or given.runs[0] / PAGE
    if given.out is not None or not given.json:
        text = page(runs, out.parent)
        partial = out.with_name(f".{out.name}.partial")
        try:
            partial.write_text(text, encoding="utf-8", errors="replace")
            partial.replace(out)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise StorageError(f"{out}: cannot be written ({error.strerror}).") from error
    if given.json:
        print(json.dumps({"runs": [run.as_json() for run in runs]}, indent=1))
        return
    for run in runs:
        found = run.ledger
        good = f", goodput {100 * found.goodput:.1f} % of {found.wall_seconds:,.0f} s" if found else ""
        print(f"{run.name}: {len(run.lines):,} updates, {len(run.events):,} events{good}")
    print(out)


def main(words: Sequence[str] | None = None) -> int:
    parser = terminal.parser("trainer report", "Write one HTML page that shows a run, or several.", EXAMPLE)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run folders")
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"the page (default: RUN/{PAGE})")
    parser.add_argument(
        "--json", action="store_true", help="print the figures as JSON; write a page only with --out"
    )
    given = parser.parse_args(words)
    return terminal.end(lambda: _act(given))
