"""What the trainer's commands share: how they read their words, and how they end.

stdout is the answer, stderr the telling. An error of the project is one line and its exit code.
"""

import argparse
import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer.cli import exit_codes
from vidcurate.errors import VidcurateError


def parser(name: str, description: str, example: str) -> argparse.ArgumentParser:
    """Return the parser of `python -m trainer NAME`; its help ends with the example."""
    return argparse.ArgumentParser(
        prog=f"python -m trainer {name}",
        description=description,
        epilog=f"example:\n{example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_run(to: argparse.ArgumentParser) -> None:
    """Add the argument that names a run or one of its checkpoints, as `path`."""
    to.add_argument("path", type=Path, metavar="RUN", help="a run folder, or a checkpoint folder (step-…)")


def end(act: Callable[[], None]) -> int:
    """Run a command and return its exit code: 0, or that of the project's error, told in one line.

    1 too where nobody reads the answer to its end (`… | head`).
    """
    try:
        act()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except VidcurateError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


def end_of_work(act: Callable[[argparse.Namespace], int], given: argparse.Namespace, resumes: str) -> int:
    """Run a long command and return its exit code; `goes_on` says what the same command does after Ctrl-C.

    With `given.traceback` an error is raised as it is.
    """
    try:
        return act(given)
    except KeyboardInterrupt:
        print(f"error: interrupted; the same command goes on {resumes}.", file=sys.stderr)
        return exit_codes.INTERRUPTED
    except VidcurateError as error:
        if given.traceback:
            raise
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code


@contextmanager
def loading() -> Iterator[None]:
    """Load modules without looking for garbage, of which there is none, and leave them out of later looks.

    Torch and its like are a million objects that stay: to go through them again and again, and once more at
    the end of the process, is a third of the time that a command takes to begin and end.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
