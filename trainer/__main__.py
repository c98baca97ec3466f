"""Entry point `python -m trainer RECIPE`: train here, under torchrun, or on hosts.

`python -m trainer COMMAND` runs one of the tools in COMMANDS.

stdout carries the result (the last line, or JSON), stderr the progress. Exit codes: trainer.cli.exit_codes.
"""

import os
import signal
import sys

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:

    def _end_at_once(number: int, frame: object) -> None:
        os.write(2, b"interrupted; the same command continues\n")
        os._exit(130)

    # The imports below take time; trainer.cli.commands takes over afterwards.
    signal.signal(signal.SIGINT, _end_at_once)
if __name__ == "__main__":
    # `vidcurate train` and its like block Ctrl-C while Python starts.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])

import argparse
import difflib
import faulthandler
import importlib
import json
from collections.abc import Sequence
from pathlib import Path

from trainer.cli import commands, exit_codes, training_arguments
from trainer.report.preview import environment
from vidcurate.errors import StateError
from vidcurate.storage.standard_streams import console_may_close, open_standard_streams

# torch reads this when it is loaded, below: with spinning OpenMP threads, the decode workers of a small
# machine starve (a step took 4 times as long, docs/decisions.md).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


# Tools besides the training, and the modules with their `main`. No recipe file has such a name.
COMMANDS = {
    "clips": "trainer.report.preview.clips_command",
    "cluster": "trainer.cluster.command",
    "convert": "trainer.run_folder.checkpoint.convert_command",
    "experiment": "trainer.report.experiment.command",
    "gallery": "trainer.report.gallery",
    "gpus": "trainer.health.gpu_command",
    "inspect": "trainer.report.preview.inspect_command",
    "launch": "trainer.cluster.launch.command",
    "plan": "trainer.report.preview.plan_command",
    "precompute": "trainer.data.latents.command",
    "report": "trainer.report.command",
    "sample": "trainer.generation.sample_command",
    "serve": "trainer.generation.server.command",
    "track": "trainer.training.track.command",
}

PRINT_ENV = "--print-env"
# What the extra `train` installs; the base install has the commands that read a run, without these.
TRAIN_PACKAGES = ("torch", "safetensors")


def _run(arguments: argparse.Namespace) -> int:
    # torch is imported here, so that --help and a typing error in the recipe answer at once.
    with commands.loading():
        from trainer import train
        from trainer.recipe import recipe
        from trainer.report.preview import dry_run
        from trainer.training import outcome
        from trainer.training import state as training_state
        from trainer.training.preflight import command as preflight

    origin = training_state.Origin(
        load=arguments.load,
        ckpt_path=arguments.ckpt_path,
        start_from_scratch=arguments.start_from_scratch,
        accept=tuple(arguments.accept or ()),
    )
    wanted = recipe.load(arguments.recipe, arguments.settings)
    with outcome.missing_after_first_step(wanted.output):
        if arguments.dry_run:
            report = dry_run.dry_run(wanted, origin, arguments.settings)
            commands.print_answer(report, dry_run.to_text(report), as_json=arguments.json)
            if report["resume"] and report["resume"]["error"]:
                raise StateError(report["resume"]["error"])
            return exit_codes.DONE
        if arguments.preflight:
            found = preflight.run_preflight(wanted, origin, arguments.settings)
            if found is not None:
                print(json.dumps(found) if arguments.json else found["verdict"])
            return exit_codes.DONE
        with console_may_close():
            ended = train.train(wanted, origin, arguments.settings, check_nodes=not arguments.no_preflight)
            if ended.is_first_rank:
                print(json.dumps(ended.to_json()) if arguments.json else ended.to_text())
    return ended.exit_code


def _dispatch(words: list[str]) -> int:
    if words and words[0] in COMMANDS:
        code: int = importlib.import_module(COMMANDS[words[0]]).main(words[1:])
        return code
    near = difflib.get_close_matches(words[0], COMMANDS, n=1, cutoff=0.7) if words else []
    if near and not Path(words[0]).exists():
        print(f"error: {words[0]}: no command and no recipe file. Did you mean {near[0]}?", file=sys.stderr)
        return exit_codes.WRONG_REQUEST
    if PRINT_ENV in words:
        words.remove(PRINT_ENV)
        return environment.main(words)
    return commands.run_long_command(
        _run, training_arguments.parser().parse_args(words), "from the last checkpoint"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    open_standard_streams()
    if not faulthandler.is_enabled():
        faulthandler.enable(2)  # a crash in native code writes each thread's Python stack to stderr
    try:
        return _dispatch(list(sys.argv[1:] if arguments is None else arguments))
    except ModuleNotFoundError as error:
        if error.name not in TRAIN_PACKAGES:
            raise
        print(f"error: {error.name} is not installed. Run `pip install 'vidcurate[train]'`.", file=sys.stderr)
        return exit_codes.WRONG_REQUEST


if __name__ == "__main__":
    sys.exit(main())
