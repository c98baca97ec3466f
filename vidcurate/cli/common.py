"""Command-line app, shared options, settings, and printing of summaries."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from vidcurate import __version__
from vidcurate.cli import interrupt
from vidcurate.errors import InputError, printable
from vidcurate.executor.map_clips import Progress, usable_cpus
from vidcurate.executor.parts_folder import ExecutorSpec, parse_part
from vidcurate.executor.progress import progress_bar
from vidcurate.recipe import recipe as recipes
from vidcurate.recipe.recipe import Recipe
from vidcurate.storage import object_store

# Sections of `vidcurate --help`, in the order of use.
SECTIONS = {
    "Demo data, and all stages in one command": ("demo-data", "curate"),
    "Stages, in pipeline order": (
        "ingest", "probe", "caption", "score", "score-frames", "score-models", "score-own", "dedup",
        "filter", "split-by-difficulty", "build-shards",
    ),
    "Results": ("report", "review", "inspect", "ledger", "what-if", "presets", "card", "export", "verify"),
    "Other inputs and outputs": (
        "split-scenes", "extract-clips", "fetch-plan", "export-index", "push", "fit",
    ),
    "Training, each a command of `python -m trainer`": (
        "train", "launch", "serve", "sample", "gallery", "train-report", "train-inspect", "train-clips",
        "plan",
        "precompute", "convert", "experiment", "track", "cluster", "gpus",
    ),
    "This installation": ("recipes", "version"),
}  # fmt: skip


class Pipeline(TyperGroup):
    """Command group that lists commands in the order of SECTIONS, each with its first sentence."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands in the order of SECTIONS."""
        return [name for names in SECTIONS.values() for name in names]

    def invoke(self, ctx: Any) -> Any:
        """Run the command; Ctrl-C is one line and exit code 130."""
        try:
            interrupt.raise_from_here()
            try:
                return super().invoke(ctx)
            finally:
                interrupt.raise_deferred()
        except KeyboardInterrupt:
            interrupt.end()

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the sections."""
        for title, names in SECTIONS.items():
            rows = []
            for name in names:
                command = self.get_command(ctx, name)
                assert command is not None, f"{name} is in SECTIONS and is not a command"
                rows.append((name, " ".join((command.help or "").split("\n\n")[0].split())))
            with formatter.section(title):
                formatter.write_dl(rows, col_max=20)


app = typer.Typer(
    name="vidcurate",
    cls=Pipeline,
    help="Turn captioned video into a scored table, difficulty levels and verified WebDataset shards.",
    epilog="Each command has an example in its help: vidcurate COMMAND --help.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
WIDTH = 140  # columns of a summary that goes to a file or a pipe
S = TypeVar("S", bound=Recipe)

Run = Annotated[Path, typer.Argument(help="The run folder, with one table per stage.", metavar="RUN")]
Videos = Annotated[
    Path | None,
    typer.Option(
        "--videos", help="The folder of videos. Default: the one given to ingest.", metavar="FOLDER"
    ),
]
VideosOrUrl = Annotated[
    str | None,
    typer.Option(
        "--videos",
        help="The folder of videos, or its URL. Default: the one given to ingest.",
        metavar="PATH",
    ),
]
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, help="Processes. Default: all CPUs.", metavar="N")
]
Engine = Annotated[
    str,
    typer.Option("--engine", help="Where the work runs: local, or ray (a Ray cluster).", metavar="NAME"),
]
PartOf = Annotated[
    str | None,
    typer.Option("--part", help="Process part i of n of the clips; write no table yet.", metavar="I/N"),
]
Merge = Annotated[
    bool, typer.Option("--merge", help="Write the table from finished parts; fail if a part is missing.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="One setting of the stage, as in a recipe. May be repeated.", metavar="KEY=VALUE"
    ),
]
MaxFailureShare = Annotated[
    float | None,
    typer.Option(
        "--max-failure-share",
        min=0,
        max=1,
        help="Share of the rows that may fail, 0 to 1; above it: exit code 3.",
        metavar="SHARE",
    ),
]
RecipeFile = Annotated[
    Path | None, typer.Option("--recipe", help="The stage's settings as YAML.", metavar="FILE")
]


def spec_of(model: type[S], file: Path | None, settings: list[str] | None, /, **given: Any) -> S:
    """Return the stage's settings from a recipe file, --set and other command-line options."""
    every = [f"{name}={json.dumps(value, default=str)}" for name, value in given.items() if value is not None]
    every += settings or []
    if file is not None:
        return recipes.load(file, model, settings=every)
    return recipes.parse("", model, where="--set", settings=every)


