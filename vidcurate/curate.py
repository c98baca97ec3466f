"""The road as one function: from a table of captions to shards, a line a stage.

Every stage is up to date or run again by itself, so the same command continues where it stopped.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from vidcurate import difficulty, filter, frames, ingest, probe, report, score, shards
from vidcurate.difficulty import SplitSpec
from vidcurate.engine import Progress
from vidcurate.errors import InputError
from vidcurate.filter import FilterSpec
from vidcurate.frames import FramesSpec
from vidcurate.ingest import IngestSpec
from vidcurate.probe import ProbeSpec
from vidcurate.recipe import Recipe
from vidcurate.score import ScoreSpec
from vidcurate.shards import ShardSpec

Telling = Callable[[str], AbstractContextManager[Progress]]
Told = Callable[[str, dict[str, Any]], None]


class CurateRecipe(Recipe):
    """A whole curation. `run` is the folder that holds every stage's table; shards go to RUN/shards."""

    run: Path
    """the run folder"""
    workers: Annotated[int, Field(ge=1)] = 1
    """processes of the stages that read files; they change no byte"""
    ingest: IngestSpec
    """which table and videos to take in"""
    score: ScoreSpec = ScoreSpec()
    """how captions are scored"""
    frames: FramesSpec | None = None
    """how pictures are scored; null: no clip is decoded"""
    filter: FilterSpec = FilterSpec()
    """which clips are kept"""
    split: SplitSpec = SplitSpec()
    """levels and folds"""
    shards: ShardSpec = ShardSpec()
    """how shards are cut and filled"""


def curate(recipe: CurateRecipe, *, telling: Telling, told: Told) -> dict[str, dict[str, Any]]:
    """Run every stage of `recipe` and return each one's summary.

    `telling` shows the progress of a stage, `told` gets a stage's summary as soon as it is there. Raises what
    the stages raise.
    """
    run, workers = recipe.run, recipe.workers
    summaries: dict[str, dict[str, Any]] = {}

    def done(stage: str, summary: Any) -> None:
        summaries[stage] = asdict(summary)
        told(stage, summaries[stage])

    with telling("ingest") as progress:
        ingested = ingest.run_ingest(run, recipe.ingest, progress=progress)
        done("ingest", ingested)
    if ingested.videos is None:
        raise InputError("ingest.videos is not set: a curation to shards needs the folder of videos.")
    videos = Path(ingested.videos)
    with telling("probe") as progress:
        spec = ProbeSpec(videos=videos)
        done("probe", probe.run_probe(run, spec, num_workers=workers, progress=progress))
    with telling("score") as progress:
        done("score", score.run_score(run, recipe.score, progress=progress))
    if recipe.frames is not None:
        with telling("score-frames") as progress:
            done(
                "score-frames",
                frames.run_frames(run, recipe.frames, videos=videos, num_workers=workers, progress=progress),
            )
    with telling("filter") as progress:
        done("filter", filter.run_filter(run, recipe.filter, progress=progress))
    with telling("split") as progress:
        done("split", difficulty.run_split(run, recipe.split, progress=progress))
    with telling("build-shards") as progress:
        done(
            "build-shards",
            shards.run_build_shards(
                run, recipe.shards, videos=videos, out=run / "shards", num_workers=workers, progress=progress
            ),
        )
    with telling("report") as progress:
        done("report", report.run_report(run, videos=videos))
    return summaries
