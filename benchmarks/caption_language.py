"""Captions that are not English: found ones, and English ones taken for others.

    python benchmarks/caption_language.py CAPTIONS.parquet... [--treebank FILE.conllu...]

`captions_by_language.txt` has captions in ten languages, some in others ("other"), and English ones that are
hard to tell: single words, names, brands, dishes, capitals, typos. The function words and the rule were
chosen by the sections without "held out". CAPTIONS are Parquet files with a column caption in English; those
mostly in Chinese are left out. The peer is py3langid with the least confidence at which `language` leaves out
the nouns. CPU seconds are of one thread, least of three, over the first CAPTIONS.
"""

import os

os.environ["POLARS_MAX_THREADS"] = "1"  # read when polars is imported

import argparse
from collections.abc import Callable
from pathlib import Path
from time import process_time

import polars as pl
from rows import keep, row
from treebank import read_conllu, read_sections

from vidcurate.curation.caption_scores import language, nouns_builtin, other_languages

PEER = "py3langid, confidence 0.8"
Decide = Callable[[pl.Series], pl.Series]


def by_words(captions: pl.Series) -> pl.Series:
    return other_languages.is_not_english(captions, pl.DataFrame())


def by_detector(captions: pl.Series) -> pl.Series:
    found = language.score().measure(captions)
    other = (found["caption_language"] != "en") & (found["caption_language_confidence"] >= 0.8)
    return other.fill_null(value=False)


def share(decide: Decide, captions: pl.Series) -> float:
    """Return the share of captions that are called another language, %."""
    return 100 * int(decide(captions).sum()) / len(captions)


def cpu_seconds(decide: Callable[[pl.Series], object], captions: pl.Series) -> float:
    """Return the least CPU time of three calls, s for 1 M captions."""
    least = float("inf")
    for _ in range(3):
        start = process_time()
        decide(captions)
        least = min(least, process_time() - start)
    return least / len(captions) * 1e6


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("captions", type=Path, nargs="+")
    arguments.add_argument("--treebank", type=Path, nargs="*", default=[])
    given = arguments.parse_args()
    sections = read_sections("captions_by_language.txt")
    others: dict[str, list[str]] = {"ten languages": [], "ten languages, held out": []}
    for name, lines in sections.items():
        if not name.startswith(("en", "other")):
            others["ten languages, held out" if "held out" in name else "ten languages"] += lines
    others["other languages"] = sections["other"]
    english: dict[str, pl.Series] = {
        "hard": pl.Series(sections["en"]),
        "hard, held out": pl.Series(sections["en, held out"]),
    }
    for path in given.captions:
        captions = pl.read_parquet(path, columns=["caption"])["caption"].drop_nulls()
        english[path.stem] = captions.filter(~captions.str.contains(r"\p{Han}{9}"))
    for path in given.treebank:
        english[path.stem] = pl.Series([text.text for text in read_conllu(path)])
    found = []
    for name, lines in others.items():
        captions = pl.Series(lines)
        metric = f"found as not English, {len(captions)} captions in {name}"
        ours, theirs = share(by_words, captions), share(by_detector, captions)
        goal = ">= 90" if "held out" in name else ""
        found.append(row(metric, ours, "%", peer=PEER, peer_value=theirs, goal=goal))
    for name, captions in english.items():
        metric = f"left as English, {len(captions):,} English captions: {name}"
        ours, theirs = 100 - share(by_words, captions), 100 - share(by_detector, captions)
        goal = "" if name.startswith("hard") else ">= 99.9"
        found.append(row(metric, ours, "%", peer=PEER, peer_value=theirs, goal=goal))
    some = english[given.captions[0].stem]
    of, mine = f"1 M captions of {given.captions[0].stem}", cpu_seconds(by_words, some)
    for metric, peer, seconds in (
        ("the decision", PEER, cpu_seconds(by_detector, some.head(2000))),
        (
            "the decision, beside counting",
            "the built-in noun counter",
            cpu_seconds(nouns_builtin.count, some),
        ),
    ):
        found.append(
            row(f"{metric}, {of}", mine, "s of CPU", peer=peer, peer_value=seconds, higher_is_better=False)
        )
    keep("caption_language", found)


if __name__ == "__main__":
    main()
