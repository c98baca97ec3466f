"""Commands of the trainer: shared argument parser, one-line errors, exit codes.

Results are printed to stdout, progress to stderr. An error of the project is one line and its exit code.
"""

import argparse
import errno
import gc
import json
import os
import shutil
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from trainer.cli import exit_codes, help_text
from vidcurate.errors import VidcurateError, printable

INTERRUPTED = "interrupted; the same command continues"
# Python's option that leaves the working directory out of the module search path, where this process has it.
SAFE_PATH = ["-P"] if sys.flags.safe_path else []


class Parser(argparse.ArgumentParser):
    """Argument parser whose error is one line that names the help."""

    def error(self, message: str) -> NoReturn:
        self.exit(exit_codes.WRONG_REQUEST, f"error: {message}. See `{self.prog} --help`.\n")


def parser(name: str, description: str, example: str) -> Parser:
    """Return the argument parser of `python -m trainer NAME`; its help ends with the example."""
    return Parser(
        prog=f"python -m trainer {name}".rstrip(),
        description=description,
        epilog=f"example:\n{example}",
        formatter_class=help_text.HelpFormatter,
        allow_abbrev=False,
    )


def add_run(to: argparse.ArgumentParser) -> None:
    """Add the argument `path`: a run folder or one of its checkpoints."""
    to.add_argument("path", type=Path, metavar="RUN", help="a run folder, or a checkpoint folder (step-…)")


def add_settings(to: argparse.ArgumentParser, help: str) -> None:
    """Add `--set KEY=VALUE` as `settings`, a list of texts; may be repeated."""
    to.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help=help)


def add_traceback(to: argparse.ArgumentParser) -> None:
    """Add the flag `--traceback`."""
    to.add_argument("--traceback", action="store_true", help="show where in the code an error was raised")


def print_answer(report: Any, text: str, *, as_json: bool) -> None:
    """Print a command's answer: `report` as JSON, or `text`, wrapped between words on a terminal.

    A terminal itself wraps within words and numbers; a file or a pipe gets the lines whole.
    """
    if as_json:
        text = json.dumps(report, indent=1, ensure_ascii=False, default=str)
    elif sys.stdout.isatty():
        text = _wrapped(text, shutil.get_terminal_size().columns)
    print(text)


def _wrapped(text: str, width: int) -> str:
    return "\n".join(
        textwrap.fill(
            line,
            width,
            subsequent_indent=" " * (len(line) - len(line.lstrip()) + 4),
            break_long_words=False,
            break_on_hyphens=False,
        )
        if len(line) > width
        else line
        for line in text.split("\n")
    )


def run_short_command(act: Callable[[], None]) -> int:
    """Run a command and return its exit code: 0, or that of the project's error, printed as one line.

    Also 1 where the reader closes stdout early (`… | head`), or stdout is a file on a full disk.
    """
    try:
        act()
        sys.stdout.flush()
    except OSError as error:
        return _failed(error)
    except VidcurateError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return exit_codes.DONE


def _failed(error: OSError) -> int:
    """Print an error of a file or of stdout in one line, nothing where the reader left; return 1."""
    if not isinstance(error, BrokenPipeError):
        name = printable(str(error.filename or "stdout"))
        print(f"error: {name}: {error.strerror or error}.", file=sys.stderr, flush=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the exit flushes it
    return 1


def run_long_command(
    act: Callable[[argparse.Namespace], int], given: argparse.Namespace, resumes: str
) -> int:
    """Run a long command and return its exit code; `resumes` says where the command resumes after Ctrl-C.

    With `given.traceback` this function raises the error itself.
    """
    try:
        with interrupts(_interrupt):
            code = act(given)
            sys.stdout.flush()
            return code
    except KeyboardInterrupt:
        print(f"{INTERRUPTED} {resumes}.", file=sys.stderr)
        return exit_codes.INTERRUPTED
    except VidcurateError as error:
        if given.traceback:
            raise
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except OSError as error:
        if given.traceback or not (error.filename or error.errno in (errno.EPIPE, errno.ENOSPC)):
            raise  # of a device or the network: the place says which
        return _failed(error)


def end_at_once(number: int, frame: object) -> None:
    """End the process on Ctrl-C with one line: a signal handler for while nothing has been written yet."""
    os.write(2, f"{INTERRUPTED}\n".encode())
    os._exit(exit_codes.INTERRUPTED)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Handle Ctrl-C: KeyboardInterrupt, and end at once in an import, which may alter the error."""
    place = frame
    while place is not None:
        if place.f_globals.get("__name__") in ("importlib._bootstrap", "_frozen_importlib"):
            end_at_once(number, frame)
        place = place.f_back
    signal.default_int_handler(number, frame)


@contextmanager
def interrupts(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Handle Ctrl-C by `handler` inside the block; leave an ignored Ctrl-C ignored."""
    before = signal.getsignal(signal.SIGINT)
    if before == signal.SIG_IGN or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def loading() -> Iterator[None]:
    """Import modules with the garbage collector off, and exclude their objects from later collections.

    Ctrl-C ends the process with one line meanwhile: an import that KeyboardInterrupt cuts off can end in any
    error.

    Torch and its dependencies are a million permanent objects: collecting over them repeatedly, and once more
    at exit, is a third of a command's start and exit time.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        custom = signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        with nullcontext() if custom else interrupts(end_at_once):
            yield
    finally:
        gc.freeze()
        gc.enable()
