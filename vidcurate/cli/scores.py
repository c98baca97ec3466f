"""Commands that decode or compare clips: frame and model scores, scenes, dedup."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from vidcurate.cli.common import (
    Engine,
    Json,
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
    output_file,
    print_summary,
    spec_of,
    stage_progress,
    videos_or_url_of,
)
from vidcurate.executor.map_clips import usable_cpus
from vidcurate.executor.progress import progress_bar


@app.command("score-frames")
def score_frames(
    run: Run,
    videos: VideosOrUrl = None,
    workers: Workers = None,
    engine: Engine = "local",
    part: PartOf = None,
    merge: Merge = False,
    recipe: RecipeFile = None,
    settings: Settings = None,
    to_json: Json = False,
) -> None:
    """Decode every clip once: motion, sharpness, black, frozen, bars, brightness, flicker, cuts, hashes.

    The same command resumes a stopped stage; the bytes are the same.

    Example: vidcurate score-frames run --videos demo/videos --set time_limit_seconds=60
    """
    from vidcurate.curation.frame_scores.spec import FramesSpec
    from vidcurate.curation.frame_scores.stage import run_frames

    spec = spec_of(FramesSpec, recipe, settings)
    with stage_progress(run, "score-frames", quiet=to_json) as progress:
        summary = run_frames(
            run,
            spec,
            videos=videos_or_url_of(run, videos),
            executor=executor_of(workers, engine, part, merge),
            progress=progress,
        )
    print_summary(asdict(summary), title=f"score-frames → {run}", to_json=to_json)


@app.command("score-own")
def score_own(
    run: Run,
    score: Annotated[
        list[str],
        typer.Option("--score", help="FILE.py:FUNCTION, or an entry point; may repeat.", metavar="SCORE"),
    ],
    videos: VideosOrUrl = None,
    workers: Workers = None,
    engine: Engine = "local",
    part: PartOf = None,
    merge: Merge = False,
    time_limit: Annotated[
        float, typer.Option("--time-limit", help="Seconds for one clip.", min=0.1, metavar="SECONDS")
    ] = 60.0,
    to_json: Json = False,
) -> None:
    """Score clips by your own functions of frames, caption or row.

    The columns can be filtered, and go to report and shards. The same command resumes a stopped stage.

    Example: vidcurate score-own run --score recipes/own_scores.py:colourfulness --videos demo/videos
    """
    from vidcurate.curation.own_scores.load import load_scores
    from vidcurate.curation.own_scores.stage import run_own_scores

    scores = load_scores(score)
    needs_videos = any(one.takes == "frames" for one in scores)
    with stage_progress(run, "score-own", quiet=to_json) as progress:
        summary = run_own_scores(
            run,
            scores,
            videos=videos_or_url_of(run, videos) if needs_videos else None,
            time_limit_seconds=time_limit,
            executor=executor_of(workers, engine, part, merge),
            progress=progress,
        )
    print_summary(asdict(summary), title=f"score-own → {run}", to_json=to_json)


@app.command("split-scenes")
def split_scenes(
    inputs: Annotated[
        list[Path], typer.Argument(help="A run folder, a folder of videos, or videos.", metavar="INPUT...")
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", callback=output_file, help="The table: .parquet, .csv or .jsonl.", metavar="FILE"
        ),
    ],
    videos: Videos = None,
    workers: Workers = None,
    recipe: RecipeFile = None,
    settings: Settings = None,
    to_json: Json = False,
) -> None:
    """Find the scenes of long videos and write them as a table, one row per clip.

    `ingest` and `extract-clips` read the table. Clips of one video share their source_id.

    Example: vidcurate split-scenes demo/videos --out scenes.parquet --set min_seconds=0.5
    """
    from vidcurate.curation.scenes.spec import SceneSpec
    from vidcurate.curation.scenes.split import run_split_scenes

    spec = spec_of(SceneSpec, recipe, settings)
    with progress_bar("split-scenes", quiet=to_json) as progress:
        summary = run_split_scenes(
            inputs,
            spec,
            out=out,
            videos=videos or _videos_of_run(inputs[0]),
            num_workers=workers or usable_cpus(),
            progress=progress,
        )
    print_summary(asdict(summary), title=f"split-scenes → {out}", to_json=to_json)


@app.command("extract-clips")
def extract_clips(
    source: Annotated[Path, typer.Argument(help="A table of scenes, or a run folder.", metavar="TABLE")],
    out: Annotated[Path, typer.Option("--out", help="The folder of clips.", metavar="FOLDER")],
    videos: Videos = None,
    workers: Workers = None,
    recipe: RecipeFile = None,
    settings: Settings = None,
    to_json: Json = False,
) -> None:
    """Cut every row's interval out of its file, check the clip, and write OUT/clips.parquet.

    The same command resumes a stopped extraction; the bytes are the same.

    Example: vidcurate extract-clips scenes.parquet --videos demo/videos --out clips --set transcode.fps=12
    """
    from vidcurate.curation.scenes.extract import run_extract
    from vidcurate.curation.scenes.spec import ExtractSpec

    spec = spec_of(ExtractSpec, recipe, settings)
    with progress_bar("extract-clips", quiet=to_json) as progress:
        summary = run_extract(
            source,
            spec,
            videos=videos or _videos_of_run(source) or source.parent,
            out=out,
            num_workers=workers or usable_cpus(),
            progress=progress,
        )
    print_summary(asdict(summary), title=f"extract-clips → {out}", to_json=to_json)


def _videos_of_run(path: Path) -> Path | None:
    return known_videos(path) if (path / "ingest.parquet").is_file() else None


@app.command("score-models")
def score_models(
    run: Run,
    videos: VideosOrUrl = None,
    workers: Workers = None,
    part: PartOf = None,
    merge: Merge = False,
    recipe: RecipeFile = None,
    settings: Settings = None,
    to_json: Json = False,
) -> None:
    """Score frames by neural networks: aesthetic and caption match on CLIP, watermark, text area.

    Only the named models run. The same command resumes a stopped stage.

    With downloaded models: vidcurate score-models run --set clip=clip-vit-large-patch14 --set
    aesthetic_head=sac+logos+ava1-l14-linearMSE.pth

    Example: vidcurate score-models --help
    """
    from vidcurate.curation.model_scores.spec import ModelsSpec
    from vidcurate.curation.model_scores.stage import run_models

    spec = spec_of(ModelsSpec, recipe, settings)
    with stage_progress(run, "score-models", quiet=to_json) as progress:
        summary = run_models(
            run,
            spec,
            videos=videos_or_url_of(run, videos),
            executor=executor_of(workers, "local", part, merge),
            progress=progress,
        )
    print_summary(asdict(summary), title=f"score-models → {run}", to_json=to_json)


@app.command()
def dedup(
    run: Run,
    videos: Videos = None,
    workers: Workers = None,
    recipe: RecipeFile = None,
    settings: Settings = None,
    to_json: Json = False,
) -> None:
    """Find duplicate clips by file bytes, coded packets, image hashes, captions or embeddings; rank copies.

    This stage rejects nothing: `vidcurate filter` keeps the best clip of each cluster that passes all rules.

    Example: vidcurate dedup run --videos demo/videos --set perceptual.max_bits=6
    """
    from vidcurate.curation.dedup.spec import DedupSpec
    from vidcurate.curation.dedup.stage import run_dedup

    spec = spec_of(DedupSpec, recipe, settings)
    with stage_progress(run, "dedup", quiet=to_json) as progress:
        summary = run_dedup(
            run,
            spec,
            videos=videos or known_videos(run),
            num_workers=workers or usable_cpus(),
            progress=progress,
        )
    print_summary(asdict(summary), title=f"dedup → {run}", to_json=to_json)
