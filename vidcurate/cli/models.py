"""The command that scores with neural networks."""

from dataclasses import asdict

from vidcurate.cli.terminal import (
    Json,
    Merge,
    PartOf,
    RecipeFile,
    Run,
    Settings,
    VideosOrUrl,
    Workers,
    answer,
    app,
    crew_of,
    place_of,
    spec_of,
    working,
)


@app.command("score-models")
def score_models(
    run: Run,
    videos: VideosOrUrl = None,
    workers: Workers = None,
    part: PartOf = None,
    merge: Merge = False,
    recipe: RecipeFile = None,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Score pictures by neural networks: aesthetic and caption match on CLIP, watermark, area of text.

    A model that is not named is not run. Stopped at any moment, the same command goes on.

    With models at hand: vidcurate score-models run --set clip=clip-vit-large-patch14 --set
    aesthetic_head=sac+logos+ava1-l14-linearMSE.pth

    Example: vidcurate score-models --help
    """
    from vidcurate.models import ModelsSpec, run_models

    spec = spec_of(ModelsSpec, recipe, settings)
    with working(run, "score-models", quiet=as_json) as progress:
        summary = run_models(
            run,
            spec,
            videos=place_of(run, videos),
            crew=crew_of(workers, "local", part, merge),
            progress=progress,
        )
    answer(asdict(summary), title=f"score-models → {run}", as_json=as_json)
