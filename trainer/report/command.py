"""Report command: `python -m trainer report RUN…` writes one HTML file.

The page is drawn from the run's log files, opens without a network and contains no script.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from trainer.cli import commands
from trainer.cli.output_paths import output_file
from vidcurate.errors import InputError, counted
from vidcurate.storage import atomic_file

PAGE = "report.html"
EXAMPLE = """\
  python -m trainer report runs/smoke
  python -m trainer report runs/smoke --json
  python -m trainer report runs/first runs/second --out both.html
  python -m trainer report runs/smoke --cost-table costs.json
"""


def _run(given: argparse.Namespace) -> None:
    with commands.loading():
        from trainer.report.balance import balance, new_costs, to_text
        from trainer.report.page import page
        from trainer.report.read import read_run

    if len(given.runs) > 1 and given.out is None and not given.json:
        raise InputError(
            f"{len(given.runs)} runs: say with --out where their page goes, such as --out both.html."
        )
    if len(given.runs) > 1 and given.cost_table is not None:
        raise InputError(f"--cost-table: a cost table is that of one run, and there are {len(given.runs)}.")
    for run in given.runs:
        if not run.is_dir():
            raise InputError(f"{run}: no such run folder.")
    runs = [read_run(run) for run in given.runs]
    balances = [balance(run.lines, run.events) for run in runs]
    if given.cost_table is not None:
        atomic_file.write_text(
            given.cost_table, new_costs(runs[0]).model_dump_json(indent=1) + "\n", is_flushed=False
        )
    out = given.out or given.runs[0] / PAGE
    if given.out is not None or not given.json:
        atomic_file.write_text(out, page(runs, out.parent), is_flushed=False)
    if given.json:
        reported = [
            run.to_json() | {"balance": asdict(found) if found else None}
            for run, found in zip(runs, balances, strict=True)
        ]
        print(json.dumps({"runs": reported}, indent=1))
        return
    for run, measured in zip(runs, balances, strict=True):
        found = run.ledger
        good = f", goodput {100 * found.goodput:.1f} % of {found.wall_seconds:,.0f} s" if found else ""
        print(f"{run.name}: {counted(len(run.lines), 'update')}, {counted(len(run.events), 'event')}{good}")
        for line in to_text(measured) if measured else ():
            print(f"  {line}")
    print(out)
    if given.cost_table is not None:
        print(given.cost_table)


def main(words: Sequence[str] | None = None) -> int:
    parser = commands.parser("report", "Write one HTML page that shows a run, or several.", EXAMPLE)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run folders")
    parser.add_argument("--out", type=output_file, metavar="FILE", help=f"the page (default: RUN/{PAGE})")
    parser.add_argument(
        "--json", action="store_true", help="print the figures as JSON; write a page only with --out"
    )
    parser.add_argument(
        "--cost-table",
        type=output_file,
        metavar="FILE",
        help="write the seconds of a clip of each bucket, as the run measured them, for buckets.cost_table",
    )
    given = parser.parse_args(words)
    return commands.run_short_command(lambda: _run(given))
