"""Pipeline commands, from metadata to shards and the report."""

import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from vidcurate.cli.common import (
    Engine,
    Json,
    MaxFailureShare,
    Merge,
    PartOf,
    RecipeFile,
    Run,
    Settings,
    Videos,
    VideosOrUrl,
    Workers,
    app,
    executor_of,
    known_videos,
    print_summary,
    screen,
    spec_of,
    stage_progress,
    videos_or_url_of,
)
from vidcurate.cli.trainer_commands import refuse_training_run
from vidcurate.errors import InputError, counted
from vidcurate.executor.parts_folder import PartSummary
from vidcurate.executor.progress import progress_bar
from vidcurate.recipe import recipe as recipes
from vidcurate.storage import download, object_store


@app.command("demo-data")
def demo_data(
    out: Annotated[Path, typer.Argument(help="The folder to create.", metavar="OUT")],
    clips: Annotated[int, typer.Option(min=10, help="How many clips.", metavar="N")] = 320,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.", metavar="N")] = 0,
    to_json: Json = False,
) -> None:
    """Generate a small captioned data set: captions are true, some files are damaged on purpose.

    Example: vidcurate demo-data demo --clips 40
    """
    from vidcurate.curation.demo_data import write as demo_data_write

    with progress_bar("demo-data", quiet=to_json) as progress:
        summary = demo_data_write.write_demo_data(out, clips=clips, seed=seed, progress=progress)
    print_summary(asdict(summary), title=str(out), to_json=to_json)


@app.command()
def ingest(
    metadata: Annotated[
        str, typer.Argument(help="CSV, Parquet, JSONL (also by URL), a folder or shards.", metavar="METADATA")
    ],
    out: Annotated[Path, typer.Option("--out", help="The run folder.", metavar="RUN")],
    videos: Annotated[
        Path | None, typer.Option(help="The folder of videos; without it, metadata only.", metavar="FOLDER")
    ] = None,
    schema: Annotated[
        str, typer.Option(help="The metadata's schema; `auto` detects and prints it.", metavar="NAME")
    ] = "auto",
    maps: Annotated[
        list[str] | None,
        typer.Option(
            "--map", help="Our column=the table's: video, caption, caption_NAME.", metavar="X=COLUMN"
        ),
    ] = None,
    settings: Settings = None,
    to_json: Json = False,
) -> None:
    """Read a caption table into RUN/ingest.parquet and match its rows with the video files.

    Example: vidcurate ingest demo/captions.csv --videos demo/videos --out run
    """
    from vidcurate.curation.ingest.spec import IngestSpec
    from vidcurate.curation.ingest.stage import run_ingest

    source = download.kept(metadata, out / "metadata") if object_store.is_url(metadata) else Path(metadata)
    named = _column_map(maps or []) or None
    spec = spec_of(IngestSpec, None, settings, metadata=source, videos=videos, schema=schema, map=named)
    with stage_progress(out, "ingest", quiet=to_json) as progress:
        summary = run_ingest(out, spec, progress=progress)
    print_summary(asdict(summary), title=f"ingest → {out}", to_json=to_json)
    given = [] if schema == "auto" else ["--schema", schema]
    given += [word for one in maps or [] for word in ("--map", one)]
    given += [word for one in settings or [] for word in ("--set", one)]
    before = ["vidcurate", "ingest", metadata, "--videos"]
    _hint_at_folder(
        out,
        videos,
        summary.problems.get("missing_file", 0),
        lambda folder: [*before, str(folder), "--out", str(out), *given],
    )


def _hint_at_folder(
    run: Path, videos: Path | None, missing: int, command: Callable[[Path], list[str]]
) -> None:
    """Print which folder holds the missing files, if one does, and the words of `command(folder)`."""
    if videos is not None and (hint := _other_folder(run, videos, missing)):
        count, folder = hint
        print(
            f"hint: not below {str(videos)!r}, but below {str(folder)!r}: "
            f"{counted(count, 'file')} of the table. Run `{shlex.join(command(folder))}`.",
            file=sys.stderr,
        )


