"""Curation pipeline: from a table of captions to shards and a report.

Each stage skips work that is up to date, so the same command resumes a stopped curation.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from pydantic import Field

from vidcurate.curation.caption_scores.stage import ScoreSpec, run_score
from vidcurate.curation.clip_table import run_lock
from vidcurate.curation.clip_table.rejection_ledger import check_share
from vidcurate.curation.dedup.spec import DedupSpec
from vidcurate.curation.dedup.stage import run_dedup
from vidcurate.curation.difficulty.spec import SplitSpec
from vidcurate.curation.difficulty.stage import run_split
from vidcurate.curation.filter.spec import FilterSpec
from vidcurate.curation.filter.stage import check_limits, run_filter
from vidcurate.curation.frame_scores.spec import FramesSpec
from vidcurate.curation.frame_scores.stage import run_frames
from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.curation.ingest.stage import run_ingest
from vidcurate.curation.model_scores.spec import ModelsSpec
from vidcurate.curation.model_scores.stage import run_models
from vidcurate.curation.probe.stage import ProbeSettings, ProbeSpec, run_probe
from vidcurate.curation.report.build import run_report
from vidcurate.curation.report.card import CardSpec, run_card
from vidcurate.errors import InputError
from vidcurate.executor.map_clips import Progress
from vidcurate.executor.parts_folder import EngineName, ExecutorSpec, PartSummary
from vidcurate.recipe.recipe import Recipe
from vidcurate.shards.build import check_written, run_build_shards
from vidcurate.shards.layout import ShardSpec

T = TypeVar("T")
Summaries = dict[str, dict[str, Any]]  # stage → its summary as plain values
ProgressBar = Callable[[str], AbstractContextManager[Progress]]
OnDone = Callable[[str, dict[str, Any]], None]
STAGES = (
    "ingest", "probe", "score", "score-frames", "score-models", "dedup", "filter", "split", "build-shards",
    "report",
)  # fmt: skip


class CurateRecipe(Recipe):
    """A whole curation. `run` is the folder that holds every stage's table; shards go to RUN/shards."""

    run: Path
    """the run folder"""
    workers: Annotated[int, Field(ge=1)] = 1
    """worker processes of the stages that read files (on a Ray cluster: on all nodes together); the output
    is the same for any number"""
    engine: EngineName = "local"
    """where probe and score-frames run: local, or ray (a Ray cluster); the output is the same"""
    max_failure_share: Annotated[float, Field(ge=0, le=1)] | None = None
    """largest share of the rows that may be missing, broken or fail in a stage; above it the curation stops
    after that stage with exit code 3, and resumes from there when the limit is raised"""
    ingest: IngestSpec
    """metadata table and video folder to read"""
    probe: ProbeSettings = ProbeSettings()
    """how thoroughly files are checked"""
    score: ScoreSpec = ScoreSpec()
    """caption scores"""
    frames: FramesSpec | None = None
    """frame scores; null: no clip is decoded"""
    models: ModelsSpec | None = None
    """model scores; null: no neural network runs"""
    dedup: DedupSpec | None = None
    """duplicate search; null: none"""
    filter: FilterSpec = FilterSpec()
    """rules that a kept clip passes"""
    split: SplitSpec = SplitSpec()
    """difficulty levels and folds"""
    shards: ShardSpec = ShardSpec()
    """size and content of the shards"""
    card: CardSpec = CardSpec()
    """data card: name, description, licences"""


class _Stop(Exception):
    """Ends the pipeline after a stage: `until` is reached, or this process did its part of the stage."""


