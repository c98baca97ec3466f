"""Plan command: arguments of `python -m trainer plan`, and its text or JSON.

torch is imported when a command runs, so that --help and a wrong argument answer at once.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.cli import commands as cli_commands
from trainer.cli.output_paths import output_file
from vidcurate.errors import InputError
from vidcurate.storage import atomic_file

MOST_PICTURES = 2000  # on one page
MOST_RANKS = 100_000

EXAMPLE = """\
  python -m trainer plan show recipes/first-steps.yaml --steps 1:2 --captions
  python -m trainer plan show runs/first --steps 1 --world 2 --html first-step.html
  python -m trainer plan show runs/first --clip CLIP --until 40
"""


def _range(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= first <= last:
        raise InputError(f"--steps {text}: write A:B, the first and the last step, counted from 1; or one.")
    return first, last


def _show(given: argparse.Namespace) -> tuple[Any, str]:
    if (given.steps is None) == (given.clip is None):
        raise InputError("show: give --steps A:B, or --clip ID with --until STEP.")
    with cli_commands.loading():
        from trainer.report.preview import contact_sheet, plan, plan_text
        from trainer.report.preview import stages as preview_stages

    found = preview_stages.read_stages(given.place, given.settings)
    if given.clip is not None:
        until = given.until or found.num_steps
        shown = plan.showings(found, given.clip, until)
        reasons = plan.why_not(found, given.clip)
        return (
            {"clip_id": given.clip, "until": until, "shown": shown, "not_in": reasons},
            plan_text.of_clip(given.clip, until, shown, reasons),
        )
    first, last = _range(given.steps)
    batches = list(plan.micro_batches(found, first, last, given.world))
    if given.html:
        count = sum(len(batch["clips"]) for batch in batches)
        if count > MOST_PICTURES:
            raise InputError(
                f"--html: {count:,} clips are more than the {MOST_PICTURES:,} of one page; give fewer steps."
            )
        title = f"{found.recipe.name}: steps {first:,} to {last:,}"
        atomic_file.write_text(
            given.html, contact_sheet.page(title, plan.with_pictures(found, batches)), is_flushed=False
        )
    words = plan_text.of_steps(batches, captions=given.captions)
    if not given.captions:
        batches = [
            {**batch, "clips": [{k: v for k, v in clip.items() if k != "caption"} for clip in batch["clips"]]}
            for batch in batches
        ]
    return batches, f"{words}\nwrote {given.html}" if given.html else words


def _parser() -> argparse.ArgumentParser:
    parser = cli_commands.parser("plan", "Say which clips the steps of a recipe or run read.", EXAMPLE)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    about = "the clips of some steps, or the steps of a clip"
    show = commands.add_parser("show", help=about, description=about)
    show.add_argument(
        "place", type=Path, metavar="RECIPE", help="a recipe (YAML), a run folder, or a checkpoint folder"
    )
    cli_commands.add_settings(show, "change one setting of the recipe; may be repeated")
    show.add_argument("--json", action="store_true", help="print the answer as JSON")
    show.add_argument("--steps", metavar="A:B", help="the steps from A to B, counted from 1; or one step")
    show.add_argument("--world", type=int, metavar="W", help="say which of W ranks runs each micro-batch")
    show.add_argument("--captions", action="store_true", help="with the captions")
    show.add_argument(
        "--html", type=output_file, metavar="OUT", help="write a page with captions and first frames"
    )
    show.add_argument("--clip", metavar="ID", help="the steps that show this clip")
    show.add_argument("--until", type=int, metavar="STEP", help="with --clip: up to here (all)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    for name, value in (("world", given.world), ("until", given.until)):
        if value is not None and value < 1:
            print(f"error: --{name} {value}: must be 1 or more.", file=sys.stderr)
            return 2
    if given.world is not None and given.world > MOST_RANKS:
        print(f"error: --world {given.world}: must be {MOST_RANKS} or less.", file=sys.stderr)
        return 2

    def run() -> None:
        report, words = _show(given)
        cli_commands.print_answer(report, words, as_json=given.json)

    return cli_commands.run_short_command(run)
