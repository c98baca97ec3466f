"""Commands on shards: build and verify them, export indexes for other readers."""

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from vidcurate.cli.common import (
    Json,
    RecipeFile,
    Run,
    Settings,
    Videos,
    Workers,
    app,
    print_summary,
    spec_of,
    stage_progress,
    videos_of,
)
from vidcurate.errors import InputError, ShardError, counted
from vidcurate.executor.map_clips import usable_cpus
from vidcurate.executor.progress import progress_bar

Shards = Annotated[Path, typer.Argument(help="A folder of shards.", metavar="SHARDS")]


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
    unprobed: Annotated[
        bool, typer.Option("--unprobed", help="Also write clips that probe never looked at.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace another set of shards in the folder.")
    ] = False,
    workers: Workers = None,
    recipe: RecipeFile = None,
    settings: Settings = None,
    to_json: Json = False,
) -> None:
    """Write the kept clips as WebDataset tars by level and fold, with an index for random access.

    The same command resumes a stopped build; the bytes are the same.

    Example: vidcurate build-shards run --videos demo/videos --set max_clips=64
    """
    from vidcurate.shards.build import check_written, run_build_shards
    from vidcurate.shards.layout import ShardSpec
    from vidcurate.shards.reader_indexes import export as reader_indexes_export

    spec = spec_of(ShardSpec, recipe, settings)
    readers = reader_indexes_export.readers_of(also) if also else ()
    folder = out or run / "shards"
    is_of_run = folder.absolute() == (run / "shards").absolute()  # others are no cost of the run
    bar = partial(stage_progress, run) if is_of_run else progress_bar
    with bar("build-shards", quiet=to_json) as progress:
        summary = run_build_shards(
            run,
            spec,
            videos=videos_of(run, videos),
            out=folder,
            overwrite=overwrite,
            is_unprobed_allowed=unprobed,
            num_workers=workers or usable_cpus(),
            progress=progress,
        )
        if readers:
            reader_indexes_export.export(
                folder, readers, num_workers=workers or usable_cpus(), progress=progress
            )
    print_summary(asdict(summary), title=f"build-shards → {out or run / 'shards'}", to_json=to_json)
    if len(summary.extensions) > 1 and not to_json:
        counts = ", ".join(f"{count} .{name}" for name, count in summary.extensions.items())
        print(
            f"note: {counts}: Hugging Face datasets reads shards of one extension only. "
            "--set mode=transcode writes MP4 alone."
        )
    check_written(summary, folder)


@app.command()
def verify(
    shards: Annotated[str, typer.Argument(help="A folder of shards, or its URL.", metavar="SHARDS")],
    level: Annotated[
        str,
        typer.Option(
            "--level", help="index: headers alone; bytes: every byte; decode: every frame.", metavar="LEVEL"
        ),
    ] = "bytes",
    workers: Workers = None,
    to_json: Json = False,
) -> None:
    """Verify shards against their manifest, their index and every rule of the format; change nothing.

    One line per problem names the file, the member, what is wrong and what is needed; exit code 1 if there
    are problems. Shards at a URL are read by range requests; nothing is stored.

    Example: vidcurate verify run/shards --level bytes
    """
    from vidcurate.shards.verify import verify as check
    from vidcurate.shards.verify_shard import LEVELS
    from vidcurate.storage import object_store

    if level not in LEVELS:
        raise InputError(f"--level {level}: unknown level. Levels: {', '.join(LEVELS)}.")
    with progress_bar("verify", quiet=to_json) as progress:
        verdict = check(
            object_store.place(shards), level, num_workers=workers or usable_cpus(), progress=progress
        )
    if to_json:
        print(json.dumps(asdict(verdict)))
    else:
        for problem in verdict.problems:
            print(problem)
        shown = asdict(verdict) | {"problems": len(verdict.problems)}
        print_summary(shown, title=f"verify → {shards}", to_json=False)
    if verdict.problems:
        files = counted(len({problem.file for problem in verdict.problems}), "file")
        problems = counted(len(verdict.problems), "problem")
        raise ShardError(f"{shards}: {problems} in {files}; first: {verdict.problems[0]}")


@app.command("export-index")
def export_index(
    shards: Shards,
    for_: Annotated[
        str, typer.Option("--for", help="Readers, with commas: energon, dali, wids.", metavar="READERS")
    ] = "energon,dali,wids",
    workers: Workers = None,
    to_json: Json = False,
) -> None:
    """Write index files for Energon, DALI and wids into the shard folder; keep those that are up to date.

    Example: vidcurate export-index run/shards --for energon,wids
    """
    from vidcurate.shards.reader_indexes import export as reader_indexes_export

    with progress_bar("export-index", quiet=to_json) as progress:
        summary = reader_indexes_export.export(
            shards,
            reader_indexes_export.readers_of(for_),
            num_workers=workers or usable_cpus(),
            progress=progress,
        )
    print_summary(asdict(summary), title=f"export-index → {shards}", to_json=to_json)


@app.command()
def push(
    shards: Shards,
    repo: Annotated[str, typer.Argument(help="The data set on the hub: USER/NAME.", metavar="REPO")],
    private: Annotated[bool, typer.Option("--private", help="Make a new data set private.")] = False,
    to_json: Json = False,
) -> None:
    """Upload shards to the Hugging Face hub; the same command sends only what is missing.

    Needs `hf auth login` (or HF_TOKEN) and the README.md that `vidcurate card` writes beside the shards.

    Example: vidcurate push run/shards someone/demo-clips --private
    """
    import importlib.util

    if importlib.util.find_spec("huggingface_hub") is None:
        raise InputError("huggingface_hub is not installed. Run `pip install 'vidcurate[hub]'`.")
    import huggingface_hub

    from vidcurate.curation.publish import upload

    with progress_bar("push", quiet=to_json) as progress:
        summary = upload.push(
            shards, repo, hub=huggingface_hub.HfApi(), is_private=private, progress=progress
        )
    print_summary(asdict(summary), title=f"push → {repo}", to_json=to_json)
