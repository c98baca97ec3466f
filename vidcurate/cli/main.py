"""Command-line entry point: parse arguments, call a stage, print its summary.

stdout has the summary (a table, or JSON with --json), stderr the progress. Exit code 0: done; 1: the work
failed; 2: the request was wrong; 3: done, and more rows failed than allowed. An error is one line, also one
that nobody foresaw; --traceback prints the rest. Settings come from a recipe or --set through one strict
parser: for a typo, the error names the nearest setting. Ctrl-C is one line and exit code 130.
"""

from vidcurate.cli import interrupt as interrupt  # first: from here on Ctrl-C is one line

# isort: split
import os
import sys
import traceback
from pathlib import Path

from vidcurate.cli import analyse as analyse  # importing a file of commands adds them to the app
from vidcurate.cli import captioning as captioning
from vidcurate.cli import curate as curate
from vidcurate.cli import export as export
from vidcurate.cli import installation as installation
from vidcurate.cli import review as review
from vidcurate.cli import scores as scores
from vidcurate.cli import shards as shards
from vidcurate.cli import trainer_commands as trainer_commands
from vidcurate.cli.common import app as app
from vidcurate.errors import InputError, StorageError, VidcurateError, printable
from vidcurate.storage.standard_streams import open_standard_streams


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    open_standard_streams()
    try:
        try:
            _require_text([os.readlink("/proc/self/cwd"), *given])
            sys.exit(_call(given))
        except SystemExit:
            sys.stdout.flush()  # here, where a full disk or a reader that left is one line
            raise
    except (VidcurateError, OSError) as error:
        if "--traceback" in given:
            raise
        if isinstance(error, OSError) and not error.filename:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the exit flushes it
        if isinstance(error, BrokenPipeError):
            sys.exit(1)
        if not isinstance(error, VidcurateError):
            name = f"{error.filename}: " if error.filename else ""
            error = StorageError(f"{name}{error.strerror or error}.")
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # polars raises its panics as BaseException
        if "--traceback" in given:
            raise
        print(f"error: {_damaged_table(error, given) or _unforeseen(error)}", file=sys.stderr)
        sys.exit(1)


def _call(given: list[str]) -> int:
    """Run the command and return its exit code. Raises InputError for wrong options, in one line."""
    try:
        code: int | None = app(args=given, prog_name="vidcurate", standalone_mode=False)
    except Exception as error:
        if not hasattr(error, "format_message"):  # of typer's own errors, whose place differs by its version
            raise
        said = " ".join(error.format_message().split())
        if "Usage: " in said:  # no command was given: the message is the help
            error.show()  # type: ignore[attr-defined]
            return 2
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "vidcurate"
        end = "" if said.endswith(("?", ".")) else "."
        raise InputError(f"{said}{end} See `{command} --help`.") from error
    return code or 0


def _require_text(words: list[str]) -> None:
    """Raise InputError for a path or word that is not UTF-8: tables and JSON cannot hold it."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"{word}: is not UTF-8, so no table can name it. Rename it.") from error


def _damaged_table(error: BaseException, given: list[str]) -> str:
    """Return one line that names a run's damaged tables, "" where the error is none of a Parquet file.

    For most damage polars raises a panic or an error of its own, whatever the message.
    """
    if not type(error).__module__.startswith(("polars", "pyo3_runtime", "pyarrow")):
        return ""
    from vidcurate.curation.clip_table import table

    names = [str(path) for word in given if os.path.isdir(word) for path in table.damaged(Path(word))]
    if not names and not str(error).startswith("parquet: "):
        return ""
    reason = printable(" ".join(str(error).split()))[:200]
    which = f"{', '.join(names)}: cannot be read" if names else "a Parquet file cannot be read"
    return f"{which} ({reason}). Delete the damaged file, and run its stage again."


def _unforeseen(error: BaseException) -> str:
    """Return one line about an error that no code foresaw: what, where, and how to report it."""
    reason = printable(" ".join(str(error).split()))[:200]
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"unforeseen {type(error).__name__}{f': {reason}' if reason else ''} "
        f"({Path(frame.filename).name}, line {frame.lineno}). This is a fault of vidcurate. Report it with "
        "the output of `vidcurate --traceback COMMAND …` and of `vidcurate version`."
    )
