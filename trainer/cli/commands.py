"""Commands of the trainer: shared argument parser, one-line errors, exit codes.

Results are printed to stdout, progress to stderr. An error of the project is one line and its exit code.
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

# Python's option that leaves the working directory out of the module search path, where this process has it.
SAFE_PATH = ["-P"] if sys.flags.safe_path else []


def parser(name: str, description: str, example: str) -> argparse.ArgumentParser:
    """Return the argument parser of `python -m trainer NAME`; its help ends with the example."""
    return argparse.ArgumentParser(
        prog=f"python -m trainer {name}",
        description=description,
        epilog=f"example:\n{example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_run(to: argparse.ArgumentParser) -> None:
    """Add the argument `path`: a run folder or one of its checkpoints."""
    to.add_argument("path", type=Path, metavar="RUN", help="a run folder, or a checkpoint folder (step-…)")


def run_short_command(act: Callable[[], None]) -> int:
    """Run a command and return its exit code: 0, or that of the project's error, printed as one line.

    Also 1 where the reader closes stdout early (`… | head`).
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


def run_long_command(
    act: Callable[[argparse.Namespace], int], given: argparse.Namespace, resumes: str
) -> int:
    """Run a long command and return its exit code; `resumes` says where the command resumes after Ctrl-C.

    With `given.traceback` this function raises the error itself.
    """
    try:
        return act(given)
    except KeyboardInterrupt:
        print(f"error: interrupted; the same command resumes {resumes}.", file=sys.stderr)
        return exit_codes.INTERRUPTED
    except VidcurateError as error:
        if given.traceback:
            raise
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code


@contextmanager
def loading() -> Iterator[None]:
    """Import modules with the garbage collector off, and exclude their objects from later collections.

    Torch and its dependencies are a million permanent objects: collecting over them repeatedly, and once more
    at exit, is a third of a command's start and exit time.
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
