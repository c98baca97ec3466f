"""Track command: `python -m trainer track RECIPE` writes a record for each seed.

    python -m trainer track recipes/track.yaml --seed 1 --seed 2 --seed 3
    python -m trainer track recipes/track.yaml --compare runs/baseline

The same command resumes: a seed whose record is there, of the same recipe, is not run again.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from trainer.cli import commands, exit_codes
from vidcurate.errors import InputError, StateError, counted
from vidcurate.executor.die_with_parent import die_with_parent

EXAMPLE = """\
  python -m trainer track recipes/track-tiny.yaml
  python -m trainer track recipes/track.yaml --seed 1 --seed 2 --seed 3
  python -m trainer track recipes/track.yaml --set name=muon --set optim.muon=1.0 --compare runs/track
"""


def _parser() -> argparse.ArgumentParser:
    parser = commands.parser(
        "track", "Run the track: train to a target loss on generated clips, and write a record.", EXAMPLE
    )
    parser.add_argument("recipe", type=Path, metavar="RECIPE", help="the track's recipe, YAML or JSON")
    commands.add_settings(parser, "change one setting; may be repeated")
    parser.add_argument(
        "--seed",
        dest="seeds",
        action="append",
        type=int,
        default=[],
        metavar="N",
        help="run this seed; may be repeated (default: the recipe's)",
    )
    parser.add_argument(
        "--together",
        type=int,
        default=1,
        metavar="N",
        help="seeds at the same time, a process each; seconds and joules are then not a run's own (1)",
    )
    parser.add_argument(
        "--compare",
        type=Path,
        metavar="DIR",
        help="a folder with the records to beat: print times faster and p",
    )
    parser.add_argument("--base", default="baseline", metavar="NAME", help="name of those records (baseline)")
    parser.add_argument("--beside", type=int, default=0, help=argparse.SUPPRESS)  # runs at the same time
    parser.add_argument("--parent", type=int, default=0, help=argparse.SUPPRESS)  # process to end with
    parser.add_argument("--no-graphs", action="store_true", help="capture no CUDA graphs")
    parser.add_argument("--json", action="store_true", help="print the records as JSON")
    commands.add_traceback(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return commands.run_long_command(_run, _parser().parse_args(arguments), "with the next seed")


def _run(given: argparse.Namespace) -> int:
    if given.parent:
        die_with_parent(given.parent)
    with commands.loading():
        from trainer.training.track import record
        from trainer.training.track.spec import TrackRecipe
        from vidcurate.recipe import recipe as strict

    wanted = strict.load(given.recipe, TrackRecipe, settings=given.settings)
    seeds = given.seeds or [wanted.seed]
    if len(set(seeds)) != len(seeds) or given.together < 1:
        raise InputError("--seed names a seed twice, or --together is below 1; give each seed once.")
    recipes = [wanted.model_copy(update={"seed": seed}) for seed in seeds]
    missing = [one for one in recipes if not _is_done(one)]
    if given.together > 1 and len(missing) > 1:
        _run_together(given, [one.seed for one in missing])
    elif missing:
        _run_in_turn(missing, graphs=not given.no_graphs, beside=given.beside)
    done = [record.read_record(record.record_path(one.output, one.name, one.seed)) for one in recipes]
    _print(given, done)
    return exit_codes.DONE


def _is_done(recipe: Any) -> bool:
    """Return whether the record of this seed is there. Raises StateError for one of another recipe."""
    from trainer.training.track import record

    path = record.record_path(recipe.output, recipe.name, recipe.seed)
    if not path.exists():
        return False
    kept = record.read_record(path)["recipe"]
    now = json.loads(recipe.model_dump_json(exclude={"output"}))  # the folder may have been moved
    for key in now:
        if kept.get(key) != now[key]:
            raise StateError(
                f"{path}: is the record of another recipe ({key} was {kept.get(key)!r}, is {now[key]!r}); "
                "name the run otherwise: --set name=NAME"
            )
    return True


def _run_in_turn(recipes: Sequence[Any], *, graphs: bool, beside: int) -> None:
    with commands.loading():
        import torch

        from trainer.training.track import record, run

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with ExitStack() as locks:
        for recipe in recipes:  # at the start: another command, or a folder that cannot be written
            locks.enter_context(record.alone(recipe.output, recipe.name, recipe.seed))
        data = run.load_data(recipes[0], device)
        print(
            f"{counted(len(data.clips.scenes), 'clip')}, sha256 {data.clips.sha256[:12]} …", file=sys.stderr
        )
        for recipe in recipes:
            found = run.run(recipe, data, graphs=graphs, on_line=partial(_tell, recipe))
            path = record.write_record(recipe.output, found | {"beside": beside})
            print(f"wrote {path}", file=sys.stderr)


def _tell(recipe: Any, line: dict[str, Any]) -> None:
    left = line["seconds"] / line["step"] * (recipe.steps - line["step"])
    print(
        f"seed {recipe.seed}, step {line['step']}/{recipe.steps}: loss {line['loss']:.4f}, validation "
        f"{line['validation_loss']:.4f}, {line['tokens'] / line['seconds']:,.0f} tokens/s, "
        f"{left:.0f} s left",
        file=sys.stderr,
        flush=True,
    )


def _run_together(given: argparse.Namespace, seeds: Sequence[int]) -> None:
    """Run seeds in processes of their own, `given.together` at a time. Raises StateError if one fails.

    Ctrl-C goes to this process alone, which ends the others: one line for all.
    """
    command = [sys.executable, *commands.SAFE_PATH, "-m", "trainer", "track", str(given.recipe)]
    command += [word for value in given.settings for word in ("--set", value)]
    command += ["--no-graphs"] * given.no_graphs
    command += ["--parent", str(os.getpid())]
    for first in range(0, len(seeds), given.together):
        group = seeds[first : first + given.together]
        beside = ["--beside", str(len(group) - 1)]
        running: list[tuple[int, subprocess.Popen[bytes]]] = []
        try:
            for seed in group:
                words = [*command, *beside, "--seed", str(seed)]
                one = subprocess.Popen(words, stdout=subprocess.DEVNULL, start_new_session=True)
                running.append((seed, one))
            failed = [seed for seed, process in running if process.wait()]
        finally:
            for _, process in running:
                process.terminate()
        if failed:
            raise StateError(f"seed {failed[0]} failed; its error is above. The same command runs it again.")


def _print(given: argparse.Namespace, done: Sequence[dict[str, Any]]) -> None:
    from trainer.training.track import record

    compared = None
    if given.compare is not None:
        found = [record.read_record(path) for path in sorted(given.compare.glob("*.json"))]
        base = [one for one in found if one["name"] == given.base]
        if not base:
            raise InputError(f"--compare {given.compare}: has no records named {given.base}.")
        compared = record.compare(done, base)
    if given.json:
        answer: dict[str, Any] = {"records": [*done]}
        if compared is not None:
            answer["compared"] = {"times": compared.times, "p": compared.p, "why_not": compared.why_not}
        print(json.dumps(answer))
        return
    for one in done:
        reached = one["seconds_to_target"]
        print(
            f"{one['name']}, seed {one['seed']}: loss {one['final_loss']:.4f} after {one['seconds']:.1f} s"
            + (f", target after {reached:.1f} s" if reached is not None else "")
            + f"; {one['prompts_followed']} of {one['prompts']} prompts followed"
        )
    if compared is not None:
        times = "" if compared.times is None else f"{compared.times:.2f} times faster, p = {compared.p:.2g}; "
        print(times + ("enters the table" if compared.enters else f"does not enter: {compared.why_not}"))
