"""Verdicts on the model's answers: which text becomes a caption, which does not."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import polars as pl
from pydantic import TypeAdapter, ValidationError

from vidcurate.curation.caption_scores.text_scores import PREFIX, boilerplate
from vidcurate.curation.captioning.answers import Answer
from vidcurate.curation.review_decisions.decision import Caption

OK = "ok"
# Openings with which models decline; a caption of a clip does not begin so.
REFUSAL = (
    r"(?i)^(?:(?:i['’]?m|i am|we are|we['’]re) (?:very |so |really )?sorry\b|sorry,|apologies\b"
    r"|i apologi[sz]e\b"
    r"|(?:i|we) (?:can(?:not|['’]?t| not)|could(?: not|n['’]?t)|won['’]?t|am not able|are not able"
    r"|am unable|are unable|do(?: not|n['’]?t) (?:see|have))\b|i['’]?m (?:unable|not able)\b"
    r"|(?:unfortunately|however),? (?:i|we)\b|as an? (?:ai|language|large language|artificial)\b"
    r"|(?:no|there (?:is|are) no|you (?:have not|haven['’]t|did not|didn['’]t)"
    r" (?:provide|attach|upload|share)d?(?: any| an)?) "
    r"(?:image|picture|video|frame|photo)s?\b.{0,40}(?:provided|attached|uploaded|visible|shared|$)"
    r"|please (?:provide|upload|share|attach)\b)"
)
_THOUGHT = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
_refusal = re.compile(REFUSAL)
_caption = TypeAdapter(Caption)
RULES = (REFUSAL, PREFIX, _THOUGHT.pattern)
_MOST_SHOWN = 120


class Verdict(NamedTuple):
    """`status`: ok (with `caption`), refused, empty, cut, boilerplate, bad_text or bad_request."""

    status: str
    caption: str | None = None
    problem: str | None = None


def verdicts_of(answers: Sequence[Answer], *, allow_boilerplate: bool = False) -> list[Verdict]:
    """Return the verdict on each answer.

    A caption is one line: runs of white space become one space, and a leading <think> block is left out.
    """
    verdicts = [_verdict_alone(answer) for answer in answers]
    if not allow_boilerplate:
        captions = pl.Series([verdict.caption for verdict in verdicts], dtype=pl.String)
        openings = boilerplate(captions)["caption_boilerplate"]
        for place in openings.is_not_null().arg_true():
            shown = _shown(verdicts[place].caption or "")
            verdicts[place] = Verdict("boilerplate", None, f"begins with {openings[place]!r}: {shown}")
    return verdicts


def _verdict_alone(answer: Answer) -> Verdict:
    """Return the verdict on an answer, without the rule on boilerplate."""
    if answer.problem is not None:
        status = "bad_request" if answer.problem.startswith("HTTP ") else "refused"
        return Verdict(status, None, answer.problem)
    if answer.finish == "content_filter":
        return Verdict("refused", None, "the server's content filter stopped the answer")
    text = _THOUGHT.sub("", answer.text).strip()
    if answer.finish == "length" or text.startswith("<think>"):
        return Verdict("cut", None, f"the answer reached max_tokens: {_shown(text)}")
    if not text:
        return Verdict("empty", None, "the answer is empty")
    try:
        _caption.validate_python(text.replace("\r\n", "\n"))
    except ValidationError as error:
        return Verdict(
            "bad_text", None, error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        )
    if "\ufffd" in text:
        return Verdict("bad_text", None, "the answer holds characters that are no text")
    line = " ".join(text.split())
    if _refusal.match(line):
        return Verdict("refused", None, _shown(line))
    return Verdict(OK, line)


def _shown(text: str) -> str:
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line if len(line) <= _MOST_SHOWN else f"{line[: _MOST_SHOWN - 1]}…"