def executor_of(
    workers: int | None, engine: str = "local", part: str | None = None, merge: bool = False
) -> ExecutorSpec:
    """Return the executor for a stage. Raises InputError for options that exclude each other."""
    if engine not in ("local", "ray"):
        raise InputError(f"--engine {engine}: unknown engine. Use local or ray.")
    found = parse_part(part) if part else None
    if engine == "ray":
        from vidcurate.executor import ray_actors

        return ExecutorSpec(
            engine="ray", num_workers=workers or ray_actors.num_cpus(), part=found, merge=merge
        )
    return ExecutorSpec(num_workers=workers or usable_cpus(), part=found, merge=merge)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}"
    if isinstance(value, dict):
        return "\n".join(f"{name}: {_cell(inner)}" for name, inner in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        shown = "\n".join(_cell(inner) for inner in value[:8])
        return shown + (f"\n… and {len(value) - 8} more" if len(value) > 8 else "") if value else "none"
    return "none" if value is None else printable(str(value))


def screen(*, is_wide: bool = True) -> Console:
    """Return the console of stdout; for a file or a pipe and `is_wide`, wide enough that no name wraps.

    It prints text as it is: brackets and colons in names and captions are no markup.
    """
    is_fitted = not is_wide or sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if is_fitted else WIDTH, markup=False, emoji=False)


def print_summary(summary: dict[str, Any], *, title: str, to_json: bool) -> None:
    """Print a summary on stdout: two columns, or one JSON object."""
    if to_json:
        print(json.dumps(summary, default=str))
        return
    from vidcurate.curation.report.records import Records

    title = printable(title)
    grid = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    records = {name: value for name, value in summary.items() if _is_records(value)}
    for name, value in summary.items():
        if name not in records:
            grid.add_row(name.replace("_", " "), _cell(value))
    console = screen()
    console.print(grid)
    for name, rows in records.items():
        # A warning is printed in full above the table.
        columns = [{key: row[key] for key in row if key != "warning"} for row in rows]
        console.print(Records(name, columns, _cell))


def _is_records(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(row, dict) for row in value)


@contextmanager
def stage_progress(run: Path, command: str, *, quiet: bool) -> Iterator[Progress]:
    """Show a progress bar for a command, and add its cost to RUN/costs.jsonl."""
    from vidcurate.curation.clip_table import costs

    with costs.measured(run, command), progress_bar(command, quiet=quiet) as progress:
        yield progress


def output_file(path: Path | None) -> Path | None:
    """Return the path of a file to write; raise InputError where something is there that is no file.

    A file is written beside its place and renamed: a device or a pipe would be replaced.
    """
    if path is not None and path.exists() and not path.is_file():
        raise InputError(f"{path}: is no regular file. Name another.")
    return path


def known_videos(run: Path) -> Path | None:
    """Return the video folder that ingest used, None when it used none."""
    from vidcurate.curation.clip_table import reconciliation, stage_json, table

    table.previous_stage(run, "probe")
    path = run / reconciliation.RECONCILE
    known = stage_json.require(path, reconciliation.Reconciliation).videos
    return Path(known) if known else None


def videos_of(run: Path, given: Path | None) -> Path:
    """Return the video folder: the one given, else the one that ingest used."""
    folder = given or known_videos(run)
    if folder is None:
        raise InputError(f"{run}: ingest ran without a video folder. Add --videos FOLDER.")
    return folder


def videos_or_url_of(run: Path, given: str | None) -> Path | str:
    """Return the video folder or its URL: the one given, else the one that ingest used."""
    if given is not None and object_store.is_url(given):
        return given
    return videos_of(run, Path(given) if given is not None else None)


@app.callback(invoke_without_command=True)
def _top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Print the traceback of an error.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit
    context.obj = {"traceback": traceback}
