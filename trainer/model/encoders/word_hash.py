"""Word-hash text encoder: one vector per word, made by hashing; tiny, no weights.

A word's vector is the sum of random signs, one row of signs for each of its byte n-grams and for the whole
word, so that `circle` and `circles` are near each other and other words are not. The signs are the bits of
SHAKE-256 of the n-gram: integers, the same on every machine and under every version of any library.

The model's attention does not see the position of a caption token. So after the words comes one token for
each pair of neighbours ("red circle"), which connects an adjective with its noun; then the end token, which
an empty caption has too.
"""

import hashlib
import itertools
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from vidcurate.recipe.recipe import Recipe

NGRAM_SIZES = (3, 4)
OWN_SHARE = 0.75  # of a vector's variance; the rest is shared with words of like spelling
END = "\x00end"
WORD = re.compile(r"\w+(?:['’-]\w+)*")


def words_of(caption: str) -> list[str]:
    """Return the caption's words, lower case and Unicode-normalised (NFKC)."""
    return WORD.findall(unicodedata.normalize("NFKC", caption).lower())


def _signs(name: bytes, channels: int) -> NDArray[np.float64]:
    bits = np.frombuffer(hashlib.shake_256(name).digest(-(-channels // 8)), dtype=np.uint8)
    signs: NDArray[np.float64] = np.unpackbits(bits)[:channels].astype(np.float64) * 2 - 1
    return signs


@lru_cache(maxsize=65536)
def word_vector(word: str, channels: int) -> NDArray[np.float32]:
    """Return float32 [channels], of unit variance over its channels in expectation; read-only."""
    text = b"<" + word.encode("utf-8", "surrogatepass") + b">"
    pieces = [text[start : start + size] for size in NGRAM_SIZES for start in range(len(text) - size + 1)]
    own = OWN_SHARE**0.5 * _signs(b"word" + text, channels)
    shared = np.sum([_signs(b"piece" + piece, channels) for piece in pieces], axis=0)
    vector: NDArray[np.float32] = (own + ((1 - OWN_SHARE) / len(pieces)) ** 0.5 * shared).astype(np.float32)
    vector.setflags(write=False)
    return vector


class WordsSpec(Recipe):
    """`words`: one hashed vector per word and, with `pairs`, per pair of neighbours (see its file)."""

    kind: Literal["words"] = "words"
    """the encoder: words"""
    caption_channels: int = Field(default=64, ge=8, le=65_536)
    """width of a word's vector"""
    model_max_length: int = Field(default=32, ge=2, le=65_536)
    """most tokens of a caption"""
    pairs: bool = True
    """add a token for each pair of neighbouring words, as attention does not see their order"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WordHash:
    """See the file's head. Too long a caption loses its pairs first, then its last words."""

    caption_channels: int = 64
    model_max_length: int = 32
    pairs: bool = True

    def tokens(self, caption: str) -> list[str]:
        """Return the caption's tokens: words, pairs of neighbours, the end."""
        words = words_of(caption)
        pairs = [f"{first} {second}" for first, second in itertools.pairwise(words)]
        kept = (words + pairs if self.pairs else words)[: self.model_max_length - 1]
        return [*kept, END]

    @property
    def device_bytes(self) -> int:
        """0: no weights."""
        return 0

    def predicted_bytes(self) -> int | None:
        """0: no weights."""
        return 0

    def encode(self, captions: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return float32 features [B, 1, L, C] and bool mask [B, L]; features beyond the end token are 0."""
        features = np.zeros((len(captions), self.model_max_length, self.caption_channels), dtype=np.float32)
        mask = np.zeros((len(captions), self.model_max_length), dtype=np.bool_)
        for row, caption in enumerate(captions):
            tokens = self.tokens(caption)
            for place, token in enumerate(tokens):
                features[row, place] = word_vector(token, self.caption_channels)
            mask[row, : len(tokens)] = True
        return torch.from_numpy(features)[:, None], torch.from_numpy(mask)
