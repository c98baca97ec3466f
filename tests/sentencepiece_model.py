"""A SentencePiece model trained on a few lines, with T5's ids of the special tokens."""

from collections.abc import Iterable
from pathlib import Path

import pytest

sentencepiece = pytest.importorskip("sentencepiece")


def train_sentencepiece(folder: Path, lines: Iterable[str], vocab_size: int) -> Path:
    """Write `folder`/spiece.model of at most `vocab_size` pieces; return its path."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for line in lines if line),
        model_prefix=str(folder / "spiece"),
        vocab_size=vocab_size,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    (folder / "spiece.vocab").unlink()
    return folder / "spiece.model"
