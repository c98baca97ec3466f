"""Merging of reviewers, and Cohen's kappa."""

import itertools

import pytest

from vidcurate.curation.review_decisions.decision import Recorded
from vidcurate.curation.review_decisions.outcome import (
    cohens_kappa,
    digest_of,
    merge_decisions,
    summarise_decisions,
)


def recorded(
    number: int, clip_id: str, reviewer: str, verdict: str, undone_by: int | None = None, **fields: object
) -> Recorded:
    line = {
        "number": number,
        "id": f"id-{number}",
        "clip_id": clip_id,
        "reviewer": reviewer,
        "verdict": verdict,
    }
    model = Recorded.model_validate({**line, "time_utc": "2026-01-02T03:04:05.678Z", **fields})
    return model.model_copy(update={"undone_by": undone_by})


def test_reject_wins_whoever_spoke_first_and_a_reviewers_newest_word_counts() -> None:
    for ana, bo in itertools.permutations(("keep", "reject")):
        found = merge_decisions([recorded(1, "a", "ana", ana), recorded(2, "a", "bo", bo)])["a"]
        assert found.verdict == "reject"
        assert found.is_disputed
    changed = [recorded(1, "a", "ana", "reject"), recorded(2, "a", "ana", "keep")]
    assert merge_decisions(changed)["a"].verdict == "keep"
    undone = [recorded(1, "a", "ana", "keep"), recorded(2, "a", "bo", "reject", undone_by=3)]
    assert merge_decisions(undone)["a"].text() == "kept by ana: no reason given (decision 1)"
    assert merge_decisions([recorded(1, "a", "ana", "keep", undone_by=2)]) == {}


def test_captions_and_tags_are_merged_and_change_the_digest() -> None:
    lines = [
        recorded(1, "a", "ana", "caption", caption="One."),
        recorded(2, "a", "bo", "caption", caption="Two."),
        recorded(3, "a", "ana", "tag", tags=("night",)),
        recorded(4, "a", "bo", "tag", tags=("night", "city")),
        recorded(5, "a", "ana", "tag", tags=()),
    ]
    found = merge_decisions(lines)["a"]
    assert found.edit is not None
    assert (found.edit.caption, found.tags, found.verdict) == ("Two.", ("city", "night"), None)
    digests = {digest_of(merge_decisions(lines[:count])) for count in range(5)}
    assert len(digests) == 5


def test_kappa_of_a_published_example_and_at_its_ends() -> None:
    # 20 yes/yes, 5 yes/no, 10 no/yes, 15 no/no: kappa 0.4 (the worked example of Cohen's kappa on Wikipedia).
    pairs = [("y", "y")] * 20 + [("y", "n")] * 5 + [("n", "y")] * 10 + [("n", "n")] * 15
    assert cohens_kappa(*zip(*pairs, strict=True)) == pytest.approx(0.4)
    assert cohens_kappa("ynyn", "ynyn") == 1
    assert cohens_kappa("yn", "ny") == -1
    assert cohens_kappa("yy", "yy") is None
    assert cohens_kappa("", "") is None


def test_the_summary_counts_reviewers_reasons_and_disputes() -> None:
    lines = [
        recorded(1, "a", "ana", "reject", reason="too dark"),
        recorded(2, "a", "bo", "keep"),
        recorded(3, "b", "ana", "keep"),
        recorded(4, "b", "bo", "keep"),
        recorded(5, "c", "ana", "reject", undone_by=6),
        recorded(7, "d", "bo", "reject"),
    ]
    found = summarise_decisions(lines)
    assert (found["decisions"], found["undone"], found["kept"], found["rejected"]) == (6, 1, 1, 2)
    assert found["double_reviewed"] == 2
    assert found["agreement"] == [{"reviewers": "ana, bo", "clips": 2, "agreed": 0.5, "kappa": 0.0}]
    assert found["disputes"] == [{"clip_id": "a", "words": "ana: reject; bo: keep"}]
    assert found["reasons"] == {"too dark": 1, "no reason given": 1}
    assert found["reviewers"][0] == {"reviewer": "ana", "keep": 1, "reject": 1, "caption": 0, "tag": 0}