def _column_map(maps: list[str]) -> dict[str, str]:
    """Return {ours: column} of --map ours=column. Raises InputError."""
    found: dict[str, str] = {}
    for given in maps:
        ours, equals, column = given.partition("=")
        if not ours or not equals or not column or ours in found:
            raise InputError(f"--map {given}: write each once, as --map video=COLUMN --map caption=COLUMN.")
        found[ours] = column
    return found


def _other_folder(run: Path, videos: Path, missing: int) -> tuple[int, Path] | None:
    """Return the number of missing rows and the folder that holds their files, None without such a folder."""
    if not missing:
        return None
    import polars as pl

    from vidcurate.curation.ingest.files import better_root

    rows = pl.scan_parquet(run / "ingest.parquet").filter(pl.col("ingest_problem") == "missing_file")
    paths = rows.select(pl.col("video_path").drop_nulls()).head(100).collect()["video_path"].to_list()
    folder = better_root(paths, videos)
    return None if folder is None else (missing, folder)


@app.command()
def probe(
    run: Run,
    videos: VideosOrUrl = None,
    level: Annotated[
        str | None,
        typer.Option(
            help="header, index, keyframes or full. Default: index.", show_default=False, metavar="LEVEL"
        ),
    ] = None,
    known: Annotated[
        Path | None,
        typer.Option(
            help="Cache of probe results, also of other runs. Default: RUN/known-files.parquet.",
            metavar="FILE",
        ),
    ] = None,
    workers: Workers = None,
    engine: Engine = "local",
    part: PartOf = None,
    merge: Merge = False,
    max_failure_share: MaxFailureShare = None,
    recipe: RecipeFile = None,
    settings: Settings = None,
    to_json: Json = False,
) -> None:
    """Check every video file up to a level of integrity, and name what is broken.

    `index` decodes nothing and finds truncation; `keyframes` reads every packet and decodes the key frames;
    `full` decodes everything. A later probe at a higher level reads only files not yet checked at that level.
    The same command resumes a stopped probe.

    Example: vidcurate probe run --videos demo/videos --level keyframes
    """
    from vidcurate.curation.clip_table.rejection_ledger import check_share
    from vidcurate.curation.probe.stage import ProbeSettings, ProbeSpec, run_probe

    given = spec_of(ProbeSettings, recipe, settings, level=level)
    spec = ProbeSpec(videos=videos_or_url_of(run, videos), **given.model_dump())
    with stage_progress(run, "probe", quiet=to_json) as progress:
        executor = executor_of(workers, engine, part, merge)
        summary = run_probe(run, spec, known_files=known, executor=executor, progress=progress)
    print_summary(asdict(summary), title=f"probe → {run}", to_json=to_json)
    if isinstance(summary, PartSummary):
        return
    failed, see = summary.rows_in - summary.rows_ok, f"Run `vidcurate inspect {run}` to count them."
    what, key = "are missing or broken", "max_failure_share"
    check_share(failed, summary.rows_in, max_failure_share, what=what, key=key, see=see)


@app.command()
def score(run: Run, recipe: RecipeFile = None, settings: Settings = None, to_json: Json = False) -> None:
    """Score every caption: nouns (the difficulty), words, boilerplate, repeats.

    Example: vidcurate score run --set noun_engine=builtin
    """
    from vidcurate.curation.caption_scores.stage import ScoreSpec, run_score

    spec = spec_of(ScoreSpec, recipe, settings)
    with stage_progress(run, "score", quiet=to_json) as progress:
        summary = run_score(run, spec, progress=progress)
    print_summary(asdict(summary), title=f"score → {run}", to_json=to_json)


@app.command("filter")
def filter_(
    run: Run,
    max_failure_share: MaxFailureShare = None,
    max_rejected_share: Annotated[
        float | None,
        typer.Option(
            "--max-rejected-share",
            min=0,
            max=1,
            help="Share of the rows that may be rejected, 0 to 1; above it: exit code 3.",
            metavar="SHARE",
        ),
    ] = None,
    recipe: RecipeFile = None,
    settings: Settings = None,
    to_json: Json = False,
) -> None:
    """Keep or reject every clip by rules; a rejected clip keeps its row, with rule, value and threshold.

    Example: vidcurate filter run --set min_duration_seconds=1 --set max_aspect_ratio=2
    """
    from vidcurate.curation.filter.spec import FilterSpec, as_limit
    from vidcurate.curation.filter.stage import check_limits, run_filter

    spec = spec_of(FilterSpec, recipe, [*map(as_limit, settings or [])])
    with stage_progress(run, "filter", quiet=to_json) as progress:
        summary = run_filter(run, spec, progress=progress)
    print_summary(asdict(summary), title=f"filter → {run}", to_json=to_json)
    check_limits(run, summary, max_failure_share=max_failure_share, max_rejected_share=max_rejected_share)


