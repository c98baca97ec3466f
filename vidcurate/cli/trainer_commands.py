"""Training commands of `vidcurate`: each starts a command of `python -m trainer`.

Each command replaces this process by `python -m trainer`, so arguments, signals and exit codes are those of
the trainer, and vidcurate imports neither trainer nor torch. Python takes the package `trainer` that is
installed beside this package: a `trainer.py` in the working directory, or another package of that name
earlier on the module search path, is not imported.
"""

import os
import signal
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand

from vidcurate.cli.common import app
from vidcurate.errors import InputError, MissingError

ROOT = Path(__file__).resolve().parents[2]
# Command of vidcurate → command of `python -m trainer` ("" trains), and what it does. `inspect` and `report`
# of vidcurate read a curation, so those of a training have names of their own.
COMMANDS = {
    "train": ("", "Train a model as a recipe says; the same command resumes a stopped run."),
    "launch": ("launch", "Train on several GPUs or hosts, and restart failed ranks."),
    "serve": ("serve", "Sample every checkpoint of a run, draw its gallery, answer prompts over HTTP."),
    "sample": ("sample", "Sample clips from a checkpoint."),
    "gallery": ("gallery", "Write RUN/gallery.html: samples over steps, and the loss."),
    "train-report": ("report", "Write a training run's report: curves, events, where the time went."),
    "train-inspect": ("inspect", "Print what a training run or a checkpoint holds."),
    "train-clips": ("clips", "Print the clips behind a step's loss; reject clips from here on."),
    "plan": ("plan", "Print which clips each training step reads."),
    "precompute": ("precompute", "Encode clips and captions once, before the training."),
    "convert": ("convert", "Convert weights from PixArt and Open-Sora, and export those of a run."),
    "experiment": ("experiment", "Train several arms with several seeds and compare them."),
    "track": ("track", "Measure the seconds to a target loss on generated clips."),
    "cluster": ("cluster", "Print status and health of all nodes; dump stacks, stop a run."),
    "gpus": ("gpus", "Print the GPUs of this host and their errors."),
}
RUN_FILES = ("metrics.jsonl", "events.jsonl")


class _Verbatim(TyperCommand):
    """Command that reads no argument itself, neither --help nor --."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        super().parse_args(ctx, [])
        ctx.args = args
        return args


def environment(given: dict[str, str], search_path: Sequence[str]) -> dict[str, str]:
    """Return the variables with which `python -m trainer` imports the trainer in ROOT.

    `search_path` is the module search path without the working directory. ROOT goes in front of it only
    where another trainer would be found: in an installed package ROOT is site-packages, and the standard
    library should stay before it.
    """
    found = PathFinder.find_spec("trainer", list(search_path))
    made = {**given, "PYTHONSAFEPATH": "1"}
    if found is None or not found.origin or Path(found.origin).resolve().parents[1] != ROOT:
        made["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [given.get("PYTHONPATH")])])
    return made


def start(words: Sequence[str]) -> NoReturn:
    """Replace this process by `python -m trainer WORDS`. Raises MissingError where there is no trainer."""
    if not (ROOT / "trainer" / "__main__.py").is_file():
        raise MissingError(f"{ROOT}: has no package trainer. Run `pip install --force-reinstall vidcurate`.")
    search_path = sys.path if sys.flags.safe_path else sys.path[1:]
    sys.stdout.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # trainer.__main__ unblocks
    os.execve(
        sys.executable,
        [sys.executable, "-m", "trainer", *words],
        environment(dict(os.environ), search_path),
    )


def refuse_training_run(run: Path, command: str) -> None:
    """Raise InputError, naming the command to run, where `run` is the folder of a training."""
    if any((run / name).is_file() for name in RUN_FILES) and not any(run.glob("*.parquet")):
        raise InputError(f"{run}: is a training run, not a curation. Run `vidcurate train-{command} {run}`.")


def _add(name: str, command: str, about: str) -> None:
    words = [command] if command else []

    @app.command(
        name,
        cls=_Verbatim,
        add_help_option=False,
        help=f"{about}\n\nThis is `{' '.join(['python -m trainer', *words])}`, with the same arguments."
        f"\n\nExample: vidcurate {name} --help",
    )
    def _(context: typer.Context) -> None:
        start([*words, *context.args])


for _name, (_command, _about) in COMMANDS.items():
    _add(_name, _command, _about)
