"""Noun counting: quality and speed of the built-in engine, beside a spaCy tagger.

    python benchmarks/nouns.py FOLDER [--test FILE] [--captions FILE.parquet] [--peer FOLDER]

FOLDER holds the CoNLL-U files of UD English EWT. The peer is spaCy's small convolutional tagger (its
default architecture), trained here on EWT's train part, the best of its epochs on the dev part; --peer
keeps it for the next time. In raw text, cut by each engine's own tokeniser, a noun counts as found when its
span is the gold noun's; on gold tokens both are asked about the same tokens. Counts are compared over texts
of five sentences. The captions labelled by hand (`labelled_captions`) are full of verbs in the third
person. Speed is on one core, over the test part or a caption column.
"""

import os

os.environ["POLARS_MAX_THREADS"] = "1"  # read when polars is imported
os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import spacy
from labelled_captions import HELD_OUT, OPEN
from rows import Row, best_seconds, keep, row
from spacy.training import Example
from spacy.util import compounding, minibatch
from train_noun_tables import Measured, measure
from treebank import NOUNS, Text, joined, read_conllu

from vidcurate.curation.caption_scores import nouns_builtin, nouns_spacy

SENTENCES = 5
EPOCHS = 8
PEER = "spaCy small tagger, same training text"


def examples(nlp: Any, texts: list[Text]) -> list[Any]:
    """Return the sentences as spaCy's examples: gold tags on the gold tokens that have own letters."""
    made = []
    for text in texts:
        tokens = [(start, stop, part) for start, stop, part in text.tokens if stop > start]
        words = [text.text[start:stop] for start, stop, _ in tokens]
        spaces = [text.text[stop : stop + 1] == " " for _, stop, _ in tokens]
        doc = spacy.tokens.Doc(nlp.vocab, words=words, spaces=spaces)
        made.append(Example.from_dict(doc, {"tags": [part for *_, part in tokens]}))
    return made


def train_peer(folder: Path, treebank: Path) -> None:
    """Train the tagger and save it in `folder`."""
    random.seed(0)
    spacy.util.fix_random_seed(0)
    nlp = spacy.blank("en")
    nlp.add_pipe("tagger")
    train = examples(nlp, list(read_conllu(treebank / "en_ewt-ud-train.conllu")))
    dev = list(read_conllu(treebank / "en_ewt-ud-dev.conllu"))
    optimizer = nlp.initialize(lambda: train)
    highest = 0.0
    for epoch in range(EPOCHS):
        random.shuffle(train)
        for batch in minibatch(train, size=compounding(16.0, 128.0, 1.001)):
            nlp.update(batch, sgd=optimizer, drop=0.1)
        reached = peer_finds(nlp, dev).f1
        print(f"peer: epoch {epoch + 1} of {EPOCHS}, dev F1 {100 * reached:.2f}", flush=True)
        if reached > highest:
            highest = reached
            nlp.meta["name"], nlp.meta["version"] = "ewt_peer", "1.0.0"
            nlp.to_disk(folder)


def peer_finds(nlp: Any, texts: list[Text]) -> Measured:
    """Return what the pipeline finds in the raw text of `texts`."""
    found = right = gold = 0
    for text, doc in zip(texts, nlp.pipe(text.text for text in texts), strict=True):
        nouns = {(start, stop) for start, stop, part in text.tokens if part in NOUNS}
        spans = [(token.idx, token.idx + len(token)) for token in doc if token.tag_ in NOUNS]
        gold += sum(part in NOUNS for *_, part in text.tokens)
        found += len(spans)
        right += sum(span in nouns for span in spans)
    return Measured(num_gold=gold, num_found=found, num_right=right)


def on_gold_tokens(texts: list[Text]) -> Measured:
    """Return what the built-in engine finds when it is given the gold tokens."""
    numbers: dict[str, int] = {}
    codes, ends, is_noun = [], [0], []
    for text in texts:
        codes += [0, 0]
        for start, stop, part in text.tokens:
            if stop > start:
                codes.append(numbers.setdefault(text.text[start:stop], len(numbers) + 1))
                is_noun.append(part in NOUNS)
        ends.append(len(codes))
    tokens = nouns_builtin.Tokens(
        codes=np.array([*codes, 0, 0], dtype=np.int32), distinct=pl.Series(list(numbers)), ends=np.array(ends)
    )
    found = (nouns_builtin.scores(tokens, nouns_builtin.load_tables()) > 0)[tokens.codes > 0]
    return Measured(
        num_gold=sum(is_noun), num_found=int(found.sum()), num_right=int((found & np.array(is_noun)).sum())
    )


