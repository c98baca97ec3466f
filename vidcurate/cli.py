"""The command line: one command a stage. It parses, calls and prints.

stdout is the answer (a table, or JSON with --json), stderr is the telling. Exit code 0: done; 1: the work
failed; 2: the request was wrong. An error is one line; --traceback shows the rest. A setting lives in a
recipe or a --set and goes through one strict door: a typo is an error that names the nearest setting.
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from vidcurate import __version__, table
from vidcurate import recipe as recipes
from vidcurate.engine import usable_cpus
from vidcurate.errors import InputError, StorageError, VidcurateError
from vidcurate.progress import telling
from vidcurate.recipe import Recipe

app = typer.Typer(
    name="vidcurate",
    help="Captioned video in; a judged table, difficulty levels and trusted WebDataset shards out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
S = TypeVar("S", bound=Recipe)

Run = Annotated[Path, typer.Argument(help="The run folder: every stage's table lies in it.", metavar="RUN")]
Videos = Annotated[
    Path | None, typer.Option("--videos", help="The folder of videos. Default: the one given to ingest.")
]
Workers = Annotated[int | None, typer.Option("--workers", min=1, help="Processes. Default: all CPUs.")]
Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="One setting of the stage, key=value. May be repeated.")
]
RecipeFile = Annotated[Path | None, typer.Option("--recipe", help="The stage's settings as YAML.")]


def _spec(model: type[S], file: Path | None, settings: list[str] | None, **given: Any) -> S:
    """Return the stage's settings from a file, from --set and from the options that were given."""
    every = [*_as_settings(given), *(settings or [])]
    if file is not None:
        return recipes.load(file, model, settings=every)
    return recipes.parse("", model, where="--set", settings=every)


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


def answer(summary: dict[str, Any], *, title: str, as_json: bool) -> None:
    """Print a summary on stdout: two columns, or one JSON object."""
    if as_json:
        print(json.dumps(summary, default=str))
        return
    grid = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    records = {name: value for name, value in summary.items() if _is_records(value)}
    for name, value in summary.items():
        if name not in records:
            grid.add_row(name.replace("_", " "), _cell(value))
    console = Console()
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


def _known_videos(run: Path) -> Path | None:
    """Return the folder of videos that ingest was given, None when it was given none."""
    table.previous_stage(run, "probe")
    known = json.loads((run / "reconcile.json").read_text(encoding="utf-8")).get("videos")
    return Path(known) if known else None


def _videos(run: Path, given: Path | None) -> Path:
    """Return the folder of videos: the one given, else the one that ingest was given."""
    folder = given or _known_videos(run)
    if folder is None:
        raise InputError(f"{run}: ingest was given no folder of videos. Say it with --videos.")
    return folder


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


@app.command("demo-data")
def demo_data(
    out: Annotated[Path, typer.Argument(help="The folder to make.", metavar="OUT")],
    clips: Annotated[int, typer.Option(min=10, help="How many clips.")] = 320,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 0,
    as_json: Json = False,
) -> None:
    """Make a small captioned data set whose captions are true and some of whose files are broken.

    Example: vidcurate demo-data demo --clips 40
    """
    from vidcurate import synthetic

    with telling("demo-data", quiet=as_json) as progress:
        summary = synthetic.write_demo_data(out, clips=clips, seed=seed, progress=progress)
    answer(asdict(summary), title=str(out), as_json=as_json)


