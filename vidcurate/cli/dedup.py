"""The command that looks for duplicates."""

from dataclasses import asdict

from vidcurate.cli.terminal import (
    Json,
    RecipeFile,
    Run,
    Settings,
    Videos,
    Workers,
    answer,
    app,
    known_videos,
    spec_of,
    working,
)
from vidcurate.engine import usable_cpus


@app.command()
def dedup(
    run: Run,
    videos: Videos = None,
    workers: Workers = None,
    recipe: RecipeFile = None,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Find clips that are the same, by bytes, pictures, look, words or meaning, and name the one to keep.

    Nothing is rejected here: `vidcurate filter` keeps the best of each cluster that passes every other rule.

    Example: vidcurate dedup run --videos demo/videos --set perceptual.max_bits=6
    """
    from vidcurate.dedup import DedupSpec, run_dedup

    spec = spec_of(DedupSpec, recipe, settings)
    with working(run, "dedup", quiet=as_json) as progress:
        summary = run_dedup(
            run,
            spec,
            videos=videos or known_videos(run),
            num_workers=workers or usable_cpus(),
            progress=progress,
        )
    answer(asdict(summary), title=f"dedup → {run}", as_json=as_json)
