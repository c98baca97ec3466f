"""Stage `caption`: ask a vision-language model and add its captions to the table.

Every answer is kept in RUN/captions.jsonl as it comes. The table follows from the table before, from these
answers and from the settings alone, so a stage that was killed resumes and ends with the same bytes.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from vidcurate.curation.captioning.answers import ANSWERS, Answer, by_clip, read_answers, source_hash
from vidcurate.curation.captioning.ask import Result, Task, ask_all, missing_names
from vidcurate.curation.captioning.client import Server, api_key, check_endpoint
from vidcurate.curation.captioning.estimate import Estimate, Price, estimate, price_of
from vidcurate.curation.captioning.merge import COLUMNS, Checked, caption_rows
from vidcurate.curation.captioning.spec import CaptionSpec, request_hash, short_hash
from vidcurate.curation.captioning.verdict import RULES, verdicts_of
from vidcurate.curation.clip_table import run_lock, table
from vidcurate.curation.clip_table.own_columns import captions_of
from vidcurate.curation.clip_table.schema import STAGES, require
from vidcurate.errors import InputError
from vidcurate.executor.map_clips import Progress, no_progress
from vidcurate.storage import download

_MEASURED = 8  # clips on which the estimate is measured
_NEEDED = ("clip_id", "video_path", "ingest_problem", "start_seconds", "end_seconds", "file_size_bytes")
_OPTIONAL = ("caption", "captions", "caption_name", "probe_status")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptionSummary:
    """Counts of the stage. `new_answers` were given now, `known_answers` before; tokens are of the new ones.

    `by_status` counts the clips by caption_status, `captions` the new captions in the table by name.
    `clips_without_answer` failed for `first_failure`; the same command asks for them again. `run_again`:
    commands of later stages whose tables do not have these captions yet. `price` is of the new answers, None
    without a price.
    """

    rows_in: int
    clips_asked: int
    new_answers: int
    known_answers: int
    tokens_in: int
    tokens_out: int
    price: float | None
    clips_without_answer: int
    first_failure: str | None
    estimate: Estimate | None
    captions: dict[str, int] = field(default_factory=dict)
    by_status: dict[str, int] = field(default_factory=dict)
    run_again: tuple[str, ...] = ()
    up_to_date: bool = False


def _checked(answers: Sequence[Answer], spec: CaptionSpec) -> dict[str, Checked]:
    verdicts = dict(
        zip(
            (answer.id for answer in answers),
            verdicts_of(answers, allow_boilerplate=spec.allow_boilerplate),
            strict=True,
        )
    )
    return {
        clip_id: [(answer, verdicts[answer.id]) for answer in some]
        for clip_id, some in by_clip(answers).items()
    }


def _is_asked(clip: Mapping[str, Any]) -> bool:
    """Return whether a clip has a file that no earlier stage found broken; it may lack a caption."""
    path = clip["video_path"]
    return (
        path is not None
        and not path.startswith("/")
        and clip["ingest_problem"] in (None, "empty_caption")
        and clip.get("probe_status", "ok") == "ok"
    )


def _tasks(clips: pl.DataFrame, checked: Mapping[str, Checked], spec: CaptionSpec) -> list[Task]:
    tasks = []
    for clip in clips.iter_rows(named=True):
        if _is_asked(clip):
            sourced = {**clip, "source": source_hash(clip)}
            names = missing_names(sourced, checked.get(clip["clip_id"], ()), spec)
            if names:
                tasks.append(Task(clip=sourced, names=names))
    return tasks


class _Progress:
    """Results as they come: the estimate after the first, and what the summary needs."""

    def __init__(
        self, tasks: Sequence[Task], spec: CaptionSpec, price: Price | None, say: Callable[[str], None]
    ) -> None:
        self.left = sum(len(task.names) for task in tasks)
        self.new: list[Answer] = []
        self.failures: dict[str, tuple[str, str]] = {}
        self.clips_without_answer = 0
        self.first_failure: str | None = None
        self.estimate: Estimate | None = None
        self._spec, self._price, self._say = spec, price, say
        self._clips = 0
        self._measured = min(_MEASURED, len(tasks))

    def add(self, result: Result) -> None:
        self.left -= len(result.task.names)
        self.new += result.answers
        if result.failure is not None:
            self.failures[result.task.clip["clip_id"]] = result.failure
        if result.no_answer is not None:
            self.clips_without_answer += 1
            self.first_failure = self.first_failure or str(result.no_answer)
        self._clips += 1
        if self._clips == self._measured:
            self.predict(self.left)

    def predict(self, left: int) -> None:
        concurrency = self._spec.concurrency
        self.estimate = estimate(self.new, left, concurrency=concurrency, price=self._price)
        if self.estimate is not None and left:
            self._say(self.estimate.text())


@run_lock.holding_run
def run_caption(
    run: Path,
    spec: CaptionSpec,
    *,
    videos: Path | str,
    price: Price | None = None,
    only_estimate: bool = False,
    num_workers: int = 1,
    say: Callable[[str], None] = lambda line: None,
    progress: Progress = no_progress,
) -> CaptionSummary:
    """Ask for the captions that clips lack, and write RUN/caption.parquet.

    `price` is per million tokens in and out; `say` receives the estimate after the first answers. With
    `only_estimate` the model is asked about a few clips, whose answers are kept, and no table is written.
    A clip whose file cannot be read, or for which the server has no answer, is a row. Raises InputError for a
    missing folder or a server that refuses the key, the model or every request, StorageError when the server
    gives no answers, TableError for a forged line of RUN/captions.jsonl, StageError.
    """
    check_endpoint(spec.endpoint)
    key = api_key()
    download.require(videos)
    previous = table.previous_stage(run, "caption")
    source = table.stage_path(run, previous)
    lazy = table.scan(run, previous)
    schema = lazy.collect_schema().names()
    require(schema, _NEEDED, str(source))
    clips = lazy.select(name for name in schema if name in (*_NEEDED, *_OPTIONAL)).collect()
    known = read_answers(run)
    _check_main(spec, clips, known)
    tasks = _tasks(clips, _checked(known, spec), spec)
    all_left = sum(len(task.names) for task in tasks)
    if only_estimate:
        tasks = tasks[:: max(1, len(tasks) // _MEASURED)][:_MEASURED]
    done = _Progress(tasks, spec, price, (lambda line: None) if only_estimate else say)
    requests = {request_hash(spec, name) for name in spec.prompts}
    is_one_good = any(answer.request in requests and answer.problem is None for answer in known)
    if tasks:
        total = done.left
        progress(0, total, "captions")
        for result in ask_all(
            run,
            spec,
            tasks,
            server=Server(spec, key),
            videos=videos,
            num_workers=num_workers,
            is_one_good=is_one_good,
        ):
            done.add(result)
            progress(total - done.left, total, "captions")
    paid = _paid(done.new, price)
    if only_estimate:
        if not done.new:
            done.new += [answer for answer in known if answer.request in requests][-_MEASURED:]
        done.predict(all_left - sum(len(task.names) for task in tasks))
        return CaptionSummary(
            rows_in=len(clips), clips_asked=len(tasks), known_answers=len(known), **paid, **_left(done)
        )
    num_known = len(known)
    del known  # they are read again with the new ones
    checked = _checked(read_answers(run), spec)

    def rows() -> Iterator[dict[str, Any]]:
        return caption_rows(clips.iter_rows(named=True), checked, done.failures, spec.main)

    said = hashlib.sha256()
    for row in rows():
        said.update(json.dumps(row, sort_keys=True).encode())
    origin = table.Provenance(
        stage="caption",
        settings={
            "main": spec.main,
            "allow_boilerplate": spec.allow_boilerplate,
            "rules": short_hash(repr(RULES)),
        },
        inputs={previous: table.digest(source), ANSWERS: said.hexdigest()},
    )
    target = table.stage_path(run, "caption")
    up_to_date = table.is_up_to_date(target, origin)
    if not up_to_date:
        table.write(table.from_rows(rows(), COLUMNS), target, origin)
    written = pl.read_parquet(target, columns=["caption_status", "caption_models"])
    return CaptionSummary(
        rows_in=len(clips),
        clips_asked=len(tasks),
        known_answers=num_known,
        **paid,
        **_left(done),
        captions=_names(written["caption_models"]),
        by_status=dict(sorted(written["caption_status"].value_counts().iter_rows())),
        run_again=_made_without(run),
        up_to_date=up_to_date,
    )


def _paid(answers: Sequence[Answer], price: Price | None) -> dict[str, Any]:
    """Return what the new answers cost, as fields of the summary."""
    tokens_in = sum(answer.tokens_in or 0 for answer in answers)
    tokens_out = sum(answer.tokens_out or 0 for answer in answers)
    return {
        "new_answers": len(answers),
        "tokens_in": tokens_in,
        "tokens_out": tokens_out,
        "price": None if price is None else price_of(tokens_in, tokens_out, price),
    }


def _left(done: _Progress) -> dict[str, Any]:
    return {
        "clips_without_answer": done.clips_without_answer,
        "first_failure": done.first_failure,
        "estimate": done.estimate,
    }


def _names(models: pl.Series) -> dict[str, int]:
    """Return name → number of new captions, from caption_models."""
    counts = Counter(part.partition(": ")[0] for text in models.drop_nulls() for part in text.split("; "))
    return dict(sorted(counts.items()))


def _check_main(spec: CaptionSpec, clips: pl.DataFrame, known: Sequence[Answer]) -> None:
    """Raise InputError for a main caption that neither a prompt, a clip nor an answer has."""
    if spec.main is None or spec.main in spec.prompts or any(one.name == spec.main for one in known):
        return
    names = {name for clip in clips.iter_rows(named=True) for name in captions_of(clip)} | set(spec.prompts)
    if spec.main not in names:
        raise InputError(f"main={spec.main}: no caption has this name. Names: {', '.join(sorted(names))}.")


def _made_without(run: Path) -> tuple[str, ...]:
    """Return the commands of later stages whose tables were made without this table."""
    stale: list[str] = []
    for stage in STAGES[STAGES.index("caption") + 1 :]:
        path = table.stage_path(run, stage)
        if path.exists():
            (before, digest) = next(
                (name, digest) for name, digest in table.provenance(path).inputs.items() if name in STAGES
            )
            is_earlier = STAGES.index(before) < STAGES.index("caption")
            is_old = before == "caption" and digest != table.digest(table.stage_path(run, "caption"))
            if is_earlier or is_old or before in stale:
                stale.append(stage)
    return tuple(f"vidcurate {table.command_of(stage)} {run}" for stage in stale)
