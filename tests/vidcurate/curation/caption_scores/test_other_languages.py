"""Nouns are counted in English: participles are none of them, and other languages have no count."""

from pathlib import Path

import polars as pl
import pytest

from vidcurate.curation.caption_scores import nouns_builtin, other_languages
from vidcurate.curation.caption_scores.other_languages import is_not_english
from vidcurate.curation.caption_scores.stage import ScoreSpec, rescore, run_score
from vidcurate.curation.clip_table import table
from vidcurate.errors import InputError

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
        False,
        True,
        False,
        True,
    ]
    for name in ("proper_noun_count", "noun_count_without_proper"):
        assert found[name].is_null().to_list() == found["noun_count"].is_null().to_list()
    assert found["caption_repeats"].null_count() == 1

    assert scored(run, nouns_of_other_languages=True)["noun_count"].null_count() == 1


def test_a_language_that_only_the_detector_knows_counts_too(tmp_path: Path) -> None:
    pytest.importorskip("py3langid")
    clips = pl.DataFrame({"clip_id": ["a"], "caption": ["Großmutter backt Plätzchen"]})
    origin = table.Provenance(stage="ingest", settings={}, inputs={})
    table.write(clips, table.stage_path(tmp_path, "ingest"), origin)

    assert scored(tmp_path)["noun_count"].to_list() != [None]
    found = scored(tmp_path, language=True)
    assert found["caption_language"].to_list() == ["de"]
    assert found["noun_count"].to_list() == [None]
    assert scored(tmp_path, language=True, nouns_of_other_languages=True)["noun_count"].null_count() == 0


def test_the_summary_counts_captions_that_are_not_english(run: Path) -> None:
    assert run_score(run, ScoreSpec(noun_engine="builtin")).not_english == 3
    asked = ScoreSpec(noun_engine="builtin", nouns_of_other_languages=True)
    assert run_score(run, asked).not_english == 0


def test_a_table_scored_by_other_language_rules_is_scored_again(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = ScoreSpec(noun_engine="builtin")
    run_score(run, spec)
    assert run_score(run, spec).up_to_date
    monkeypatch.setattr(other_languages, "RULES", "words-0")

    with pytest.raises(
        InputError, match=r"language_rules words-1, and here it is words-0\. Run `vidcurate score"
    ):
        rescore(run, pl.Series(["a dog"]), ["noun_count"])
    assert not run_score(run, spec).up_to_date


@pytest.mark.parametrize(
    "caption",
    [
        "Una mujer corta verduras en la cocina.",
        "Un chien court dans l'herbe et attrape une balle.",
        "Um homem caminha devagar pela rua.",
        "Un uomo cammina lentamente per la strada.",
        "Een hond rent over het gras en vangt een bal.",
        "Một người đàn ông đi chậm rãi trên đường phố.",
        "Kobieta kroi warzywa w kuchni.",
        "İki çocuk sahilde oynuyor.",
        "Seekor anjing berlari di rumput.",
        "The mood: " + "eine Frau schneidet Gemüse in der Küche " * 20,
    ],
)
def test_captions_in_another_language_are_found_by_their_words(caption: str) -> None:
    assert is_not_english(pl.Series([caption]), pl.DataFrame()).to_list() == [True]


@pytest.mark.parametrize(
    "caption",
    [
        "dog",
        "a dog runs",
        "DOG RUNNING ON BEACH",
        "La La Land",
        "Kia Seltos 2021 Xline Turbo DCT",
        "Plaza de Toros de Las Ventas, Madrid",
        "a chef makes crème brûlée and crêpes",
        "a man sipping café au lait",
        "Ludwig van Beethoven plays piano",
        "peple wallking dwn teh streat",
        "spaghetti alla carbonara",
        "www.example.com/watch?v=d46_ctqDmI4",
        "Großmutter",
        "",
        "12 34",
    ],
)
def test_a_short_or_odd_caption_stays_english(caption: str) -> None:
    assert is_not_english(pl.Series([caption]), pl.DataFrame()).to_list() == [False]


def test_a_caption_is_decided_alike_beside_any_others(monkeypatch: pytest.MonkeyPatch) -> None:
    captions = pl.Series([caption or "" for caption in CAPTIONS] * 40)
    together = is_not_english(captions, pl.DataFrame())
    monkeypatch.setattr(nouns_builtin, "_BYTES_PER_PIECE", 100)

    assert is_not_english(captions, pl.DataFrame()).equals(together)
    assert together.sum() == 3 * 40


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
