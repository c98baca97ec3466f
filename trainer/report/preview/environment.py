"""Command `--print-env`: the NCCL, torch, CUDA and OpenMP variables in force."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainer.cli import commands
from trainer.distributed.environment import apply, in_force, to_text
from vidcurate.errors import InputError


def main(words: Sequence[str]) -> int:
    parser = commands.parser(
        "--print-env",
        "Show the variables of NCCL, torch, CUDA, Gloo and OpenMP in force: value, who set it, what it does.",
        "  python -m trainer --print-env recipes/first-steps.yaml --json",
    )
    parser.add_argument("recipe", type=Path, nargs="?", metavar="RECIPE", help="with its `environment`")
    commands.add_settings(parser, "change one setting of the recipe; may be repeated")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    given: argparse.Namespace = parser.parse_args(words)

    def act() -> None:
        wanted: dict[str, str] = {}
        if given.recipe is not None:
            from trainer.recipe import recipe  # loads torch

            wanted = dict(recipe.load(given.recipe, given.settings).environment)
        elif given.settings:
            raise InputError("--set goes with a RECIPE.")
        apply(wanted)
        found = in_force(wanted)
        report: list[dict[str, Any]] = [asdict(variable) for variable in found]
        commands.print_answer(report, to_text(found), as_json=given.json)

    return commands.run_short_command(act)
