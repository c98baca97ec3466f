"""T5 token count of a caption, by the tokenizer that the trainer uses.

The trainer truncates longer captions at its limit. The count includes the end token and truncates nothing.
transformers (the extra `encode`) loads the tokenizer from a folder or, with a network, from the hub by name.
"""

import hashlib
import importlib.util
from pathlib import Path
from typing import Any

import polars as pl

from vidcurate.curation.caption_scores.text_scores import TextScore
from vidcurate.errors import InputError

COLUMN = "caption_num_t5_tokens"
_FILES = ("spiece.model", "tokenizer.json", "tokenizer_config.json")


def _name(tokenizer: str) -> str:
    """Return the tokenizer's name for the provenance: a hub name, or a digest of the folder's files."""
    folder = Path(tokenizer)
    if not folder.is_dir():
        return tokenizer
    whole = hashlib.sha256()
    for name in _FILES:
        if (folder / name).is_file():
            whole.update(name.encode() + (folder / name).read_bytes())
    return f"{folder.name}+{whole.hexdigest()[:8]}"


def _load(tokenizer: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(tokenizer)
    except (OSError, ValueError, ImportError, KeyError, TypeError) as error:
        reason = str(error).splitlines()[0].rstrip(": ") if str(error) else type(error).__name__
        advice = (
            "Give a folder that holds spiece.model with config.json, or tokenizer.json, or a name on the hub "
            "such as google/t5-v1_1-xxl."
        )
        if (Path(tokenizer) / "spiece.model").is_file() and not (Path(tokenizer) / "config.json").is_file():
            # transformers takes the kind of tokenizer from config.json where tokenizer_config.json lacks it
            advice = "Put the encoder's config.json beside spiece.model."
        raise InputError(
            f"t5_tokenizer {tokenizer}: transformers cannot load it ({reason}). {advice}"
        ) from error


def score(tokenizer: str) -> TextScore:
    """Return the score of caption_num_t5_tokens. Raises InputError when transformers is not installed."""
    if importlib.util.find_spec("transformers") is None:
        raise InputError(
            f"t5_tokenizer {tokenizer}: transformers is not installed. Run `pip install 'vidcurate[encode]'`."
        )
    loaded: list[Any] = []

    def measure(captions: pl.Series) -> pl.DataFrame:
        if not loaded:
            loaded.append(_load(tokenizer))
        texts = captions.fill_null("").to_list()
        ids = loaded[0](texts, truncation=False, verbose=False)["input_ids"] if texts else []
        lengths = pl.Series(COLUMN, [len(one) for one in ids], dtype=pl.Int32)
        return lengths.set(captions.is_null(), None).to_frame()

    return TextScore(columns=(COLUMN,), measure=measure, settings={"t5_tokenizer": _name(tokenizer)})
