"""The road as one function: from a table of captions to shards, a line a stage.

Every stage is up to date or run again by itself, so the same command continues where it stopped.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from vidcurate.curation.caption_scores import stage as caption_scores_stage
from vidcurate.curation.caption_scores.stage import ScoreSpec
from vidcurate.curation.clip_table import rejection_ledger, table
from vidcurate.curation.dedup.spec import DedupSpec
from vidcurate.curation.dedup.stage import run_dedup
from vidcurate.curation.difficulty import stage as difficulty_stage
from vidcurate.curation.difficulty.spec import SplitSpec
from vidcurate.curation.filter import stage as filter_stage
from vidcurate.curation.filter.spec import FilterSpec
from vidcurate.curation.frame_scores import stage as frame_scores_stage
from vidcurate.curation.frame_scores.spec import FramesSpec
from vidcurate.curation.ingest import stage as ingest_stage
from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.curation.model_scores.spec import ModelsSpec
from vidcurate.curation.model_scores.stage import run_models
from vidcurate.curation.probe import stage as probe_stage
from vidcurate.curation.probe.stage import ProbeSettings, ProbeSpec
from vidcurate.curation.report import build as report_build
from vidcurate.curation.report import card
from vidcurate.curation.report.card import CardSpec
from vidcurate.errors import InputError
from vidcurate.executor.map_clips import EngineName, ExecutorSpec, PartSummary, Progress
from vidcurate.recipe.recipe import Recipe
from vidcurate.shards import build as shards_build
from vidcurate.shards.layout import ShardSpec

ProgressBar = Callable[[str], AbstractContextManager[Progress]]
Reported = Callable[[str, dict[str, Any]], None]
STOPS = (
    "ingest", "probe", "score", "score-frames", "score-models", "dedup", "filter", "split", "build-shards",
    "report",
)  # fmt: skip


class CurateRecipe(Recipe):
    """A whole curation. `run` is the folder that holds every stage's table; shards go to RUN/shards."""

    run: Path
    """the run folder"""
    workers: Annotated[int, Field(ge=1)] = 1
    """processes of the stages that read files, on a cluster all its nodes together; they change no byte"""
    engine: EngineName = "local"
    """where probe and score-frames work: local, or ray (a Ray cluster); it changes no byte"""
    max_failure_share: Annotated[float, Field(ge=0, le=1)] | None = None
    """largest share of the rows that may be missing, broken or fail in a stage; above it the curation stops
    behind that stage with exit code 3, and goes on from there when the limit is raised"""
    ingest: IngestSpec
    """which table and videos to take in"""
    probe: ProbeSettings = ProbeSettings()
    """how closely files are looked at"""
    score: ScoreSpec = ScoreSpec()
    """how captions are scored"""
    frames: FramesSpec | None = None
    """how pictures are scored; null: no clip is decoded"""
    models: ModelsSpec | None = None
    """which neural networks score; null: none"""
    dedup: DedupSpec | None = None
    """which duplicates are looked for; null: none"""
    filter: FilterSpec = FilterSpec()
    """which clips are kept"""
    split: SplitSpec = SplitSpec()
    """levels and folds"""
    shards: ShardSpec = ShardSpec()
    """how shards are cut and filled"""
    card: CardSpec = CardSpec()
    """what the data card says: name, description, licences"""


def curate(
    recipe: CurateRecipe,
    *,
    progress_bar: ProgressBar,
    reported: Reported,
    executor: ExecutorSpec | None = None,
    until: str | None = None,
) -> dict[str, dict[str, Any]]:
    """Run every stage of `recipe` and return each one's summary.

    `telling` shows the progress of a stage, `told` gets a stage's summary as soon as it is there. A crew with
    a part goes to the first stage of clips that is not finished, does its share of that and stops; what lies
    before, the first part does while the others wait. With `until` (one of STOPS) the road ends behind that
    stage. Raises what the stages raise, and InputError for an unknown stage.
    """
    if until is not None and until not in STOPS:
        raise InputError(f"--until {until}: there is no such stage; they are {', '.join(STOPS)}.")
    executor = executor or ExecutorSpec(engine=recipe.engine, num_workers=recipe.workers)
    here = replace(executor, engine="local")
    run, workers = recipe.run, recipe.workers
    summaries: dict[str, dict[str, Any]] = {}

    def done(stage: str, summary: Any) -> bool:
        summaries[stage] = asdict(summary)
        reported(stage, summaries[stage])
        return stage == until or isinstance(summary, PartSummary)

    def in_turn() -> AbstractContextManager[None]:
        return table.alone(run) if executor.part else nullcontext()

    def check(failed: int, total: int, what: str, see: str) -> None:
        rejection_ledger.check_share(
            failed, total, recipe.max_failure_share, what=what, key="max_failure_share", see=see
        )

    with progress_bar("ingest") as progress, in_turn():
        ingested = ingest_stage.run_ingest(run, recipe.ingest, progress=progress)
    if done("ingest", ingested):
        return summaries
    if ingested.videos is None:
        raise InputError("ingest.videos is not set: a curation to shards needs the folder of videos.")
    videos = Path(ingested.videos)
    with progress_bar("probe") as progress:
        spec = ProbeSpec(videos=videos, **recipe.probe.model_dump())
        probed = probe_stage.run_probe(run, spec, executor=executor, progress=progress)
    if done("probe", probed) or isinstance(probed, PartSummary):
        return summaries
    check(
        probed.rows_in - probed.rows_ok,
        probed.rows_in,
        "are missing or broken",
        f"`vidcurate inspect {run}`.",
    )
    with progress_bar("score") as progress, in_turn():
        scored = caption_scores_stage.run_score(run, recipe.score, progress=progress)
    if done("score", scored):
        return summaries
    if recipe.frames is not None:
        with progress_bar("score-frames") as progress:
            looked = frame_scores_stage.run_frames(
                run, recipe.frames, videos=videos, executor=executor, progress=progress
            )
        if done("score-frames", looked):
            return summaries
    if recipe.models is not None:
        with progress_bar("score-models") as progress:
            seen = run_models(run, recipe.models, videos=videos, executor=here, progress=progress)
        if done("score-models", seen):
            return summaries
    if executor.part is not None:
        return summaries  # no stage of clips is left
    if recipe.dedup is not None:
        with progress_bar("dedup") as progress:
            twins = run_dedup(run, recipe.dedup, videos=videos, num_workers=workers, progress=progress)
        if done("dedup", twins):
            return summaries
    with progress_bar("filter") as progress:
        filtered = filter_stage.run_filter(run, recipe.filter, progress=progress)
    if done("filter", filtered):
        return summaries
    limit = recipe.filter.max_failure_share
    limits = {"max_failure_share": recipe.max_failure_share if limit is None else limit}
    filter_stage.check_limits(run, filtered, recipe.filter.model_copy(update=limits))
    with progress_bar("split") as progress:
        levelled = difficulty_stage.run_split(run, recipe.split, progress=progress)
    if done("split", levelled):
        return summaries
    with progress_bar("build-shards") as progress:
        built = shards_build.run_build_shards(
            run, recipe.shards, videos=videos, out=run / "shards", num_workers=workers, progress=progress
        )
    if done("build-shards", built):
        return summaries
    check(built.rows_failed, built.rows_kept, "cannot be read into shards", "The answer above names them.")
    card.run_card(run, recipe.card)
    with progress_bar("report") as progress:
        done("report", report_build.run_report(run, videos=videos))
    return summaries
