"""The commands that decode: scores of the pictures, scenes of long videos, clips cut out of them."""

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
    spec_of,
    videos_of,
)
from vidcurate.engine import usable_cpus
from vidcurate.progress import telling


@app.command("score-frames")
def score_frames(
    run: Run,
    videos: Videos = None,
    workers: Workers = None,
    recipe: RecipeFile = None,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Decode every clip once: motion, sharpness, black, frozen, bars, brightness, flicker, cuts, hashes.

    Stopped at any moment, the same command finishes the work, and the bytes are the same.

    Example: vidcurate score-frames run --videos demo/videos --set details_per_second=1
    """
    from vidcurate.frames import FramesSpec, run_frames

    spec = spec_of(FramesSpec, recipe, settings)
    with telling("score-frames", quiet=as_json) as progress:
        summary = run_frames(
            run,
            spec,
            videos=videos_of(run, videos),
            num_workers=workers or usable_cpus(),
            progress=progress,
        )
    answer(asdict(summary), title=f"score-frames → {run}", as_json=as_json)