@app.command("split-by-difficulty")
def split_by_difficulty(
    run: Run,
    levels: Annotated[int | None, typer.Option(min=1, help="How many levels.", metavar="N")] = None,
    recipe: RecipeFile = None,
    settings: Settings = None,
    to_json: Json = False,
) -> None:
    """Split the kept clips into levels of growing difficulty, and measure the jump between levels.

    Example: vidcurate split-by-difficulty run --levels 2 --set validation_fraction=0.1
    """
    from vidcurate.curation.difficulty.spec import SplitSpec
    from vidcurate.curation.difficulty.stage import run_split

    spec = spec_of(SplitSpec, recipe, settings, levels=levels)
    with stage_progress(run, "split", quiet=to_json) as progress:
        summary = run_split(run, spec, progress=progress)
    print_summary(asdict(summary), title=f"split-by-difficulty → {run}", to_json=to_json)


@app.command()
def curate(
    recipe: Annotated[Path, typer.Argument(help="A curation recipe.", metavar="RECIPE")],
    part: PartOf = None,
    merge: Merge = False,
    until: Annotated[
        str | None, typer.Option(help="Stop after this stage, for example score-frames.", metavar="STAGE")
    ] = None,
    settings: Settings = None,
    to_json: Json = False,
) -> None:
    """Run every stage of a recipe, from ingest to build-shards, and write the report.

    Stages that are up to date are skipped, so the same command resumes a stopped curation.

    With --part the command does its part of the first unfinished stage that can be split.

    Example: vidcurate curate recipes/curate-demo.yaml --set run=run
    """
    from vidcurate.curate import CurateRecipe
    from vidcurate.curate import curate as run_all

    read = recipes.load(recipe, CurateRecipe, settings=settings or [])

    def on_done(stage: str, summary: dict[str, Any]) -> None:
        if not to_json:
            print_summary(summary, title=stage, to_json=False)
            print()
        if stage == "ingest":
            missing = summary["problems"].get("missing_file", 0)
            given = [word for one in settings or [] for word in ("--set", one)]
            before = ["vidcurate", "curate", str(recipe), *given, "--set"]
            _hint_at_folder(
                read.run, read.ingest.videos, missing, lambda folder: [*before, f"ingest.videos={folder}"]
            )

    summaries = run_all(
        read,
        progress_bar=lambda what: stage_progress(read.run, what, quiet=to_json),
        on_done=on_done,
        executor=executor_of(read.workers, read.engine, part, merge),
        until=until,
    )
    if to_json:
        print(json.dumps(summaries, default=str))


@app.command()
def inspect(
    run: Run,
    clip: Annotated[str | None, typer.Argument(help="A clip id: show this clip.", metavar="CLIP")] = None,
    to_json: Json = False,
) -> None:
    """Print a run's counts, or every stage's result for one clip.

    Example: vidcurate inspect run
    """
    from vidcurate.curation.report import inspect_clip as inspection

    refuse_training_run(run, "inspect")
    found = inspection.run_overview(run) if clip is None else inspection.clip_fate(run, clip)
    if to_json:
        print(json.dumps(found, default=str))
    else:
        screen(is_wide=False).print(inspection.render(found))


@app.command()
def report(run: Run, videos: Videos = None, to_json: Json = False) -> None:
    """Write RUN/report.html: one offline page with the filter funnel, the levels and sample clips.

    Example: vidcurate report run
    """
    from vidcurate.curation.report.build import run_report

    refuse_training_run(run, "report")
    summary = run_report(run, videos=videos or known_videos(run))
    print_summary(asdict(summary), title=f"report → {run}", to_json=to_json)
