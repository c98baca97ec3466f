"""Train the built-in noun counter's tables from a Universal Dependencies treebank.

    python benchmarks/train_noun_tables.py FOLDER [--out noun_tables.parquet]

FOLDER holds en_ewt-ud-train.conllu and en_ewt-ud-dev.conllu. Logistic regression (NOUN or PROPN against the
rest) by AdaGrad over the features of `vidcurate.curation.caption_scores.nouns_builtin`, with the word
itself hidden from every fifth example so that endings and neighbours learn to speak for unknown words, and
every text a second time in lower case, as captions often come. Beside the treebank as it is stand its
sentences in the present tense of captions (`present_tense`) and made-up captions (`made_up_captions`), as
captions are full of verbs in the third person. Weights are averaged over the later epochs, small ones
dropped, the rest rounded to 16 bits; the threshold is chosen on the dev part. About two minutes on one
core; the same folder gives the same bytes.
"""

import argparse
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
from made_up_captions import sentences
from numpy.typing import NDArray
from present_tense import in_present_tense
from treebank import NOUNS, Text, joined, lowered, marked_text, read_conllu, read_lines, read_sentences
from word_classes import lemma_uses, word_classes

from vidcurate.curation.caption_scores import nouns_builtin
from vidcurate.curation.caption_scores.nouns_builtin import MARK, METADATA_KEY, WAYS, Tables, Tokens
from vidcurate.storage import atomic_file

ENGINE = "builtin-ewt-2"
LICENCE = "CC BY-SA 4.0: learnt from Universal Dependencies English EWT, github.com/UniversalDependencies"
SCALE = 64  # weights are kept in 1/64

# Which features speak in which of the WAYS.
SINGLES: dict[str, tuple[int, ...]] = {
    "word": (0, 1, 2, 3),
    "form": (0,),
    "suffix_1": (0,),
    "suffix_2": (0,),
    "suffix_3": (0, 1, 3),
    "suffix_4": (0,),
    "prefix_2": (0,),
    "prefix_3": (0,),
    "shape": (0, 1, 3),
    "class": (0,),
}
_AT = {
    0: 0,
    1: -1,
    2: -2,
    3: 1,
}  # where the token stands that speaks in this way, seen from the one spoken to
_PAIR_AT = {0: -1, 1: 0, 2: -2, 3: 1}  # the same for the first token of a pair
HIDDEN = (("word", 0), ("form", 0))
HIDDEN_SHARE = 0.2
EPOCHS, BATCH, RATE, DECAY = 10, 128, 0.1, 1e-4
SENTENCES = 3  # that stand together in the training texts
COPIES = 4  # of the treebank as it is, beside one in the present tense
MADE_UP = 3600  # sentences of made_up_captions
SMALL = 0.06  # weights below this are dropped


def spans(tokens: Tokens, texts: list[str]) -> NDArray[np.int64]:
    """Return where each token begins and ends in its text, int64 (codes, 2); marks have -1."""
    found = np.full((len(tokens.codes), 2), -1, dtype=np.int64)
    distinct = tokens.distinct.to_list()
    for number, text in enumerate(texts):
        place = 0
        for position in range(tokens.ends[number] + 2, tokens.ends[number + 1]):
            token = distinct[tokens.codes[position] - 1]
            start = text.index(token, place)
            place = start + len(token)
            found[position] = start, place
    return found


