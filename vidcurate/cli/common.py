"""What every command shares: the app, the common options, the settings, and how an answer is printed."""

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
from vidcurate.curation.clip_table import costs, table
from vidcurate.errors import InputError
from vidcurate.executor.map_clips import ExecutorSpec, Progress, part_of, usable_cpus
from vidcurate.executor.progress import progress_bar
from vidcurate.recipe import recipe as recipes
from vidcurate.recipe.recipe import Recipe
from vidcurate.storage import object_store

# What `vidcurate --help` lists, in the order in which it is used.
SECTIONS = {
    "To try it, and all stages at once": ("demo-data", "curate"),
    "The stages, in their order": (
        "ingest", "probe", "score", "score-frames", "score-models", "dedup", "filter", "split-by-difficulty",
        "build-shards",
    ),
    "What came of it": ("report", "inspect", "ledger", "what-if", "presets", "card", "export", "verify"),
    "Other forms in and out": ("split-scenes", "extract-clips", "fetch-plan", "export-index"),
}  # fmt: skip


class Pipeline(TyperGroup):
    """The commands in the order of SECTIONS, each with its whole first sentence."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands in the order in which they are used."""
        return [name for names in SECTIONS.values() for name in names]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the sections."""
        for title, names in SECTIONS.items():
            rows = []
            for name in names:
                command = self.get_command(ctx, name)
                assert command is not None, f"{name} stands in SECTIONS and is no command"
                rows.append((name, " ".join((command.help or "").split("\n\n")[0].split())))
            with formatter.section(title):
                formatter.write_dl(rows, col_max=20)


app = typer.Typer(
    name="vidcurate",
    cls=Pipeline,
    help="Captioned video in; a judged table, difficulty levels and trusted WebDataset shards out.",
    epilog="Each command has an example in its help: vidcurate COMMAND --help. `python -m trainer` trains on"
    " the shards.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
WIDTH = 140  # columns of an answer that nobody sees on a screen
S = TypeVar("S", bound=Recipe)

Run = Annotated[Path, typer.Argument(help="The run folder: every stage's table lies in it.", metavar="RUN")]
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
        help="The folder of videos, here or by URL. Default: the one given to ingest.",
        metavar="PATH",
    ),
]
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, help="Processes. Default: all CPUs.", metavar="N")
]
Engine = Annotated[
    str,
    typer.Option(
        "--engine", help="Where clips are worked on: local, or ray (a Ray cluster).", metavar="NAME"
    ),
]
PartOf = Annotated[
    str | None,
    typer.Option(
        "--part", help="Do the i-th of n shares of the clips, and write no table yet.", metavar="I/N"
    ),
]
Merge = Annotated[
    bool, typer.Option("--merge", help="Put the table together from the parts; one that is missing is named.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
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
        help="Share of the rows that may fail, 0 to 1; above it exit code 3.",
        metavar="SHARE",
    ),
]
RecipeFile = Annotated[
    Path | None, typer.Option("--recipe", help="The stage's settings as YAML.", metavar="FILE")
]


def spec_of(model: type[S], file: Path | None, settings: list[str] | None, **given: Any) -> S:
    """Return the stage's settings from a file, from --set and from the options that were given."""
    every = [*_as_settings(given), *(settings or [])]
    if file is not None:
        return recipes.load(file, model, settings=every)
    return recipes.parse("", model, where="--set", settings=every)


def executor_of(
    workers: int | None, engine: str = "local", part: str | None = None, merge: bool = False
) -> ExecutorSpec:
    """Return who does a stage's work. Raises InputError for options that do not go together."""
    if engine not in ("local", "ray"):
        raise InputError(f"--engine {engine}: there are local and ray.")
    found = part_of(part) if part else None
    if engine == "ray":
        from vidcurate.executor import ray_actors

        return ExecutorSpec(
            engine="ray", num_workers=workers or ray_actors.num_cpus(), part=found, merge=merge
        )
    return ExecutorSpec(num_workers=workers or usable_cpus(), part=found, merge=merge)


def _as_settings(given: dict[str, Any]) -> list[str]:
    return [f"{name}={json.dumps(value, default=str)}" for name, value in given.items() if value is not None]


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
    return "none" if value is None else str(value)


def screen() -> Console:
    """Return where an answer is shown; in a file or a pipe it is wide enough that no name is cut in two."""
    return Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH)


def answer(summary: dict[str, Any], *, title: str, to_json: bool) -> None:
    """Print a summary on stdout: two columns, or one JSON object."""
    if to_json:
        print(json.dumps(summary, default=str))
        return
    grid = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    records = {name: value for name, value in summary.items() if _is_records(value)}
    for name, value in summary.items():
        if name not in records:
            grid.add_row(name.replace("_", " "), _cell(value))
    console = screen()
    console.print(grid)
    for name, rows in records.items():
        inner = Table(title=name, title_justify="left", box=None, padding=(0, 2, 0, 0))
        columns = [column for column in rows[0] if column != "warning"]  # warnings stand above, whole
        for column in columns:
            inner.add_column(column.replace("_", " "), overflow="fold")
        for record in rows:
            inner.add_row(*("" if record[column] is None else _cell(record[column]) for column in columns))
        console.print(inner)


def _is_records(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(row, dict) for row in value)


@contextmanager
def working(run: Path, command: str, *, quiet: bool) -> Iterator[Progress]:
    """Show how far a command of the road is, and note in RUN/costs.jsonl what it cost."""
    with costs.measured(run, command), progress_bar(command, quiet=quiet) as progress:
        yield progress


def known_videos(run: Path) -> Path | None:
    """Return the folder of videos that ingest was given, None when it was given none."""
    table.previous_stage(run, "probe")
    known = json.loads((run / "reconcile.json").read_text(encoding="utf-8")).get("videos")
    return Path(known) if known else None


def videos_of(run: Path, given: Path | None) -> Path:
    """Return the folder of videos: the one given, else the one that ingest was given."""
    folder = given or known_videos(run)
    if folder is None:
        raise InputError(f"{run}: ingest was given no folder of videos. Say it with --videos.")
    return folder


def place_of(run: Path, given: str | None) -> Path | str:
    """Return the folder of videos, or its URL: the one given, else the one that ingest was given."""
    if given is not None and object_store.is_url(given):
        return given
    return videos_of(run, Path(given) if given is not None else None)


@app.callback(invoke_without_command=True)
def _top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show where an error came from.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit
    context.obj = {"traceback": traceback}
