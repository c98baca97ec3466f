"""The commands of the road, from metadata to shards and the report, in its order."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

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
    answer,
    app,
    executor_of,
    known_videos,
    place_of,
    spec_of,
    videos_of,
    working,
)
from vidcurate.curation.clip_table import table
from vidcurate.executor.map_clips import PartSummary, usable_cpus
from vidcurate.executor.progress import progress_bar
from vidcurate.recipe import recipe as recipes
from vidcurate.storage import download, object_store


@app.command("demo-data")
def demo_data(
    out: Annotated[Path, typer.Argument(help="The folder to make.", metavar="OUT")],
    clips: Annotated[int, typer.Option(min=10, help="How many clips.", metavar="N")] = 320,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.", metavar="N")] = 0,
    to_json: Json = False,
) -> None:
    """Make a small captioned data set whose captions are true and some of whose files are broken.

    Example: vidcurate demo-data demo --clips 40
    """
    from vidcurate.curation.demo_data import write as demo_data_write

    with progress_bar("demo-data", quiet=to_json) as progress:
        summary = demo_data_write.write_demo_data(out, clips=clips, seed=seed, progress=progress)
    answer(asdict(summary), title=str(out), to_json=to_json)


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
        str, typer.Option(help="The metadata's form; `auto` says what it recognised.", metavar="NAME")
    ] = "auto",
    settings: Settings = None,
    to_json: Json = False,
) -> None:
    """Read a table of captions into RUN/ingest.parquet and reconcile it with the files.

    Example: vidcurate ingest demo/captions.csv --videos demo/videos --out run
    """
    from vidcurate.curation.ingest.spec import IngestSpec
    from vidcurate.curation.ingest.stage import run_ingest

    source = download.kept(metadata, out / "metadata") if object_store.is_url(metadata) else Path(metadata)
    spec = spec_of(IngestSpec, None, settings, metadata=source, videos=videos, schema=schema)
    with working(out, "ingest", quiet=to_json) as progress:
        summary = run_ingest(out, spec, progress=progress)
    answer(asdict(summary), title=f"ingest → {out}", to_json=to_json)


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
            help="What is known of files, also from other runs. Default: RUN/known-files.parquet.",
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
    """Look at every file, up to a level of integrity, and name what is broken.

    `index` decodes nothing and finds truncation; `keyframes` reads every packet and decodes the key frames;
    `full` decodes everything. A higher level later reads only files that are not known at it. Stopped at any
    moment, the same command goes on.

    Example: vidcurate probe run --videos demo/videos --level keyframes
    """
    from vidcurate.curation.clip_table.rejection_ledger import check_share
    from vidcurate.curation.probe.stage import ProbeSettings, ProbeSpec, run_probe

    given = spec_of(ProbeSettings, recipe, settings, level=level)
    spec = ProbeSpec(videos=place_of(run, videos), **given.model_dump())
    with working(run, "probe", quiet=to_json) as progress:
        executor = executor_of(workers, engine, part, merge)
        summary = run_probe(run, spec, known_files=known, executor=executor, progress=progress)
    answer(asdict(summary), title=f"probe → {run}", to_json=to_json)
    if isinstance(summary, PartSummary):
        return
    failed, see = summary.rows_in - summary.rows_ok, f"`vidcurate inspect {run}` counts them."
    what, key = "are missing or broken", "max_failure_share"
    check_share(failed, summary.rows_in, max_failure_share, what=what, key=key, see=see)


@app.command()
def score(run: Run, recipe: RecipeFile = None, settings: Settings = None, to_json: Json = False) -> None:
    """Count the nouns and words of every caption.

    Example: vidcurate score run --set noun_engine=builtin
    """
    from vidcurate.curation.caption_scores.stage import ScoreSpec, run_score

    spec = spec_of(ScoreSpec, recipe, settings)
    with working(run, "score", quiet=to_json) as progress:
        summary = run_score(run, spec, progress=progress)
    answer(asdict(summary), title=f"score → {run}", to_json=to_json)


@app.command("filter")
def filter_(run: Run, recipe: RecipeFile = None, settings: Settings = None, to_json: Json = False) -> None:
    """Judge every clip; a rejected one keeps its row with rule, value and threshold.

    Example: vidcurate filter run --set min_duration_seconds=1 --set max_aspect_ratio=2
    """
    from vidcurate.curation.filter.spec import FilterSpec
    from vidcurate.curation.filter.stage import check_limits, run_filter

    spec = spec_of(FilterSpec, recipe, settings)
    with working(run, "filter", quiet=to_json) as progress:
        summary = run_filter(run, spec, progress=progress)
    answer(asdict(summary), title=f"filter → {run}", to_json=to_json)
    check_limits(run, summary, spec)


@app.command("split-by-difficulty")
def split_by_difficulty(
    run: Run,
    levels: Annotated[int | None, typer.Option(min=1, help="How many levels.", metavar="N")] = None,
    recipe: RecipeFile = None,
    settings: Settings = None,
    to_json: Json = False,
) -> None:
    """Cut the kept clips into levels of growing difficulty and measure the jump between neighbours.

    Example: vidcurate split-by-difficulty run --levels 2 --set validation_fraction=0.1
    """
    from vidcurate.curation.difficulty.spec import SplitSpec
    from vidcurate.curation.difficulty.stage import run_split

    spec = spec_of(SplitSpec, recipe, settings, levels=levels)
    with working(run, "split", quiet=to_json) as progress:
        summary = run_split(run, spec, progress=progress)
    answer(asdict(summary), title=f"split-by-difficulty → {run}", to_json=to_json)


@app.command("build-shards")
def build_shards(
    run: Run,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The folder of shards. Default: RUN/shards.", metavar="FOLDER"),
    ] = None,
    videos: Videos = None,
    also: Annotated[
        str | None,
        typer.Option(
            "--also",
            help="Index files for other readers, with commas: energon, dali, wids.",
            metavar="READERS",
        ),
    ] = None,
    workers: Workers = None,
    recipe: RecipeFile = None,
    settings: Settings = None,
    to_json: Json = False,
) -> None:
    """Write WebDataset tars by level and fold, with an index for random access.

    Stopped at any moment, the same command finishes the work, and the bytes are the same.

    Example: vidcurate build-shards run --videos demo/videos --set max_clips=64
    """
    from vidcurate.shards.build import run_build_shards
    from vidcurate.shards.layout import ShardSpec
    from vidcurate.shards.reader_indexes import export as reader_indexes_export

    spec = spec_of(ShardSpec, recipe, settings)
    readers = reader_indexes_export.readers_of(also) if also else ()
    with working(run, "build-shards", quiet=to_json) as progress:
        summary = run_build_shards(
            run,
            spec,
            videos=videos_of(run, videos),
            out=out or run / "shards",
            num_workers=workers or usable_cpus(),
            progress=progress,
        )
        if readers:
            folder = out or run / "shards"
            reader_indexes_export.export(
                folder, readers, num_workers=workers or usable_cpus(), progress=progress
            )
    answer(asdict(summary), title=f"build-shards → {out or run / 'shards'}", to_json=to_json)


@app.command()
def curate(
    recipe: Annotated[Path, typer.Argument(help="A curation recipe.", metavar="RECIPE")],
    part: PartOf = None,
    merge: Merge = False,
    until: Annotated[
        str | None, typer.Option(help="Stop behind this stage, for example score-frames.", metavar="STAGE")
    ] = None,
    settings: Settings = None,
    to_json: Json = False,
) -> None:
    """Run every stage of a recipe, from ingest to build-shards, and write the report.

    What is done and up to date is left as it is, so the same command goes on where it stopped.

    With --part it goes to the first stage of clips that is not finished and does that share of it.

    Example: vidcurate curate recipes/curate-demo.yaml --set run=run
    """
    from vidcurate.curate import CurateRecipe
    from vidcurate.curate import curate as run_all

    read = recipes.load(recipe, CurateRecipe, settings=settings or [])

    def reported(stage: str, summary: dict[str, Any]) -> None:
        if not to_json:
            answer(summary, title=stage, to_json=False)
            print()

    summaries = run_all(
        read,
        progress_bar=lambda what: working(read.run, what, quiet=to_json),
        reported=reported,
        executor=executor_of(read.workers, read.engine, part, merge),
        until=until,
    )
    if to_json:
        print(json.dumps(summaries, default=str))


@app.command()
def export(
    run: Run,
    out: Annotated[Path, typer.Argument(help="A .parquet, .csv or .jsonl file.", metavar="FILE")],
    to_json: Json = False,
) -> None:
    """Write the whole table of a run, every column of every stage, for other tools.

    Example: vidcurate export run clips.csv
    """
    stage = table.newest_stage(run)
    table.export(table.scan(run, stage), out)
    answer(
        {"stage": stage, "file": str(out), "size_bytes": out.stat().st_size}, title="export", to_json=to_json
    )


@app.command()
def inspect(
    run: Run,
    clip: Annotated[str | None, typer.Argument(help="A clip id: show its fate.", metavar="CLIP")] = None,
    to_json: Json = False,
) -> None:
    """Show what a run holds, or everything that happened to one clip.

    Example: vidcurate inspect run
    """
    from vidcurate.curation.report import inspect_clip as inspection

    found = inspection.run_overview(run) if clip is None else inspection.clip_fate(run, clip)
    if to_json:
        print(json.dumps(found, default=str))
    else:
        Console().print(inspection.render(found))


@app.command()
def report(run: Run, videos: Videos = None, to_json: Json = False) -> None:
    """Write RUN/report.html: one page that opens off-line, with the funnel, the levels and the clips.

    Example: vidcurate report run
    """
    from vidcurate.curation.report.build import run_report

    summary = run_report(run, videos=videos or known_videos(run))
    answer(asdict(summary), title=f"report → {run}", to_json=to_json)