def peer_on_gold_tokens(nlp: Any, texts: list[Text]) -> Measured:
    """Return what the pipeline finds when it is given the gold tokens."""
    found = right = gold = 0
    docs = [example.reference for example in examples(nlp, texts)]
    truth = [[token.tag_ in NOUNS for token in doc] for doc in docs]
    bare = [spacy.tokens.Doc(nlp.vocab, words=[token.text for token in doc]) for doc in docs]
    for doc, are_nouns in zip(nlp.pipe(bare), truth, strict=True):
        for token, is_noun in zip(doc, are_nouns, strict=True):
            gold += is_noun
            found += token.tag_ in NOUNS
            right += is_noun and token.tag_ in NOUNS
    return Measured(num_gold=gold, num_found=found, num_right=right)


def against_gold(texts: list[Text], count: Callable[[pl.Series], pl.Series]) -> tuple[float, float]:
    """Return (Spearman's rank correlation, mean absolute error) of counts over texts of five sentences."""
    longer = joined(texts, SENTENCES)
    gold = pl.Series([sum(part in NOUNS for *_, part in text.tokens) for text in longer])
    counted = count(pl.Series([text.text for text in longer]))
    both = pl.DataFrame({"gold": gold, "counted": counted})
    return both.select(pl.corr("gold", "counted", method="spearman")).item(), float(
        np.abs(gold.to_numpy() - counted.to_numpy()).mean()
    )


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("treebank", type=Path)
    arguments.add_argument("--test", type=Path, help="another gold treebank's CoNLL-U file")
    arguments.add_argument(
        "--captions", type=Path, help="a Parquet file with a column caption, for the speed"
    )
    arguments.add_argument("--peer", type=Path, help="where the trained peer is kept")
    given = arguments.parse_args()
    test = given.test or given.treebank / "en_ewt-ud-test.conllu"
    texts = list(read_conllu(test))
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.peer or Path(scratch) / "peer"
        if not (folder / "meta.json").exists():
            train_peer(folder, given.treebank)
        rows = compare(texts, folder, test.stem, given.captions)
    keep("nouns" if given.test is None else f"nouns_{test.stem}", rows)


def compare(texts: list[Text], folder: Path, name: str, captions: Path | None) -> list[Row]:
    """Return the figures of both engines."""
    nlp = spacy.load(folder)
    ours, theirs = measure(texts, nouns_builtin.load_tables()), peer_finds(nlp, texts)
    gold, peer_gold = on_gold_tokens(texts), peer_on_gold_tokens(nlp, texts)
    peer_counts = nouns_spacy.load(str(folder))

    def peer_count(captions: pl.Series) -> pl.Series:
        return peer_counts(captions)["noun_count"]

    rows = [
        row(
            f"{part}, {name}",
            100 * ours_part,
            "%",
            peer=PEER,
            peer_value=100 * theirs_part,
            goal=goal,
        )
        for part, ours_part, theirs_part, goal in (
            ("F1 in raw text", ours.f1, theirs.f1, ">= peer - 1 point"),
            ("precision in raw text", ours.precision, theirs.precision, ""),
            ("recall in raw text", ours.recall, theirs.recall, ""),
            ("F1 on gold tokens", gold.f1, peer_gold.f1, ">= peer - 1 point"),
        )
    ]
    for half, labelled in (("open", OPEN), ("held out", HELD_OUT)):
        ours, theirs = measure(labelled, nouns_builtin.load_tables()), peer_finds(nlp, labelled)
        rows += [
            row(
                f"precision, labelled captions ({half})",
                100 * ours.precision,
                "%",
                peer=PEER,
                peer_value=100 * theirs.precision,
                goal=">= 90" if half == "held out" else "",
            ),
            row(
                f"recall, labelled captions ({half})",
                100 * ours.recall,
                "%",
                peer=PEER,
                peer_value=100 * theirs.recall,
                goal="",
            ),
        ]
    ranks, error = against_gold(texts, nouns_builtin.count)
    peer_ranks, peer_error = against_gold(texts, peer_count)
    rows += [
        row(f"rank correlation of counts, {name}", ranks, "", peer=PEER, peer_value=peer_ranks, goal=""),
        row(
            f"mean error of counts, {name}",
            error,
            "nouns",
            peer=PEER,
            peer_value=peer_error,
            higher_is_better=False,
        ),
    ]
    if captions is not None:
        spoken = pl.read_parquet(captions, columns=["caption"])["caption"].drop_nulls()
    else:
        spoken = pl.Series([text.text for text in joined(texts, SENTENCES)] * 100)
    few = spoken.head(500)
    seconds, _ = best_seconds(lambda: nouns_builtin.count(spoken))
    peer_seconds, _ = best_seconds(lambda: peer_count(few), repeats=2)
    tokens = [int((nouns_builtin.tokenise(part).codes > 0).sum()) for part in (spoken, few)]
    rows += [
        row(
            f"{what}, one core",
            amounts[0] / seconds,
            f"{what}/s",
            peer=PEER,
            peer_value=amounts[1] / peer_seconds,
            goal=goal,
        )
        for what, amounts, goal in (
            ("captions", [len(spoken), len(few)], ">= 40 x"),
            ("tokens", tokens, ">= 1 M/s"),
        )
    ]
    return rows


if __name__ == "__main__":
    main()