@app.command()
def ingest(
    metadata: Annotated[
        Path, typer.Argument(help="CSV, Parquet, JSONL, a folder or shards.", metavar="METADATA")
    ],
    out: Annotated[Path, typer.Option("--out", help="The run folder.")],
    videos: Annotated[
        Path | None, typer.Option(help="The folder of videos; without it, metadata only.")
    ] = None,
    schema: Annotated[
        str, typer.Option(help="The metadata's form; `auto` says what it recognised.")
    ] = "auto",
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Read a table of captions into RUN/ingest.parquet and reconcile it with the files.

    Example: vidcurate ingest demo/captions.csv --videos demo/videos --out run
    """
    from vidcurate.ingest import IngestSpec, run_ingest

    spec = _spec(IngestSpec, None, settings, metadata=metadata, videos=videos, schema=schema)
    with telling("ingest", quiet=as_json) as progress:
        summary = run_ingest(out, spec, progress=progress)
    answer(asdict(summary), title=f"ingest → {out}", as_json=as_json)


@app.command()
def probe(run: Run, videos: Videos = None, workers: Workers = None, as_json: Json = False) -> None:
    """Read header and packet index of every file, without decoding, and name what is broken.

    Example: vidcurate probe run --videos demo/videos
    """
    from vidcurate.probe import ProbeSpec, run_probe

    spec = ProbeSpec(videos=_videos(run, videos))
    with telling("probe", quiet=as_json) as progress:
        summary = run_probe(run, spec, num_workers=workers or usable_cpus(), progress=progress)
    answer(asdict(summary), title=f"probe → {run}", as_json=as_json)


@app.command()
def score(run: Run, recipe: RecipeFile = None, settings: Settings = None, as_json: Json = False) -> None:
    """Count the nouns and words of every caption.

    Example: vidcurate score run --set noun_engine=builtin
    """
    from vidcurate.score import ScoreSpec, run_score

    spec = _spec(ScoreSpec, recipe, settings)
    with telling("score", quiet=as_json) as progress:
        summary = run_score(run, spec, progress=progress)
    answer(asdict(summary), title=f"score → {run}", as_json=as_json)


@app.command("filter")
def filter_(run: Run, recipe: RecipeFile = None, settings: Settings = None, as_json: Json = False) -> None:
    """Judge every clip; a rejected one keeps its row with rule, value and threshold.

    Example: vidcurate filter run --set min_duration_seconds=1 --set max_aspect_ratio=2
    """
    from vidcurate.filter import FilterSpec, run_filter

    spec = _spec(FilterSpec, recipe, settings)
    with telling("filter", quiet=as_json) as progress:
        summary = run_filter(run, spec, progress=progress)
    answer(asdict(summary), title=f"filter → {run}", as_json=as_json)


@app.command("split-by-difficulty")
def split_by_difficulty(
    run: Run,
    levels: Annotated[int | None, typer.Option(min=1, help="How many levels.")] = None,
    recipe: RecipeFile = None,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Cut the kept clips into levels of growing difficulty and measure the jump between neighbours.

    Example: vidcurate split-by-difficulty run --levels 2 --set validation_fraction=0.1
    """
    from vidcurate.difficulty import SplitSpec, run_split

    spec = _spec(SplitSpec, recipe, settings, levels=levels)
    with telling("split", quiet=as_json) as progress:
        summary = run_split(run, spec, progress=progress)
    answer(asdict(summary), title=f"split-by-difficulty → {run}", as_json=as_json)


@app.command("build-shards")
def build_shards(
    run: Run,
    out: Annotated[
        Path | None, typer.Option("--out", help="The folder of shards. Default: RUN/shards.")
    ] = None,
    videos: Videos = None,
    workers: Workers = None,
    recipe: RecipeFile = None,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Write WebDataset tars by level and fold, with an index for random access.

    Stopped at any moment, the same command finishes the work, and the bytes are the same.

    Example: vidcurate build-shards run --videos demo/videos --set max_clips=64
    """
    from vidcurate.shards import ShardSpec, run_build_shards

    spec = _spec(ShardSpec, recipe, settings)
    with telling("build-shards", quiet=as_json) as progress:
        summary = run_build_shards(
            run,
            spec,
            videos=_videos(run, videos),
            out=out or run / "shards",
            num_workers=workers or usable_cpus(),
            progress=progress,
        )
    answer(asdict(summary), title=f"build-shards → {out or run / 'shards'}", as_json=as_json)


@app.command()
def curate(
    recipe: Annotated[Path, typer.Argument(help="A curation recipe.", metavar="RECIPE")],
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Run the whole road of a recipe: ingest, probe, score, filter, split, build-shards, report.

    Example: vidcurate curate recipes/curate-demo.yaml --set run=run
    """
    from vidcurate.curate import CurateRecipe
    from vidcurate.curate import curate as run_all

    read = recipes.load(recipe, CurateRecipe, settings=settings or [])

    def told(stage: str, summary: dict[str, Any]) -> None:
        if not as_json:
            answer(summary, title=stage, as_json=False)

    summaries = run_all(read, telling=lambda what: telling(what, quiet=as_json), told=told)
    if as_json:
        print(json.dumps(summaries, default=str))


@app.command()
def export(
    run: Run,
    out: Annotated[Path, typer.Argument(help="A .parquet, .csv or .jsonl file.", metavar="FILE")],
    as_json: Json = False,
) -> None:
    """Write the whole table of a run, every column of every stage, for other tools.

    Example: vidcurate export run clips.csv
    """
    stage = table.newest_stage(run)
    table.export(table.scan(run, stage), out)
    answer(
        {"stage": stage, "file": str(out), "size_bytes": out.stat().st_size}, title="export", as_json=as_json
    )


@app.command()
def inspect(
    run: Run,
    clip: Annotated[str | None, typer.Argument(help="A clip id: show its fate.", metavar="CLIP")] = None,
    as_json: Json = False,
) -> None:
    """Show what a run holds, or everything that happened to one clip.

    Example: vidcurate inspect run
    """
    from vidcurate import inspect as inspection

    found = inspection.run_overview(run) if clip is None else inspection.clip_fate(run, clip)
    if as_json:
        print(json.dumps(found, default=str))
    else:
        Console().print(inspection.render(found))


@app.command()
def report(run: Run, videos: Videos = None, as_json: Json = False) -> None:
    """Write RUN/report.html: one page that opens off-line, with the funnel, the levels and the clips.

    Example: vidcurate report run
    """
    from vidcurate.report import run_report

    summary = run_report(run, videos=videos or _known_videos(run))
    answer(asdict(summary), title=f"report → {run}", as_json=as_json)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        app(args=given, prog_name="vidcurate")
    except (VidcurateError, OSError) as error:
        if "--traceback" in given:
            raise
        if isinstance(error, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        if not isinstance(error, VidcurateError):
            name = f"{error.filename}: " if error.filename else ""
            error = StorageError(f"{name}{error.strerror or error}.")
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
