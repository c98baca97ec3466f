"""Questions to the server: which clips lack an answer; many requests at once.

Worker processes read the frames, threads wait for the server; each thread appends its answer to
RUN/captions.jsonl before it asks the next question.
"""

import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from vidcurate.curation.captioning import frames
from vidcurate.curation.captioning.answers import Answer, answer_id, append_answer
from vidcurate.curation.captioning.client import Reply, Server, payload
from vidcurate.curation.captioning.merge import Checked, apply_answers
from vidcurate.curation.captioning.spec import CaptionSpec, request_hash
from vidcurate.errors import InputError, StorageError
from vidcurate.executor.map_shards import in_threads
from vidcurate.executor.worker_processes import Work, WorkerProcesses
from vidcurate.storage import download

_CLIPS_AT_ONCE = 4  # a chunk of one decoder
_DECODE_SECONDS = 600.0
_MOST_IN_A_ROW = 8  # clips without an answer, one after the other, that end the stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A clip (its row, with `source`) and the captions that it lacks."""

    clip: Mapping[str, Any]
    names: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Result:
    """Outcome of a clip: its new answers, and why frames (status, problem) or further answers are missing."""

    task: Task
    answers: list[Answer] = field(default_factory=list)
    failure: tuple[str, str] | None = None
    no_answer: StorageError | None = None


def missing_names(clip: Mapping[str, Any], checked: Checked, spec: CaptionSpec) -> tuple[str, ...]:
    """Return the captions for which the model is to be asked about a clip: no question is asked twice.

    A caption that the clip has is asked for with `spec.replace` alone, unless the same request wrote it.
    """
    captions = apply_answers(clip, checked)
    ids = {answer.id for answer, _ in checked}
    found = []
    for name in spec.prompts:
        request = request_hash(spec, name)
        if name in captions.texts and not spec.replace:
            continue
        if name in captions.written and captions.written[name].request == request:
            continue
        if answer_id(clip["clip_id"], clip["source"], name, request, replaces=spec.replace) not in ids:
            found.append(name)
    return tuple(found)


class _Asker:
    """Asks about one clip after the other, in many threads.

    Requests that the server declines (HTTP 400) are kept back until one was accepted: when it declines all,
    the request is at fault, not the clips.
    """

    def __init__(self, run: Path, spec: CaptionSpec, server: Server, *, is_one_good: bool) -> None:
        self._run, self._spec, self._server = run, spec, server
        self._is_one_good = is_one_good
        self._kept_back: list[tuple[str, Task, str, Reply]] = []
        self._lock = threading.Lock()

    def ask(self, found: tuple[Task, dict[str, Any]]) -> Result:
        task, looked = found
        result = Result(task=task)
        if looked["frames"] is None:
            result.failure = (looked["status"], looked["problem"])
            return result
        for name in task.names:
            try:
                reply = self._server.ask(payload(self._spec, name, looked["frames"]))
            except StorageError as error:
                result.no_answer = error
                return result
            if self._is_kept_back(name, task, looked["hash"], reply):
                continue
            result.answers.append(self._append(name, task, looked["hash"], reply))
        return result

    def _append(self, name: str, task: Task, digest: str, reply: Reply) -> Answer:
        return append_answer(self._run, self._spec, name, task.clip, digest, reply)

    def _is_kept_back(self, name: str, task: Task, digest: str, reply: Reply) -> bool:
        is_declined = reply.problem is not None and reply.problem.startswith("HTTP ")
        with self._lock:
            if is_declined and not self._is_one_good:
                self._kept_back.append((name, task, digest, reply))
                if len(self._kept_back) >= _MOST_IN_A_ROW:
                    raise self._declined()
                return True
            self._is_one_good = True
            kept, self._kept_back = self._kept_back, []
        for one in kept:
            self._append(*one)
        return False

    def _declined(self) -> InputError:
        problem = self._kept_back[0][3].problem
        return InputError(
            f"{self._spec.endpoint}: the server declines every request ({problem}). Check --model "
            f"{self._spec.model} and the settings, such as --set num_frames={self._spec.num_frames}."
        )

    def finish(self) -> None:
        """Raise InputError when the server declined every request."""
        if self._kept_back:
            raise self._declined()


def _looked(
    tasks: Sequence[Task], spec: CaptionSpec, videos: Path | str, num_workers: int
) -> Generator[tuple[Task, dict[str, Any]]]:
    """Yield each task with the frames of its clip, as decoders finish; none is read far ahead."""
    items = [
        {
            "path": download.join(videos, task.clip["video_path"]),
            "start_seconds": task.clip.get("start_seconds"),
            "end_seconds": task.clip.get("end_seconds"),
        }
        for task in tasks
    ]
    starts = range(0, len(items), _CLIPS_AT_ONCE)
    work = Work(
        function=partial(frames.clip_frames, num_frames=spec.num_frames, short_side_px=spec.short_side_px),
        on_lost=frames.lost,
        time_limit_seconds=_DECODE_SECONDS,
    )
    with WorkerProcesses(work, num_workers) as workers:
        for start, rows in workers.run((start, items[start : start + _CLIPS_AT_ONCE]) for start in starts):
            yield from zip(tasks[start : start + _CLIPS_AT_ONCE], rows, strict=True)


def ask_all(
    run: Path,
    spec: CaptionSpec,
    tasks: Sequence[Task],
    *,
    server: Server,
    videos: Path | str,
    num_workers: int,
    is_one_good: bool,
) -> Iterator[Result]:
    """Ask for every task's captions; yield the results as they come. The answers are in the journal by then.

    `is_one_good`: the server has accepted such a request before. Raises InputError when the server refuses
    key, model or every request, StorageError when many clips in a row, or all, got no answer.
    """
    asker = _Asker(run, spec, server, is_one_good=is_one_good)
    in_a_row = num_answered = 0
    first: StorageError | None = None
    with (
        closing(_looked(tasks, spec, videos, num_workers)) as looked,
        closing(in_threads(asker.ask, looked, spec.concurrency, server.stop)) as results,
    ):
        for result in results:
            in_a_row = in_a_row + 1 if result.no_answer is not None else 0
            if result.no_answer is not None and in_a_row >= max(_MOST_IN_A_ROW, spec.concurrency):
                raise result.no_answer
            num_answered += len(result.answers)
            first = first or result.no_answer
            yield result
    asker.finish()
    if first is not None and not num_answered:
        raise first