def curate(
    recipe: CurateRecipe,
    *,
    progress_bar: ProgressBar,
    on_done: OnDone,
    executor: ExecutorSpec | None = None,
    until: str | None = None,
) -> Summaries:
    """Run every stage of `recipe` and return each stage's summary.

    `progress_bar(stage)` shows the progress of a stage; `on_done(stage, summary)` is called after each stage.
    With `until` (one of STAGES) the pipeline stops after that stage. With `executor.part` this process does
    its part of the first unfinished stage that can be split (probe, score-frames, score-models) and stops;
    one part at a time runs the stages in between. Raises InputError for an unknown stage, and what the stages
    raise.
    """
    if until is not None and until not in STAGES:
        raise InputError(f"--until {until}: unknown stage. Stages: {', '.join(STAGES)}.")
    executor = executor or ExecutorSpec(engine=recipe.engine, num_workers=recipe.workers)
    summaries: Summaries = {}

    def run_stage(name: str, work: Callable[[Progress], T | PartSummary], *, one_part: bool = False) -> T:
        """Run one stage and return its summary. With `one_part`, parts wait for each other."""
        turn = run_lock.alone(recipe.run, wait=True) if one_part and executor.part else nullcontext()
        with progress_bar(name) as progress, turn:
            summary = work(progress)
        summaries[name] = asdict(cast("Any", summary))
        on_done(name, summaries[name])
        if isinstance(summary, PartSummary) or name == until:
            raise _Stop
        return summary

    with suppress(_Stop), nullcontext() if executor.part else run_lock.alone(recipe.run):
        _run_stages(recipe, executor, run_stage)
    return summaries


def _run_stages(recipe: CurateRecipe, executor: ExecutorSpec, run_stage: Callable[..., Any]) -> None:
    run, workers, limit = recipe.run, recipe.workers, recipe.max_failure_share
    key = "max_failure_share"

    # 1. Read the metadata: one row per clip.
    ingested = run_stage("ingest", lambda bar: run_ingest(run, recipe.ingest, progress=bar), one_part=True)
    if ingested.videos is None:
        raise InputError("ingest.videos is not set. Set it to the video folder: shards need the videos.")
    videos = Path(ingested.videos)

    # 2. Check every video file.
    spec = ProbeSpec(videos=videos, **recipe.probe.model_dump())
    probed = run_stage("probe", lambda bar: run_probe(run, spec, executor=executor, progress=bar))
    failed, see = probed.rows_in - probed.rows_ok, f"Run `vidcurate inspect {run}` to count them."
    check_share(failed, probed.rows_in, limit, what="are missing or broken", key=key, see=see)

    # 3. Score captions, frames (one decode per clip), and frames by neural networks.
    run_stage("score", lambda bar: run_score(run, recipe.score, progress=bar), one_part=True)
    if (frames := recipe.frames) is not None:
        run_stage(
            "score-frames",
            lambda bar: run_frames(run, frames, videos=videos, executor=executor, progress=bar),
        )
    if (models := recipe.models) is not None:
        here = replace(executor, engine="local")
        run_stage(
            "score-models", lambda bar: run_models(run, models, videos=videos, executor=here, progress=bar)
        )
    if executor.part is not None:
        return  # no later stage can be split into parts

    # 4. Find duplicates; keep or reject every clip.
    if (dedup := recipe.dedup) is not None:
        run_stage(
            "dedup", lambda bar: run_dedup(run, dedup, videos=videos, num_workers=workers, progress=bar)
        )
    filtered = run_stage("filter", lambda bar: run_filter(run, recipe.filter, progress=bar))
    check_limits(run, filtered, max_failure_share=limit)

    # 5. Split the kept clips into difficulty levels and folds; write them as shards.
    run_stage("split", lambda bar: run_split(run, recipe.split, progress=bar))
    built = run_stage(
        "build-shards",
        lambda bar: run_build_shards(
            run, recipe.shards, videos=videos, out=run / "shards", num_workers=workers, progress=bar
        ),
    )
    check_written(built, run / "shards")
    failed, see = built.rows_failed, "The summary above names them."
    check_share(failed, built.rows_kept, limit, what="could not be read into shards", key=key, see=see)

    # 6. Write the data card and the report.
    run_card(run, recipe.card)
    run_stage("report", lambda bar: run_report(run, videos=videos))
