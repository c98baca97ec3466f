"""spaCy noun counts, by an installed pipeline (imported on use).

Only the pipes that assign parts of speech run. The name in the column has the package's version or, for a
pipeline folder, a digest of its files: two different models never share a name.
"""

import hashlib
import importlib.metadata
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl

from vidcurate.errors import InputError

DEFAULT = "en_core_web_sm"
_NEEDED = ("tok2vec", "transformer", "tagger", "morphologizer", "attribute_ruler")
_TAGGERS = ("tagger", "morphologizer")
# Noun tags (Penn Treebank and UD) for a pipeline whose tagger's tags are not mapped to parts of speech.
_NAME_TAGS = ("NNP", "NNPS", "PROPN")
_NOUN_TAGS = ("NN", "NNS", "NOUN", *_NAME_TAGS)
_BATCH = 256


def is_installed(name: str) -> bool:
    """Return whether spaCy and the package `name` are installed, without importing them."""
    return importlib.util.find_spec("spacy") is not None and importlib.util.find_spec(name) is not None


def engine(pipeline: str) -> str:
    """Return the engine name of `pipeline` (a package or folder), such as spacy:en_core_web_sm@3.8.0.

    Raises InputError when the pipeline is not installed.
    """
    if importlib.util.find_spec("spacy") is None:
        raise InputError(
            f"noun_engine spacy:{pipeline}: spaCy is not installed. Run `pip install 'vidcurate[score]'`, "
            "or set noun_engine=builtin."
        )
    folder = Path(pipeline)
    if (folder / "meta.json").is_file():
        try:
            meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
            whole = hashlib.sha256()
            for file in sorted(path for path in folder.rglob("*") if path.is_file()):
                whole.update(f"{file.relative_to(folder).as_posix()}\0".encode() + file.read_bytes())
            return f"spacy:{meta['lang']}_{meta['name']}@{meta['version']}+{whole.hexdigest()[:8]}"
        except (OSError, ValueError, KeyError) as error:
            raise InputError(
                f"noun_engine spacy:{pipeline}: its meta.json cannot be read ({error})."
            ) from error
    is_name = pipeline.isidentifier()
    if not is_name or importlib.util.find_spec(pipeline) is None:
        step = (
            f"Run `python -m spacy download {pipeline}`"
            if is_name
            else "Give the folder that holds its meta.json"
        )
        raise InputError(
            f"noun_engine spacy:{pipeline}: no such spaCy pipeline is installed. {step}, "
            "or set noun_engine=builtin."
        )
    return f"spacy:{pipeline}@{importlib.metadata.version(pipeline)}"


def load(pipeline: str) -> Callable[[pl.Series], pl.DataFrame]:
    """Return a function from captions to noun_count and proper_noun_count (Int32; null for null).

    Raises InputError when spaCy cannot load the pipeline, or it does not tag parts of speech.
    """
    import spacy
    from spacy.symbols import NOUN, PROPN

    try:
        nlp = spacy.load(pipeline)
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise InputError(f"noun_engine spacy:{pipeline}: spaCy cannot load it ({error}).") from error
    parts = [name for name in nlp.pipe_names if nlp.get_pipe_meta(name).factory in _NEEDED]
    factories = {nlp.get_pipe_meta(name).factory for name in parts}
    if not factories.intersection(_TAGGERS):
        raise InputError(
            f"noun_engine spacy:{pipeline}: the pipeline has no tagger and no morphologizer (only "
            f"{', '.join(nlp.pipe_names) or 'a tokenizer'}), so it cannot find nouns. Use another pipeline."
        )
    by_tag = not factories.intersection(("morphologizer", "attribute_ruler"))
    attribute = "TAG" if by_tag else "POS"
    wanted, proper = (
        np.array([nlp.vocab.strings.add(tag) for tag in tags] if by_tag else parts_of_speech, np.uint64)
        for tags, parts_of_speech in ((_NOUN_TAGS, [NOUN, PROPN]), (_NAME_TAGS, [PROPN]))
    )
    nlp.max_length = 2**31 - 1  # the limit protects parsers; taggers need none

    def count(captions: pl.Series) -> pl.DataFrame:
        texts = captions.fill_null("").to_list()
        # Without the memory zone spaCy's string store would grow with every caption.
        with nlp.memory_zone(), nlp.select_pipes(enable=parts):
            tagged = (doc.to_array(attribute) for doc in nlp.pipe(texts, batch_size=_BATCH))
            counts = [(int(np.isin(tags, wanted).sum()), int(np.isin(tags, proper).sum())) for tags in tagged]
        return pl.DataFrame(
            {
                name: pl.Series(name, [both[place] for both in counts], dtype=pl.Int32).set(
                    captions.is_null(), None
                )
                for place, name in enumerate(("noun_count", "proper_noun_count"))
            }
        )

    return count
