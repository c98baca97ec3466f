"""Nouns are counted in English: participles are none of them, and other languages have no count."""

from pathlib import Path

import polars as pl
import pytest

from vidcurate.curation.caption_scores import nouns_builtin
from vidcurate.curation.caption_scores.stage import ScoreSpec, run_score
from vidcurate.curation.clip_table import table

CAPTIONS = [
    "A dog runs across the street.",
    "Мужчина идёт по улице.",
    "一个男人在街上走",
    "Ein Mann geht langsam die Straße entlang.",
    "A man in a кафе reads.",
    None,
    "12 34",
]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    clips = pl.DataFrame({"clip_id": [f"{n}" for n in range(len(CAPTIONS))], "caption": CAPTIONS})
    origin = table.Provenance(stage="ingest", settings={}, inputs={})
    table.write(clips, table.stage_path(tmp_path, "ingest"), origin)
    return tmp_path


def scored(run: Path, **settings: bool) -> pl.DataFrame:
    run_score(run, ScoreSpec(noun_engine="builtin", **settings))  # type: ignore[arg-type]
    return table.scan(run, "score").collect()


def test_captions_in_another_script_have_no_noun_count_unless_asked(run: Path) -> None:
    found = scored(run)
    assert [count is not None for count in found["noun_count"]] == [
        True,
        False,
        False,
        True,
        True,
        False,
        True,
    ]
    for name in ("proper_noun_count", "noun_count_without_proper"):
        assert found[name].is_null().to_list() == found["noun_count"].is_null().to_list()
    assert found["caption_repeats"].null_count() == 1

    assert scored(run, nouns_of_other_languages=True)["noun_count"].null_count() == 1


def test_captions_in_a_language_that_was_detected_have_it_and_no_noun_count(run: Path) -> None:
    pytest.importorskip("py3langid")

    found = scored(run, language=True)

    assert found["caption_language"][3] == "de"
    assert [count is not None for count in found["noun_count"]] == [
        True,
        False,
        False,
        False,
        True,
        False,
        True,
    ]
    assert scored(run, language=True, nouns_of_other_languages=True)["noun_count"].null_count() == 1


@pytest.mark.parametrize(
    ("caption", "nouns"),
    [
        ("The video captures a bustling street", 2),
        ("A winding river and sparkling water", 2),
        ("the towering mountains under a shimmering sky", 2),
        ("a fishing boat", 2),
        ("a swimming pool", 2),
        ("A dining table in a living room", 4),
        ("a barking dog", 1),
    ],
)
def test_a_participle_before_a_noun_is_no_noun(caption: str, nouns: int) -> None:
    assert nouns_builtin.count(pl.Series([caption])).to_list() == [nouns]
