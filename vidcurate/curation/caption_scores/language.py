"""Caption language by py3langid (extra `language`): 4.6 MB, no download.

140 languages. The model reads the first 200 characters, some 13,000 captions per second on one core; so by
default it reads only captions that are not English by their words (`other_languages`). Naive Bayes over byte
n-grams (langid.py, Lui and Baldwin 2012): a short caption has a low confidence, and with `language` set a
rule should also require a confidence (`forbidden` alone would reject short English captions).
"""

import importlib.metadata
import importlib.util
from functools import cache
from typing import Any

import polars as pl

from vidcurate.curation.caption_scores.text_scores import TextScore
from vidcurate.errors import InputError

COLUMNS = ("caption_language", "caption_language_confidence")
_CHARACTERS = 200
_DIGITS = 4


def is_installed() -> bool:
    return importlib.util.find_spec("py3langid") is not None


@cache
def _identifier() -> Any:
    """Load the model, 0.4 s, when the first caption needs it."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def score() -> TextScore:
    """Return the score of COLUMNS. Raises InputError when py3langid is not installed."""
    if not is_installed():
        raise InputError("language: py3langid is not installed. Run `pip install 'vidcurate[language]'`.")
    engine = f"py3langid@{importlib.metadata.version('py3langid')}"

    def measure(captions: pl.Series) -> pl.DataFrame:
        # A text without a letter has no language; the model would return its most frequent one.
        texts = captions.str.slice(0, _CHARACTERS)
        spoken = texts.is_not_null() & texts.str.contains(r"\p{L}")
        found = [
            _identifier().classify(text) if speaks else (None, None)
            for text, speaks in zip(texts, spoken, strict=True)
        ]
        return pl.DataFrame(
            {
                "caption_language": pl.Series([name for name, _ in found], dtype=pl.String),
                "caption_language_confidence": pl.Series(
                    [None if share is None else round(share, _DIGITS) for _, share in found], dtype=pl.Float64
                ),
            }
        )

    return TextScore(columns=COLUMNS, measure=measure, settings={"language": engine})
