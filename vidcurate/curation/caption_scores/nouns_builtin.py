"""Built-in noun counter: a log-linear model over tokens and their neighbours.

No download, no Python per caption. Captions are split at spaces; one regular expression splits the distinct
pieces (a few per cent of all) into tokens as Universal Dependencies does; features of a single token are
summed once per distinct token. Each token then costs two gathers of four 16-bit numbers and eight additions.
All numbers are integers: a caption has the same count on every machine and in any table.

The weights in `noun_tables.parquet` were trained on UD English EWT by benchmarks/train_noun_tables.py (see
README.md in this folder). English only: a run of letters of another script is one token.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
from numpy.typing import NDArray

from vidcurate.curation.caption_scores.verb_forms import RULES, participles, plurals, verbs
from vidcurate.errors import TableError

TABLES = Path(__file__).with_name("noun_tables.parquet")
METADATA_KEY = "vidcurate_nouns"
# Captions are counted in pieces of about this size, so that memory does not grow with the table.
_BYTES_PER_PIECE = 16_000_000

# Four weights per table entry. Entries of single tokens: weight for the token itself, the next token, the one
# after that, and the previous token. Entries of pairs (classes of two adjacent tokens): weight for the second
# token, the first, the token after the pair, and the token before it.
WAYS = ("way_0", "way_1", "way_2", "way_3")
MARK = ""  # key of the mark between captions: no token is empty

# Tokens as in EWT, first match wins; other text is split into single characters.
TOKEN = r"""(?x)
    (?:https?://|www\.)\S*[\w/]
  | [\w.+%-]+@[\w-]+(?:\.[\w-]+)+
  | \w[\w-]*(?:\.[\w-]+)*\.(?:com|org|net|edu|gov|uk|ca|de|html?|exe
      |(?i:docx?|xls|ppt|pdf|txt|jpe?g|png|gif|mp[34]|avi|mov))\b
  | (?:\p{L}\.){2,}(?:\p{L}\b)? | \p{L}(?:\.\p{L})+\b | \b[A-HJ-Z]\.
  | (?:[Mm]r|[Mm]rs|[Mm]s|[Dd]r|[Ss]t|[Jj]r|[Ss]r|[Pp]rof|Inc|Corp|Co|Ft|Mt|[Vv]s|[Ee]tc|Sen|Gov|Lt|Gen|Rep
      |Rev|Col|Capt|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)\.
  | \d+(?:[.,:/-]\d+)*(?:st|nd|rd|th|['’]?[sS]|[dDkKpPxX])?\b
  | \d+(?:[.,:/-]\d+)*
  | \p{L}+[nN]['’][tT]\b
  | (?:[Oo]|[DdLl])['’]\p{Lu}\p{L}+
  | ['’](?:[sSdDmM]|[rR][eE]|[vV][eE]|[lL][lL])\b
  | \b(?i:e|co|ex|mid|non|anti|pre|multi|semi)-\w+
  | \p{Lu}+(?:&\p{Lu}+)+\b
  | [\p{L}\p{M}_]\w*
  | \.{2,} | -{2,} | [!?]+ | ['’]{2} | <+ | >+ | [:;]-?[)(DP] | \S
"""

# The class of a word that is not in the treebank: the longest of these endings that it has.
_ENDINGS = "ation|ness|ment|able|ing|ion|ity|ous|ive|est|ist|ies|ful|ary|ent|ant|ed|ly|er|al|ic|or|en|an|s|y"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Trained weights. `pairs` is int16 (classes * classes, 4), row first * classes + second."""

    engine: str
    bias: int
    singles: dict[str, pl.DataFrame]  # feature -> key, WAYS
    mark: NDArray[np.int16]  # (4,): weights of the mark between captions
    classes_of_words: pl.DataFrame  # word, class
    parts_of_speech: dict[str, str]  # word in the treebank -> its class
    class_numbers: pl.DataFrame  # class, number (0: the mark between captions)
    pairs: NDArray[np.int16]


def _shape() -> pl.Expr:
    """Return the shape of a token: its kind of letters, digits or signs."""
    token = pl.col("token")
    return (
        pl.when(token.str.contains(r"^\d+$"))
        .then(pl.lit("number"))
        .when(token.str.contains(r"^\d"))
        .then(pl.lit("digit first"))
        .when(token.str.contains(r"^['’]\p{L}"))
        .then(pl.lit("clitic"))
        .when(~token.str.contains(r"^[\p{L}\p{M}_]"))
        .then(pl.lit("sign"))
        .when(token.str.contains(r"\d"))
        .then(pl.lit("with digit"))
        .when(token.str.contains(r"[.@]"))
        .then(pl.lit("with dot"))
        .when(token.str.contains(r"['’]"))
        .then(pl.lit("with apostrophe"))
        .when(token.str.contains(r"^\P{Lu}+$"))
        .then(pl.lit("lower"))
        .when(token.str.contains(r"^\p{Lu}$"))
        .then(pl.lit("capital"))
        .when(token.str.contains(r"^\P{Ll}+$"))
        .then(pl.lit("upper"))
        .when(token.str.contains(r"^\p{Lu}\P{Lu}+$"))
        .then(pl.lit("title"))
        .otherwise(pl.lit("mixed"))
    )


def describe(tokens: pl.Series, classes_of_words: pl.DataFrame) -> pl.DataFrame:
    """Return, per token, the key of each feature: word, form, suffix_1 … suffix_4, prefix_2, prefix_3, shape
    and class, all String."""
    word = pl.col("word")

    def part(piece: pl.Expr, length: int) -> pl.Expr:
        # A word no longer than the suffix gets its own key, unlike the same letters at the end of a longer
        # word.
        return pl.when(word.str.len_chars() > length).then(piece).otherwise(pl.lit("^") + word)

    described = (
        tokens.rename("token")
        .to_frame()
        .with_columns(
            pl.col("token").str.to_lowercase().alias("word"),
            pl.col("token").alias("form"),
            _shape().alias("shape"),
        )
    )
    described = described.with_columns(
        *(part(word.str.tail(length), length).alias(f"suffix_{length}") for length in (1, 2, 3, 4)),
        *(part(word.str.head(length), length).alias(f"prefix_{length}") for length in (2, 3)),
    ).join(classes_of_words, on="word", how="left", maintain_order="left")
    is_capital = pl.col("shape").is_in(["capital", "upper", "title", "mixed"])
    is_letters = is_capital | (pl.col("shape") == "lower")
    ending = word.str.extract(rf"^..+?({_ENDINGS})$").fill_null("")
    return described.with_columns(
        pl.when(pl.col("class").str.starts_with("="))
        .then("class")
        .when(pl.col("class").is_not_null())
        .then(pl.col("class") + pl.when(is_capital).then(pl.lit("^")).otherwise(pl.lit("")))
        .when(is_letters)
        .then(
            pl.lit("?")
            + pl.when(ending == "")
            .then(pl.col("shape"))
            .otherwise(ending + pl.when(is_capital).then(pl.lit("^")).otherwise(pl.lit("")))
        )
        .otherwise(pl.lit("#") + pl.col("shape"))
        .alias("class")
    ).drop("token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Captions as token numbers; token n > 0 is `distinct[n - 1]`.

    Two marks (number 0) precede, separate and follow the captions, so that no caption affects another.
    """

    codes: NDArray[np.int32]
    distinct: pl.Series
    ends: NDArray[np.int64]  # (captions + 1,): caption c lies in codes[ends[c] + 2 : ends[c + 1]]


def tokenise(captions: pl.Series) -> Tokens:
    """Return the tokens of `captions` (String, no nulls)."""
    pieces = captions.str.split(" ")
    pieces_per_caption = pieces.list.len().to_numpy()
    encoded = pieces.explode().to_arrow().dictionary_encode()
    piece_codes = encoded.indices.to_numpy()
    cut = pl.Series(encoded.dictionary).str.extract_all(TOKEN)
    tokens_per_piece = cut.list.len().to_numpy().astype(np.int64)
    tokens = cut.list.explode(keep_nulls=False, empty_as_null=False).to_arrow().dictionary_encode()
    token_codes = tokens.indices.to_numpy().astype(np.int32) + np.int32(1)

    lengths = tokens_per_piece[piece_codes]
    ends_of_pieces = np.concatenate([[0], np.cumsum(lengths)])
    ends = ends_of_pieces[np.concatenate([[0], np.cumsum(pieces_per_caption, dtype=np.int64)])]
    starts = (np.cumsum(tokens_per_piece) - tokens_per_piece)[piece_codes] - ends_of_pieces[:-1]
    flat = token_codes[np.repeat(starts, lengths) + np.arange(ends[-1])]
    marks = 2 * np.arange(len(ends))
    codes = np.zeros(len(flat) + 2 * len(ends), dtype=np.int32)
    codes[np.arange(len(flat)) + np.repeat(marks[1:], np.diff(ends))] = flat
    return Tokens(codes=codes, distinct=pl.Series(tokens.dictionary), ends=ends + marks)


def _shifted_sum(parts: NDArray[np.int16], shifts: tuple[int, int, int, int]) -> NDArray[np.int16]:
    """Return, per token, the sum of the four weights given by the tokens `shifts` places before it."""
    total = np.zeros(len(parts), dtype=np.int16)
    for way, shift in enumerate(shifts):
        if shift >= 0:
            total[shift:] += parts[: len(parts) - shift, way]
        else:
            total[:shift] += parts[-shift:, way]
    return total


def scores(tokens: Tokens, tables: Tables) -> NDArray[np.int16]:
    """Return the score of each entry of `tokens.codes`, int16: above 0 is a noun; ignore those of marks."""
    return _scores(tokens, describe(tokens.distinct, tables.classes_of_words), tables)


def _scores(tokens: Tokens, keys: pl.DataFrame, tables: Tables) -> NDArray[np.int16]:
    singles = np.zeros((len(keys) + 1, 4), dtype=np.int16)
    for feature, table in tables.singles.items():
        found = keys.select(feature).join(
            table, left_on=feature, right_on="key", how="left", maintain_order="left"
        )
        singles[1:] += found.select(pl.col(WAYS).fill_null(0)).to_numpy()
    singles[0] = tables.mark
    numbers = np.zeros(len(keys) + 1, dtype=np.int64)
    numbers[1:] = (
        keys.select("class")
        .join(tables.class_numbers, on="class", how="left", maintain_order="left")["number"]
        .fill_null(tables.class_numbers.height + 1)
    )

    side = tables.class_numbers.height + 2
    classes = numbers[tokens.codes]
    pairs = classes[:-1] * side + classes[1:]
    # One 64-bit gather fetches four 16-bit weights.
    single = singles.view(np.int64).ravel()[tokens.codes].view(np.int16).reshape(-1, 4)
    pair = np.zeros((len(tokens.codes), 4), dtype=np.int16)
    pair[:-1] = tables.pairs.view(np.int64).ravel()[pairs].view(np.int16).reshape(-1, 4)
    score = _shifted_sum(single, (0, 1, 2, -1)) + _shifted_sum(pair, (1, 0, 2, -1)) + np.int16(tables.bias)
    for verb_forms in (verbs, participles):
        score[verb_forms(tokens.codes, tokens.distinct, score > 0, tables.parts_of_speech)] = -1
    row = plurals(tokens.codes, tokens.distinct, score > 0, tables.parts_of_speech)
    score[row] = np.maximum(score[row], 1)
    return score


def names(tokens: Tokens, keys: pl.DataFrame, nouns: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which of `nouns` (positions in `tokens.codes`) are proper nouns; `keys` are from `describe`.

    A word that is only a proper noun in the treebank is one; a word that is only a common noun is not. Any
    other is proper when it is capitalised, unless the treebank has both kinds and it begins a sentence.
    """
    word, is_common = pl.col("class"), pl.col("class").str.contains("NOUN")
    is_name = word.str.contains("PROPN")
    is_capital = pl.col("shape").is_in(["capital", "upper", "title", "mixed"])
    said = keys.select(
        always=(is_name & ~is_common) | (is_capital & ~is_name & ~is_common),
        inside=is_capital & is_name & is_common,
        ends=pl.col("word").str.contains(r'^[.!?:"“”*•)\-]+$'),
    )
    always, inside, ends = (
        np.concatenate([[mark], said[name].to_numpy()])
        for name, mark in (("always", False), ("inside", False), ("ends", True))
    )
    codes = tokens.codes[nouns]
    result: NDArray[np.bool_] = always[codes] | (inside[codes] & ~ends[tokens.codes[nouns - 1]])
    return result


@cache
def load_tables(path: Path = TABLES) -> Tables:
    """Load the trained weights at `path`. Raises TableError for another or a damaged file."""
    try:
        metadata = json.loads((pq.read_schema(path).metadata or {})[METADATA_KEY.encode()])
        entries = pl.read_parquet(path)
    except Exception as error:  # pyarrow raises many kinds for a damaged file
        raise TableError(
            f"{path}: the noun tables cannot be read ({type(error).__name__}). Install vidcurate again."
        ) from error
    by_feature = {str(name): part for (name,), part in entries.group_by("feature", maintain_order=True)}
    pair_entries = by_feature.pop("pair")
    class_numbers = (
        by_feature["class"].select(pl.col("key").alias("class")).with_row_index("number", offset=1)
    )
    side = class_numbers.height + 2
    number_of = {MARK: 0} | dict(class_numbers.select("class", "number").iter_rows())
    sides = pair_entries["key"].str.split_exact(" ", 1).struct.unnest()
    first, second = (
        sides[name].replace_strict(number_of, return_dtype=pl.Int64).to_numpy() for name in sides.columns
    )
    pairs = np.zeros((side * side, 4), dtype=np.int16)
    pairs[first * side + second] = pair_entries.select(WAYS).to_numpy()
    words = by_feature["word"].filter(pl.col("class").is_not_null())
    return Tables(
        engine=f"{metadata['engine']}+{RULES}",
        bias=metadata["bias"],
        mark=by_feature["word"]
        .filter(pl.col("key") == MARK)
        .select(WAYS)
        .to_numpy()
        .sum(axis=0, dtype=np.int16),
        singles={name: part.select("key", *WAYS) for name, part in by_feature.items()},
        classes_of_words=words.select(pl.col("key").alias("word"), "class"),
        parts_of_speech=dict(words.select("key", "class").iter_rows()),
        class_numbers=class_numbers.with_columns(pl.col("number").cast(pl.Int64)),
        pairs=pairs,
    )


def pieces(captions: pl.Series) -> Iterator[pl.Series]:
    """Yield `captions` (String, no nulls) in pieces of about _BYTES_PER_PIECE; none for no captions."""
    ends = captions.str.len_bytes().cast(pl.Int64).cum_sum().to_numpy()
    first = 0
    while first < len(captions):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + _BYTES_PER_PIECE, side="right")))
        yield captions[first:last]
        first = last


def _count_piece(captions: pl.Series, tables: Tables) -> NDArray[np.int32]:
    """Return (captions, 2): number of nouns, and number of proper nouns among them."""
    tokens = tokenise(captions)
    keys = describe(tokens.distinct, tables.classes_of_words)
    is_noun = _scores(tokens, keys, tables) > 0
    is_noun[tokens.codes == 0] = False
    nouns = np.flatnonzero(is_noun)
    proper = nouns[names(tokens, keys, nouns)]
    counts = np.empty((len(captions), 2), dtype=np.int32)
    for column, places in enumerate((nouns, proper)):
        counts[:, column] = np.diff(np.searchsorted(places, tokens.ends))
    return counts


def count(captions: pl.Series) -> pl.Series:
    """Count the nouns (NOUN and PROPN) of each caption, Int32; null for null.

    Raises TableError when the installed weights cannot be read.
    """
    return count_kinds(captions)["noun_count"]


def count_kinds(captions: pl.Series) -> pl.DataFrame:
    """Count nouns (NOUN and PROPN) as noun_count and PROPN as proper_noun_count, Int32; null for null.

    Raises TableError as `count` does.
    """
    tables = load_tables()
    counts = [_count_piece(piece, tables) for piece in pieces(captions.cast(pl.String).fill_null(""))]
    counted = np.concatenate(counts) if counts else np.empty((0, 2), dtype=np.int32)
    return pl.DataFrame(
        {
            name: pl.Series(name, counted[:, column], dtype=pl.Int32).set(captions.is_null(), None)
            for column, name in enumerate(("noun_count", "proper_noun_count"))
        }
    )
