"""Third-person verbs of captions are no nouns, and plural nouns stay nouns."""

import polars as pl
import pytest

from vidcurate.curation.caption_scores import nouns_builtin

VERBS = (
    "walks", "runs", "captures", "features", "shows", "stands", "holds", "wears", "plays", "rides",
    "jumps", "sings", "looks", "smiles", "waves", "moves", "climbs", "swims", "flies", "drives", "cooks",
    "eats", "reads", "writes", "paints", "draws", "speaks", "talks", "laughs", "sleeps", "rests", "leans",
    "reaches", "grabs", "lifts", "carries", "pushes", "pulls", "throws", "catches", "kicks", "hits",
    "cuts", "stirs", "pours", "fills", "opens", "closes", "enters", "leaves", "approaches", "follows",
    "leads", "crosses", "glides", "floats", "drifts", "rises", "falls", "rolls", "slides", "kneels",
    "crouches", "crawls", "skates", "builds", "sweeps", "glows", "shines", "showcases", "depicts",
    "displays", "begins", "ends",
)  # fmt: skip


@pytest.mark.parametrize(
    ("caption", "nouns", "most_wrong"),
    [
        ("Subject {} slowly across the room.", 2, 0),
        ("The video {} a busy street.", 2, 0),
        ("The woman {} the red box.", 2, 0),
        ("A man {} in the park.", 2, 4),
        ("The camera {} through the forest.", 2, 1),
    ],
)
def test_a_verb_in_the_third_person_is_no_noun(caption: str, nouns: int, most_wrong: int) -> None:
    counted = nouns_builtin.count(pl.Series([caption.format(verb) for verb in VERBS]))

    wrong = [verb for verb, count in zip(VERBS, counted, strict=True) if count > nouns]
    assert len(wrong) <= most_wrong, wrong


@pytest.mark.parametrize(
    ("caption", "nouns"),
    [
        ("Dog owners in the park", 3),
        ("Street lights down the hill", 3),
        ("The city streets are full of cars", 3),
        ("He plays video games with the kids", 3),
        ("Flowers the size of plates", 3),
    ],
)
def test_plural_nouns_stay_nouns(caption: str, nouns: int) -> None:
    assert nouns_builtin.count(pl.Series([caption])).to_list() == [nouns]
