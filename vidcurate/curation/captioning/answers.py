"""Answers of the model: RUN/captions.jsonl, a line for each.

A line has model, prompt, hashes, tokens and seconds. The file is a journal (`storage.journal`): an answer is
flushed before the next request of its clip, so a killed run asks again only for what was on its way. The line
holds what the model said, as it came: which answers become captions is decided when the table is written
(`verdict`).
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from vidcurate.curation.captioning.client import Reply
from vidcurate.curation.captioning.spec import CaptionSpec, request_hash, short_hash
from vidcurate.recipe.recipe import Recipe
from vidcurate.storage import journal
from vidcurate.storage.journal import Known, now_utc

ANSWERS = "captions.jsonl"
_LOCK = ".captions.lock"
_MOST_TEXT = 50_000
_UNKNOWN = "\ufffd"  # replacement character

Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]


class Answer(Recipe):
    """One answer about one clip: a line of RUN/captions.jsonl."""

    number: Annotated[int, Field(ge=1)]
    """the line's number in the file; 1 is the first"""
    id: Hash
    """hash of clip, source, name, request and replaces: nothing is asked twice"""
    clip_id: str
    """the clip, as in the run's table"""
    source: Hash
    """hash of the clip's file (path, size in bytes) and interval; answers about another file do not count"""
    name: str
    """name of the caption"""
    place: Annotated[int, Field(ge=0)]
    """place of the prompt among those of the command"""
    model: str
    """the model that was asked"""
    prompt: Hash
    """hash of the prompt's text"""
    request: Hash
    """hash of model, prompt, frames' number and size, and sampling"""
    frames: Hash
    """hash of the JPEGs that the model saw"""
    text: str
    """what the model said, at most 50,000 characters"""
    finish: str
    """the server's finish_reason; "" without one"""
    problem: str | None
    """why the server or the model declined; null for a plain answer"""
    tokens_in: int | None
    """tokens of prompt and frames, as the server counts"""
    tokens_out: int | None
    """tokens of the answer, as the server counts"""
    seconds: Annotated[float, Field(ge=0)]
    """time from request to answer"""
    replaces: bool
    """asked with --replace: takes the place of a caption of this name"""
    time_utc: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")]
    """when the line was written"""


_known: dict[Path, Known[Answer]] = {}  # read and written under the journal's lock


def _parse(fields: dict[str, Any], _: Known[Answer]) -> Answer:
    return Answer.model_validate(fields)


def source_hash(clip: Mapping[str, Any]) -> str:
    """Return the hash of a clip's file and interval, from its row (video_path, start and end, size)."""
    names = ("video_path", "start_seconds", "end_seconds", "file_size_bytes")
    return short_hash(repr([clip.get(name) for name in names]))


def answer_id(clip_id: str, source: str, name: str, request: str, *, replaces: bool) -> str:
    """Return the id of an answer."""
    return short_hash(repr([clip_id, source, name, request, replaces]))


def append_answer(
    run: Path, spec: CaptionSpec, name: str, clip: Mapping[str, Any], frames: str, reply: Reply
) -> Answer:
    """Append the reply about a clip (clip_id, source) to RUN/captions.jsonl, flushed, and return its line.

    An answer that is there already (same id) stays, and its line is returned. Raises TableError for a forged
    line, StorageError, MissingError without the run folder.
    """
    request = request_hash(spec, name)
    key = answer_id(clip["clip_id"], clip["source"], name, request, replaces=spec.replace)
    with journal.writing(run / ANSWERS, run / _LOCK, _parse, _known) as (handle, known):
        if (number := known.numbers.get(key)) is not None:
            return known.lines[number - 1]
        answer = Answer(
            number=len(known.lines) + 1,
            id=key,
            clip_id=clip["clip_id"],
            source=clip["source"],
            name=name,
            place=list(spec.prompts).index(name),
            model=spec.model,
            prompt=short_hash(spec.prompts[name].text),
            request=request,
            frames=frames,
            text=_without_surrogates(reply.text[:_MOST_TEXT]),
            finish=_without_surrogates(reply.finish[:100]),
            problem=None if reply.problem is None else _without_surrogates(reply.problem),
            tokens_in=reply.tokens_in,
            tokens_out=reply.tokens_out,
            seconds=reply.seconds,
            replaces=spec.replace,
            time_utc=now_utc(),
        )
        journal.append(handle, known, answer, answer.model_dump(mode="json"))
        return answer


def read_answers(run: Path) -> list[Answer]:
    """Return the answers of RUN/captions.jsonl, in order; none without the file.

    Half a line at the end (a writer at work, or killed) is skipped. Raises TableError for a forged line,
    StorageError.
    """
    return journal.read(run / ANSWERS, _parse).lines


def by_clip(answers: Iterable[Answer]) -> dict[str, list[Answer]]:
    """Return clip_id → its answers, in the file's order."""
    found: dict[str, list[Answer]] = {}
    for answer in answers:
        found.setdefault(answer.clip_id, []).append(answer)
    return found


def _without_surrogates(text: str) -> str:
    """Return the text with U+FFFD for what UTF-8 cannot hold."""
    return "".join(_UNKNOWN if "\ud800" <= letter <= "\udfff" else letter for letter in text)
