"""Inspect command: arguments and output of `python -m trainer inspect RUN`.

torch is imported when the command runs, so that --help and a wrong argument answer at once.
"""

import argparse
import json
from collections.abc import Sequence
from typing import Any

from trainer.cli import commands
from vidcurate.errors import InputError, printable


def _as_text(report: dict[str, Any], indent: str = "") -> list[str]:
    lines = []
    for key, value in report.items():
        if isinstance(value, dict) and value:
            lines += [f"{indent}{key}:", *_as_text(value, indent + "  ")]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            lines += [f"{indent}{key}:", *(f"{indent}  {json.dumps(entry)}" for entry in value)]
        else:
            lines.append(f"{indent}{key}: {', '.join(map(str, value)) if isinstance(value, list) else value}")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = commands.parser(
        "inspect",
        "Say what a run or a checkpoint holds, or which clips a step reads.",
        "  python -m trainer inspect runs/smoke\n"
        "  python -m trainer inspect runs/smoke/step-00000020 --json\n"
        "  python -m trainer inspect runs/smoke --step 7\n",
    )
    commands.add_run(parser)
    parser.add_argument(
        "--step", type=int, metavar="N", help="list the clips of update number N, with captions"
    )
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    given = parser.parse_args(arguments)
    return commands.run_short_command(lambda: _run(given))


def _run(given: argparse.Namespace) -> None:
    if not given.path.is_dir():
        raise InputError(f"{given.path}: no such run or checkpoint folder.")
    with commands.loading():
        from trainer.report.preview import inspect_run

    report: Any
    if given.step is not None:
        report = inspect_run.clips_of_step(given.path, given.step)
        words = [f"{clip['clip_id']}  {clip['cell']}  {clip['caption']}" for clip in report]
    else:
        is_checkpoint = (given.path / "manifest.json").is_file()
        report = inspect_run.describe(given.path) if is_checkpoint else inspect_run.describe_run(given.path)
        words = _as_text(report)
    commands.print_answer(report, "\n".join(map(printable, words)), as_json=given.json)
