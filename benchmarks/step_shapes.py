"""Shapes of the measured steps: latent, batch, micro-batches, goal, captions."""

from dataclasses import dataclass

TEXT_TOKENS = 300
CAPTION_TOKENS, DROPPED = 125, 0.1  # of a caption in the mean; a dropped one reads the null caption's 300
READ_TOKENS = round((1 - DROPPED) * CAPTION_TOKENS + DROPPED * TEXT_TOKENS)
SPREAD_TOKENS = 64  # to either side of READ_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A bucket's latent (frames, height, width), the published batch, and the goal in tokens a second."""

    frames: int
    height: int
    width: int
    batch: int
    micro_batch: int
    goal: int
    original: int = 0  # tokens/s of Open-Sora v1.2.0's own code, see ORIGINAL
    recomputed_blocks: int = 0  # of 56, where the activations of one clip do not fit
    fast_micro_batch: int | None = None  # the fast form keeps less, so more clips fit at once
    fast_lean: bool = False  # and keeps still less, instead of recomputing blocks

    @property
    def tokens(self) -> int:
        """Tokens of one clip."""
        return self.frames * -(-self.height // 2) * -(-self.width // 2)


SHAPES = {
    "144p_51f": Shape(
        frames=15,
        height=18,
        width=32,
        batch=51,
        micro_batch=10,
        fast_micro_batch=17,
        goal=75_000,
        original=19_125,
    ),
    "240p_102f": Shape(
        frames=30,
        height=30,
        width=53,
        batch=10,
        micro_batch=2,
        fast_micro_batch=5,
        goal=76_000,
        original=19_448,
        fast_lean=True,
    ),
    "360p_51f": Shape(
        frames=15,
        height=45,
        width=80,
        batch=8,
        micro_batch=2,
        fast_micro_batch=4,
        goal=72_000,
        original=18_480,
        fast_lean=True,
    ),
    "480p_51f": Shape(
        frames=15,
        height=60,
        width=106,
        batch=5,
        micro_batch=1,
        fast_micro_batch=2,
        goal=70_000,
        original=18_358,
        fast_lean=True,
    ),
    "720p_51f": Shape(
        frames=15,
        height=90,
        width=160,
        batch=2,
        micro_batch=1,
        goal=60_000,
        original=17_062,
        recomputed_blocks=28,
        fast_lean=True,
    ),
    "256_image": Shape(frames=1, height=32, width=32, batch=96, micro_batch=96, goal=0),
}


def in_parts(batch: int, most: int) -> list[int]:
    """Return the clips of each micro-batch: as few as `most` allows, and as even as can be."""
    parts = -(-batch // most)
    return [batch * (part + 1) // parts - batch * part // parts for part in range(parts)]


def caption_lengths(count: int) -> list[int]:
    """Return the text tokens that each of `count` clips reads: READ_TOKENS in the mean, evenly spread."""
    if count == 1:
        return [READ_TOKENS]
    least, spread = READ_TOKENS - SPREAD_TOKENS, 2 * SPREAD_TOKENS
    return [least + round(spread * number / (count - 1)) for number in range(count)]