def gold_nouns(
    tokens: Tokens, texts: list[Text], spelled: list[str]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return (holds, is): a gold noun begins inside the token; the token is a gold noun exactly."""
    holds = np.zeros(len(tokens.codes), dtype=np.bool_)
    exact = np.zeros(len(tokens.codes), dtype=np.bool_)
    places = spans(tokens, spelled)
    for number, text in enumerate(texts):
        nouns = {(start, stop) for start, stop, part in text.tokens if part in NOUNS}
        starts = {start for start, _ in nouns}
        for position in range(tokens.ends[number] + 2, tokens.ends[number + 1]):
            start, stop = places[position]
            exact[position] = (start, stop) in nouns
            holds[position] = exact[position] or any(place in starts for place in range(start, stop))
    return holds, exact


def shifted(codes: NDArray[np.int64], at: int) -> NDArray[np.int64]:
    """Return what stands `at` places further on; beyond the ends stands the mark."""
    moved = np.zeros_like(codes)
    if at <= 0:
        moved[-at:] = codes[: len(codes) + at]
    else:
        moved[:-at] = codes[at:]
    return moved


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Feature numbers of every token, int64 (tokens, columns); 0 is none.

    `names[n - 1]` is (feature, key, way); `hidden` are the columns that learning hides at times.
    """

    numbers: NDArray[np.int64]
    names: list[tuple[str, str, int]]
    hidden: list[int]


def features(tokens: Tokens, classes: pl.DataFrame) -> Features:
    """Number the features of every place of `tokens`."""
    keys = nouns_builtin.describe(tokens.distinct, classes)
    columns: list[NDArray[np.int64]] = []
    names: list[tuple[str, str, int]] = []
    hidden: list[int] = []
    codes = tokens.codes.astype(np.int64)

    def number(feature: str, way: int, per_place: NDArray[np.int64], labels: list[str]) -> None:
        # per_place: 0 for none, otherwise 1 + an index into labels
        if (feature, way) in HIDDEN:
            hidden.append(len(columns))
        columns.append(np.where(per_place > 0, per_place + len(names), 0))
        names.extend((feature, label, way) for label in labels)

    for feature, ways in SINGLES.items():
        distinct, per_token = np.unique(np.array([MARK, *keys[feature].to_list()]), return_inverse=True)
        of_token = per_token + 1
        if feature != "word":
            of_token[0] = 0  # the mark speaks as a word only
        for way in ways:
            number(feature, way, of_token[shifted(codes, _AT[way])], distinct.tolist())
    distinct, per_token = np.unique(np.array([MARK, *keys["class"].to_list()]), return_inverse=True)
    pair = per_token[codes] * len(distinct) + per_token[shifted(codes, 1)]
    seen, of_pair = np.unique(pair, return_inverse=True)
    labels = [f"{distinct[both // len(distinct)]} {distinct[both % len(distinct)]}" for both in seen]
    for way, at in _PAIR_AT.items():
        number("pair", way, shifted(of_pair + 1, at), labels)
    return Features(numbers=np.stack(columns, axis=1), names=names, hidden=hidden)


def learn(found: Features, places: NDArray[np.int64], is_noun: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return a weight per feature number (0: the bias, which every example has)."""
    rng = np.random.default_rng(0)
    size = len(found.names) + 1
    weights, squares, total = np.zeros(size), np.full(size, 1e-2), np.zeros(size)
    numbers = np.concatenate([found.numbers, np.zeros((len(found.numbers), 1), np.int64)], axis=1)
    truth = is_noun.astype(np.float64)
    none = size  # a feature number that is always 0
    weights, squares = np.append(weights, 0.0), np.append(squares, 1.0)
    numbers[:, :-1][numbers[:, :-1] == 0] = none
    for epoch in range(EPOCHS):
        order = rng.permutation(places)
        for first in range(0, len(order), BATCH):
            batch = order[first : first + BATCH]
            rows = numbers[batch]
            for column in found.hidden:
                rows[rng.random(len(batch)) < HIDDEN_SHARE, column] = none
            error = 1 / (1 + np.exp(-weights[rows].sum(axis=1))) - truth[batch]
            touched, inverse = np.unique(rows, return_inverse=True)
            slope = np.bincount(inverse.ravel(), weights=np.repeat(error, rows.shape[1]))
            slope += DECAY * weights[touched]
            squares[touched] += slope**2
            weights[touched] -= RATE * slope / np.sqrt(squares[touched])
            weights[none] = 0.0
        if epoch >= EPOCHS // 2:
            total += weights[:-1]
    return total / (EPOCHS - EPOCHS // 2)


def as_entries(weights: NDArray[np.float64], found: Features, classes: pl.DataFrame) -> pl.DataFrame:
    """Return feature, key, class, WAYS: the weights that are not small, in 1/64, sorted."""
    long = pl.DataFrame(found.names, schema=["feature", "key", "way"], orient="row").with_columns(
        pl.Series(
            "weight", np.where(np.abs(weights[1:]) < SMALL, 0, np.rint(weights[1:] * SCALE)).astype(np.int16)
        )
    )
    entries = (
        long.filter(pl.col("weight") != 0)
        .group_by("feature", "key")
        .agg(
            pl.col("weight").filter(pl.col("way") == way).sum().cast(pl.Int16).alias(name)
            for way, name in enumerate(WAYS)
        )
    )
    words = classes.rename({"word": "key"}).with_columns(pl.lit("word").alias("feature"))
    entries = entries.join(words, on=["feature", "key"], how="full", coalesce=True)
    sides = entries.filter(pl.col("feature") == "pair")["key"].str.split(" ").explode().unique()
    used = pl.DataFrame({"key": sides.filter(sides != MARK), "feature": "class"})
    entries = entries.join(used, on=["feature", "key"], how="full", coalesce=True)
    return (
        entries.with_columns(pl.col(WAYS).fill_null(0))
        .select("feature", "key", "class", *WAYS)
        .sort("feature", "key")
    )


def write(entries: pl.DataFrame, bias: int, path: Path) -> None:
    """Write the tables, with engine, bias and licence in the Parquet metadata."""
    about = json.dumps({"engine": ENGINE, "bias": bias, "scale": SCALE, "licence": LICENCE}, sort_keys=True)
    arrow = entries.to_arrow().replace_schema_metadata({METADATA_KEY: about})
    with atomic_file.atomic_path(path) as partial:
        pq.write_table(arrow, partial, compression="zstd", compression_level=19)
    nouns_builtin.load_tables.cache_clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Nouns found in gold text. A found one counts as right when its span is a gold noun's span."""

    num_gold: int
    num_found: int
    num_right: int

    @property
    def precision(self) -> float:
        return self.num_right / max(self.num_found, 1)

    @property
    def recall(self) -> float:
        return self.num_right / max(self.num_gold, 1)

    @property
    def f1(self) -> float:
        return 2 * self.num_right / max(self.num_found + self.num_gold, 1)


def measure(texts: list[Text], tables: Tables) -> Measured:
    """Return what `tables` find in the raw text of `texts`."""
    return best(texts, tables, (0,))[1]


def best(texts: list[Text], tables: Tables, thresholds: Iterable[int]) -> tuple[int, Measured]:
    """Return a threshold and what is found above it.

    Of the thresholds whose F1 is within 0.1 points of the best it is the one at which as many nouns are found
    as there are: the count is what the difficulty rests on.
    """
    spelled = [text.text for text in texts]
    tokens = nouns_builtin.tokenise(pl.Series(spelled))
    _, exact = gold_nouns(tokens, texts, spelled)
    num_gold = sum(part in NOUNS for text in texts for _, _, part in text.tokens)
    given = np.where(tokens.codes > 0, nouns_builtin.scores(tokens, tables), np.iinfo(np.int16).min)
    found = {
        threshold: Measured(
            num_gold=num_gold,
            num_found=int((given > threshold).sum()),
            num_right=int(((given > threshold) & exact).sum()),
        )
        for threshold in thresholds
    }
    highest = max(measured.f1 for measured in found.values())
    good = [threshold for threshold in found if found[threshold].f1 > highest - 0.001]
    chosen = min(good, key=lambda threshold: abs(found[threshold].num_found - num_gold))
    return chosen, found[chosen]


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("treebank", type=Path)
    arguments.add_argument("--out", type=Path, default=nouns_builtin.TABLES)
    given = arguments.parse_args()
    lines = read_lines(given.treebank / "en_ewt-ud-train.conllu")
    train, lemmas = list(read_sentences(lines)), lemma_uses(lines)
    classes = word_classes(train, lemmas)
    things = [lemma for lemma, uses in sorted(lemmas.items()) if uses["NOUN"] >= max(3, 10 * uses["VERB"])]
    present = list(read_sentences(in_present_tense(lines)))
    made_up = [marked_text(sentence) for sentence in sentences(things, MADE_UP)]
    both: list[Text] = []
    both_spelled: list[str] = []
    for texts, company, copies in (
        (train, SENTENCES, COPIES),
        (present, SENTENCES, 1),
        (made_up, 1, 1),
    ):
        # Every sentence twice: as written, some in company, and in lower case.
        written = joined(texts, company)
        both += copies * (written + texts)
        both_spelled += copies * ([text.text for text in written] + lowered(texts))
    tokens = nouns_builtin.tokenise(pl.Series(both_spelled))
    holds, _ = gold_nouns(tokens, both, both_spelled)
    found = features(tokens, classes)
    print(
        f"{len(train):,} sentences, {(tokens.codes > 0).sum():,} tokens, {len(found.names):,} features",
        flush=True,
    )
    weights = learn(found, np.flatnonzero(tokens.codes), holds)
    entries = as_entries(weights, found, classes)
    bias = int(np.rint(weights[0] * SCALE))
    write(entries, bias, given.out)
    threshold, reached = best(
        joined(list(read_conllu(given.treebank / "en_ewt-ud-dev.conllu")), SENTENCES),
        nouns_builtin.load_tables(given.out),
        range(-SCALE, SCALE + 1),
    )
    write(entries, bias - threshold, given.out)
    print(
        f"{entries.height:,} entries, {given.out.stat().st_size:,} bytes, "
        f"dev F1 {100 * reached.f1:.2f} at {threshold}"
    )


if __name__ == "__main__":
    main()
