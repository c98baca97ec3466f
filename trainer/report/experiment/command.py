"""Experiment command: train arms with seeds, and write a table and a plot of them.

`python -m trainer experiment FILE`. The same command resumes; once all runs are done, it writes the same
table.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.cli import commands
from vidcurate.errors import InputError

EXAMPLE = """\
  python -m trainer experiment recipes/restarts.yaml --dry-run
  python -m trainer experiment recipes/restarts.yaml --jobs 2
  python -m trainer experiment recipes/restarts.yaml --out runs/small --set seeds=[1,2] --set recipe.stages.0.steps=20
"""  # noqa: E501


def _parser() -> argparse.ArgumentParser:
    parser = commands.parser(
        "experiment",
        "Train the arms of an experiment, each with its seeds, and write table.md, table.json and plot.svg.",
        EXAMPLE,
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the experiment, YAML or JSON")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="the folder of runs and answer (default: the recipe's output)"
    )
    commands.add_settings(
        parser, "change one setting, such as seeds=[1] or recipe.stages.0.steps=20; may be repeated"
    )
    parser.add_argument(
        "--scale",
        dest="scales",
        action="append",
        default=[],
        metavar="NAME",
        help="take the settings of this scale of the file first; may be repeated",
    )
    parser.add_argument(
        "--arm",
        dest="arms",
        action="append",
        default=[],
        metavar="NAME",
        help="only this one; may be repeated",
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at the same time (1)")
    parser.add_argument(
        "--limit-minutes", type=float, default=120.0, metavar="M", help="longest time of one start (120)"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be run; write nothing")
    parser.add_argument(
        "--print",
        dest="printed",
        metavar="NAME",
        help="print as JSON the last recipe of an arm, or of `experiment` all settings; run nothing",
    )
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    commands.add_traceback(parser)
    return parser


def _load(given: argparse.Namespace) -> Any:
    with commands.loading():
        from trainer.report.experiment.spec import ExperimentSpec
        from vidcurate.recipe import recipe as strict

    settings: list[str] = []
    has = strict.load(given.file, ExperimentSpec).scales if given.scales else {}
    for name in given.scales:
        if name not in has:
            raise InputError(f"--scale {name}: {given.file} has {', '.join(has) or 'none'}.")
        settings += [f"{key}={json.dumps(value)}" for key, value in has[name].items()]
    return strict.load(given.file, ExperimentSpec, settings=[*settings, *given.settings])


def _print(spec: Any, chains: Sequence[Any], name: str) -> None:
    from trainer.recipe import recipe as recipes
    from trainer.report.experiment.spec import EXPERIMENT

    found = next((chain for chain in chains if chain.arm.name == name), None)
    if found is None and name != EXPERIMENT:
        arms = ", ".join(arm.name for arm in spec.arms)
        raise InputError(f"--print {name}: is no arm; there are {arms}, and {EXPERIMENT}.")
    print(json.dumps(recipes.to_json(found.starts[-1].recipe if found else spec), indent=1))


def _forecast(chains: Sequence[Any], out: Path) -> dict[str, Any]:
    from trainer.report.experiment import run_arms

    return {
        "out": str(out),
        "chains": [
            {
                "arm": chain.arm.name,
                "seed": chain.seed,
                "updates": chain.num_steps,
                "starts": len(chain.starts),
                "starts_done": sum(map(run_arms.is_done, chain.starts)),
            }
            for chain in chains
        ],
    }


def _run(given: argparse.Namespace) -> int:
    # torch is imported here, so that --help and a typing error answer at once.
    from dataclasses import asdict

    with commands.loading():
        from trainer.report.experiment import arms, page, results, run_arms
        from trainer.run_folder.jsonl import to_json_value

    if given.jobs < 1 or given.limit_minutes <= 0:
        raise InputError(f"--jobs {given.jobs} --limit-minutes {given.limit_minutes:g}: both are above 0.")
    spec = _load(given)
    out = given.out or spec.recipe.output
    if given.arms:
        unknown = sorted(set(given.arms) - {arm.name for arm in spec.arms})
        if unknown:
            has = ", ".join(arm.name for arm in spec.arms)
            raise InputError(f"--arm {unknown[0]}: is no arm; there are {has}.")
        spec = spec.model_copy(update={"arms": tuple(arm for arm in spec.arms if arm.name in given.arms)})
    chains = arms.chains(spec, out)
    if given.printed is not None:
        _print(spec, chains, given.printed)
        return 0
    if given.dry_run:
        forecast = _forecast(chains, out)
        if given.json:
            print(json.dumps(forecast, indent=1))
            return 0
        for one in forecast["chains"]:
            print(
                f"{one['arm']}, seed {one['seed']}: {one['updates']:,} updates, "
                f"{one['starts_done']} of {one['starts']} starts done"
            )
        return 0

    def tell(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    run_arms.run(chains, jobs=given.jobs, limit_seconds=60 * given.limit_minutes, tell=tell)
    tracks = [results.track(chain) for chain in chains]
    rows = results.rows(chains, tracks, spec.window_steps)
    page.write_page(spec, rows, tracks, out)
    if given.json:
        print(json.dumps(to_json_value({"out": str(out), "arms": [asdict(row) for row in rows]})))
    else:
        print(page.markdown(spec, rows), end="")
        print(f"\n{out / 'table.md'}, {out / 'table.json'}, {out / 'plot.svg'}")
    return 0


def main(words: Sequence[str] | None = None) -> int:
    return commands.run_long_command(_run, _parser().parse_args(words), "with the next update")
