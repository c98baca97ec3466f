"""Outcome of the review per clip: the word of all reviewers, merged by one rule.

Each reviewer's newest keep or reject that stands is that reviewer's word. Reject wins: a clip that any
reviewer rejects is rejected, because a bad clip in the training set costs more than a good one outside. The
newest edited caption wins. A clip's tags are the tags of all reviewers, each by that reviewer's newest line.
The order in which two reviewers worked does not change a verdict.
"""

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vidcurate.curation.review_decisions.decision import Recorded

RULE = "reject wins: a clip that any reviewer rejects is rejected; the newest edited caption wins"
_MOST_LISTED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the reviewers decided on one clip. `words` are the keep and reject lines that count, in order."""

    clip_id: str
    words: tuple[Recorded, ...] = ()
    edit: Recorded | None = None
    tags: tuple[str, ...] = ()

    @property
    def verdict(self) -> str | None:
        """keep, reject, or None when only captions or tags were set."""
        return min((line.verdict for line in self.words), key=("reject", "keep").index, default=None)

    @property
    def is_disputed(self) -> bool:
        """Whether one reviewer keeps what another rejects."""
        return len({line.verdict for line in self.words}) > 1

    def text(self) -> str | None:
        """Return who decided what and why: "rejected by ana: too dark (decision 12)"; None without."""
        verdict = self.verdict
        if verdict is None:
            return None
        said = [
            f"{line.reviewer}: {line.reason or 'no reason given'} (decision {line.number})"
            for line in self.words
            if line.verdict == verdict
        ]
        return f"{'rejected' if verdict == 'reject' else 'kept'} by {'; '.join(said)}"


def standing(decisions: Iterable[Recorded]) -> list[Recorded]:
    """Return the decisions that were not undone, in order."""
    return [line for line in decisions if line.undone_by is None]


def merge_decisions(decisions: Iterable[Recorded]) -> dict[str, Outcome]:
    """Return clip_id → outcome, sorted by clip_id; clips whose decisions were all undone are left out."""
    words: dict[str, dict[str, Recorded]] = {}
    tags: dict[str, dict[str, Recorded]] = {}
    edits: dict[str, Recorded] = {}
    for line in standing(decisions):
        if line.verdict == "caption":
            edits[line.clip_id] = line
        else:
            (tags if line.verdict == "tag" else words).setdefault(line.clip_id, {})[line.reviewer] = line
    return {
        clip_id: Outcome(
            clip_id=clip_id,
            words=tuple(sorted(words.get(clip_id, {}).values(), key=lambda line: line.number)),
            edit=edits.get(clip_id),
            tags=tuple(sorted({tag for line in tags.get(clip_id, {}).values() for tag in line.tags})),
        )
        for clip_id in sorted({*words, *tags, *edits})
    }


def digest_of(outcomes: Mapping[str, Outcome]) -> str:
    """Return the SHA-256 of what the outcomes change in the table, as hex."""
    said = [
        (one.clip_id, one.text(), one.edit.caption if one.edit else None, one.tags)
        for one in outcomes.values()
    ]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def cohens_kappa(first: Iterable[str], second: Iterable[str]) -> float | None:
    """Return Cohen's kappa of two raters' verdicts on the same clips; None when chance alone agrees always.

    kappa = (p_observed - p_chance) / (1 - p_chance); Cohen 1960, A coefficient of agreement for nominal
    scales, Educational and Psychological Measurement 20(1). Raises ValueError for lists of other lengths.
    """
    pairs = list(zip(first, second, strict=True))
    if not pairs:
        return None
    ours, theirs = Counter(one for one, _ in pairs), Counter(other for _, other in pairs)
    observed = sum(one == other for one, other in pairs) / len(pairs)
    chance = sum(ours[name] * theirs[name] for name in ours) / len(pairs) ** 2
    return None if chance == 1 else (observed - chance) / (1 - chance)


def agreement(outcomes: Mapping[str, Outcome]) -> list[dict[str, Any]]:
    """Return, per pair of reviewers with clips in common: reviewers, clips, agreed (share), kappa."""
    common: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for one in outcomes.values():
        said = {line.reviewer: line.verdict for line in one.words}
        for pair in itertools.combinations(sorted(said), 2):
            common.setdefault(pair, []).append((said[pair[0]], said[pair[1]]))
    found = []
    for (first, second), verdicts in sorted(common.items()):
        kappa = cohens_kappa(*zip(*verdicts, strict=True))
        found.append(
            {
                "reviewers": f"{first}, {second}",
                "clips": len(verdicts),
                "agreed": round(sum(one == other for one, other in verdicts) / len(verdicts), 6),
                "kappa": None if kappa is None else round(kappa, 6),
            }
        )
    return found


def summarise_decisions(decisions: Iterable[Recorded]) -> dict[str, Any]:
    """Return counts of a run's decisions as plain values.

    decisions, undone, clips, kept, rejected, captions (edited), tagged; reviewers: {reviewer, keep, reject,
    caption, tag}; reasons: reason → rejections; rule (how reviewers are merged); agreement: as `agreement`
    returns; double_reviewed and disputed: counts of clips; disputes: the first 100 of them, {clip_id, words}.
    """
    every = list(decisions)
    outcomes = merge_decisions(every)
    by: dict[str, Counter[str]] = {}
    for line in standing(every):
        by.setdefault(line.reviewer, Counter())[line.verdict] += 1
    verdicts = Counter(one.verdict for one in outcomes.values())
    reasons = Counter(
        line.reason or "no reason given"
        for one in outcomes.values()
        for line in one.words
        if line.verdict == "reject"
    )
    disputed = [one for one in outcomes.values() if one.is_disputed]
    return {
        "decisions": len(every),
        "undone": len(every) - len(standing(every)),
        "clips": len(outcomes),
        "kept": verdicts["keep"],
        "rejected": verdicts["reject"],
        "captions": sum(one.edit is not None for one in outcomes.values()),
        "tagged": sum(bool(one.tags) for one in outcomes.values()),
        "reasons": dict(reasons.most_common()),
        "rule": RULE,
        "double_reviewed": sum(len(one.words) > 1 for one in outcomes.values()),
        "disputed": len(disputed),
        "reviewers": [
            {
                "reviewer": name,
                **{verdict: counts[verdict] for verdict in ("keep", "reject", "caption", "tag")},
            }
            for name, counts in sorted(by.items())
        ],
        "agreement": agreement(outcomes),
        "disputes": [
            {
                "clip_id": one.clip_id,
                "words": "; ".join(f"{line.reviewer}: {line.verdict}" for line in one.words),
            }
            for one in disputed[:_MOST_LISTED]
        ],
    }
