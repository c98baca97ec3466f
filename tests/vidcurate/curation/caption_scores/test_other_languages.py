"""Nouns are counted in English alone: other languages have a name and no count."""

import importlib.util
from collections.abc import Callable
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


LANGUAGES = ["caption_language", "caption_language_confidence"]


@pytest.fixture
def hide_detector(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that makes py3langid look as if it were not installed."""
    find = importlib.util.find_spec

    def hide() -> None:
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: None if name == "py3langid" else find(name)
        )

    return hide


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


def test_captions_that_are_not_english_have_the_detector_s_language(run: Path) -> None:
    pytest.importorskip("py3langid")
    found = scored(run)

    assert found["caption_language"].to_list() == ["en", "ru", "zh", "de", "en", None, None]
    shares = found["caption_language_confidence"]
    assert shares.is_null().to_list() == [True, False, False, False, True, True, True]
    assert shares.drop_nulls().is_between(0.5, 1).all()
    assert found.filter(pl.col("caption_language") != "en")["noun_count"].null_count() == 3


def test_without_a_detector_captions_that_are_not_english_are_undetermined(
    run: Path, hide_detector: Callable[[], None]
) -> None:
    hide_detector()
    found = scored(run)

    assert found["caption_language"].to_list() == ["en", "und", "und", "und", "en", None, None]
    assert found["caption_language_confidence"].null_count() == len(CAPTIONS)


def test_counting_nouns_in_every_language_still_names_them(run: Path) -> None:
    pytest.importorskip("py3langid")
    named = scored(run).select(LANGUAGES)

    assert scored(run, nouns_of_other_languages=True).select(LANGUAGES).equals(named)


def test_what_the_words_call_not_english_and_the_detector_english_is_undetermined(tmp_path: Path) -> None:
    pytest.importorskip("py3langid")
    english = "A man in a red jacket walks along a quiet beach at sunset. " * 3
    captions = [
        f"{english}{'eine Frau schneidet Gemüse in der Küche ' * 20}",
        f"{'. ' * 100}Ein Mann geht langsam die Straße entlang.",  # the detector reads 200 characters
    ]
    clips = pl.DataFrame({"clip_id": ["a", "b"], "caption": captions})
    origin = table.Provenance(stage="ingest", settings={}, inputs={})
    table.write(clips, table.stage_path(tmp_path, "ingest"), origin)

    assert scored(tmp_path).select(LANGUAGES).rows() == [("und", None), ("und", None)]
    assert scored(tmp_path, language=True)["caption_language"].to_list() == ["en", None]


def test_the_words_are_looked_at_once_for_language_and_count(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    decide = other_languages.is_not_english

    def counted(captions: pl.Series, scores: pl.DataFrame) -> pl.Series:
        looked.append(len(captions))
        return decide(captions, scores)

    monkeypatch.setattr(other_languages, "is_not_english", counted)
    scored(run)

    assert looked == [len(CAPTIONS)]


def test_a_table_scored_without_the_detector_is_scored_again_with_it(
    run: Path, hide_detector: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("py3langid")
    spec = ScoreSpec(noun_engine="builtin")
    with monkeypatch.context():
        hide_detector()
        run_score(run, spec)
        assert run_score(run, spec).up_to_date
    monkeypatch.undo()

    with pytest.raises(InputError, match=r"caption_language words-2, and here it is words-2\+py3langid@"):
        rescore(run, pl.Series(["a dog"]), LANGUAGES)
    assert not run_score(run, spec).up_to_date


def test_an_edited_caption_gets_its_language(run: Path) -> None:
    pytest.importorskip("py3langid")
    names = ["noun_count", *LANGUAGES]
    edited = pl.Series(["Ein Hund rennt über die Wiese.", "a dog runs over the grass", None])
    run_score(run, ScoreSpec(noun_engine="builtin"))
    found = rescore(run, edited, names)

    assert found["caption_language"].to_list() == ["de", "en", None]
    assert found["noun_count"].to_list() == [None, 2, None]
    assert found.schema["caption_language_confidence"] == pl.Float64

    run_score(run, ScoreSpec(noun_engine="builtin", language=True))
    asked = rescore(run, edited, names)
    assert asked["caption_language"].to_list() == ["de", "en", None]
    assert asked["caption_language_confidence"].null_count() == 1


@pytest.mark.parametrize(
    ("settings", "is_counted"),
    [
        ({"nouns_of_other_languages": False, "language_rules": other_languages.RULES}, False),
        ({"nouns_of_other_languages": True}, True),
        ({}, True),
    ],
    ids=["no_count_in_others", "counted_in_all", "before_the_setting"],
)
def test_a_table_scored_before_it_had_languages_gets_none_for_edited_captions(
    run: Path, settings: dict[str, object], is_counted: bool
) -> None:
    run_score(run, ScoreSpec(noun_engine="builtin"))
    path = table.stage_path(run, "score")
    made = table.provenance(path).settings
    old = {name: made[name] for name in ("noun_engine", "boilerplate")} | settings
    clips = pl.read_parquet(path).drop(LANGUAGES)
    table.write(clips, path, table.Provenance(stage="score", settings=old, inputs={}))

    found = rescore(run, pl.Series(["Ein Hund rennt über die Wiese.", "a dog runs"]), clips.columns)
    assert not set(LANGUAGES) & set(found.columns)
    assert found["noun_count"].is_not_null().to_list() == [is_counted, True]


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
        InputError, match=r"language_rules words-2, and here it is words-0\. Run `vidcurate score"
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
