"""Captions of the clips, with those of the model's answers.

The result depends on the table before, on the answers and on two settings: not on the order in which the
answers of one command came.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vidcurate.curation.captioning.answers import Answer, source_hash
from vidcurate.curation.captioning.verdict import OK, Verdict
from vidcurate.curation.clip_table.own_columns import MAIN, captions_of

Checked = Sequence[tuple[Answer, Verdict]]
COLUMNS = (
    "clip_id", "caption", "captions", "caption_name", "ingest_problem", "caption_status", "caption_problem",
    "caption_models",
)  # fmt: skip
_EMPTY = "empty_caption"


@dataclass(frozen=True, slots=True, kw_only=True)
class Captions:
    """Captions of a clip: `texts` by name; `written`: the answers that are among them; `refused`: the others.

    `refused` has, for each name without an answer that counts, the last one.
    """

    texts: dict[str, str]
    written: dict[str, Answer]
    refused: list[tuple[Answer, Verdict]]


def apply_answers(clip: Mapping[str, Any], checked: Checked) -> Captions:
    """Return the captions of a clip (its row) with its answers. An answer about another file does not count.

    A caption stays unless an answer of its name was asked for with --replace.
    """
    source = source_hash(clip)
    texts = captions_of(clip)
    written: dict[str, Answer] = {}
    refused: dict[str, tuple[Answer, Verdict]] = {}
    for answer, verdict in checked:
        if answer.source != source:
            continue
        if verdict.caption is None:
            refused[answer.name] = (answer, verdict)
        elif answer.name not in texts or answer.replaces:
            texts[answer.name] = verdict.caption
            written[answer.name] = answer
    return Captions(
        texts=texts,
        written=dict(sorted(written.items(), key=lambda one: (one[1].place, one[0]))),
        refused=sorted(
            (one for name, one in refused.items() if name not in written),
            key=lambda one: (one[0].place, one[0].name),
        ),
    )


def main_name(clip: Mapping[str, Any], captions: Captions, wanted: str | None) -> str | None:
    """Return the name of the clip's main caption; None without a caption."""
    if wanted is not None and wanted in captions.texts:
        return wanted
    if clip.get("caption"):
        return clip.get("caption_name") or MAIN
    return next(iter(captions.written), None)


def caption_rows(
    clips: Iterable[Mapping[str, Any]],
    answers: Mapping[str, Checked],
    failures: Mapping[str, tuple[str, str]],
    main: str | None,
) -> Iterator[dict[str, Any]]:
    """Yield each clip's row of the stage's table: COLUMNS. `failures`: clip_id → (status, problem)."""
    for clip in clips:
        captions = apply_answers(clip, answers.get(clip["clip_id"], ()))
        name = main_name(clip, captions, main)
        status, problem = _status(captions, failures.get(clip["clip_id"]))
        yield {
            "clip_id": clip["clip_id"],
            **_columns(clip, captions, name),
            "caption_status": status,
            "caption_problem": problem,
            "caption_models": "; ".join(f"{one}: {answer.model}" for one, answer in captions.written.items())
            or None,
        }


def _columns(clip: Mapping[str, Any], captions: Captions, main: str | None) -> dict[str, Any]:
    problem = clip.get("ingest_problem")
    before = {name: clip.get(name) for name in ("caption", "captions", "caption_name")}
    if main is None or (not captions.written and main == (clip.get("caption_name") or MAIN)):
        return {**before, "ingest_problem": problem}
    first = {main: captions.texts[main]}
    # In the order of the prompts, whichever answer came first.
    known = {name: text for name, text in captions.texts.items() if name not in captions.written}
    texts = first | known | {name: captions.texts[name] for name in captions.written}
    is_plain = set(texts) <= {MAIN}
    return {
        "caption": texts[main],
        "captions": None if is_plain else [{"name": name, "text": text} for name, text in texts.items()],
        "caption_name": None if is_plain else main,
        "ingest_problem": None if problem == _EMPTY else problem,
    }


def _status(captions: Captions, failure: tuple[str, str] | None) -> tuple[str, str | None]:
    if captions.refused:
        problems = "; ".join(
            f"{answer.name}: {verdict.status}: {verdict.problem}" for answer, verdict in captions.refused
        )
        return captions.refused[0][1].status, problems
    if failure is not None:
        return failure
    return (OK if captions.written else "not_captioned"), None
