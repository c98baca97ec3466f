"""How much memory a micro-batch needs, and how many blocks must be recomputed for it to fit.

Counted is what autograd keeps from the forward to the backward pass, in units of one token's D channels. A
block of the readable form keeps, of each token,

    x, norm, modulated (3), q | k | v (3), both norms of q and k (2 wide copies each in bfloat16, 1 normed),
    q and k as attention reads them (2), its output, the projection's output; cross-attention's input, q and
    output (3); x, norm, modulated (3), the MLP before and after GELU (4 + 4), its output (1)

31 in bfloat16 and 27 in float32, where the wide copy is no copy. The fast form keeps 23: no norms, no copies,
no sum that a later kernel can make again. A block whose tokens see only themselves needs no q and k.
Tests count the saved tensors of both forms and find these very bytes. On top come the weights with all that
hangs on them, and what one block's backward pass works with.
"""

from dataclasses import dataclass, replace
from typing import Literal

from trainer.cost import Work
from trainer.stdit import STDiT3Config

Sharding = Literal["none", "full", "hybrid"]

# Gradients alive at once in the backward pass of an MLP, in channels of a token: both sides of the GELU (8),
# the modulated input, the sum, the branch and its gate.
WORKING_UNITS = 12
FINAL_UNITS = 5  # of the final layer with frames that are given; 3 without


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How blocks are computed: by the kernels (`fast`) or not, in numbers of `item_bytes`, 2 or 4."""

    fast: bool
    item_bytes: int = 2


def _block_token_bytes(config: STDiT3Config, form: Form, *, alone: bool, temporal: bool) -> int:
    """Return what one block keeps of one token. `alone`: its attention has a single token to see."""
    width, hidden = config.hidden_size, int(config.hidden_size * config.mlp_ratio)
    item, heads = form.item_bytes, config.num_heads
    # Of every attention, cross-attention included, the logarithm of its softmax's sum, float32.
    if form.fast:
        kept = (7 if alone else 12) * width + width + 2 * hidden + 2 * width
        sums = 1 if alone or temporal else 2  # attention over time makes its weights again
        return item * kept + 4 * heads * sums
    kept = 10 * width + 2 * hidden + 2 * width
    bytes_kept = item * (kept + 4)  # and mean and deviation of two norms
    if alone:
        return bytes_kept + 4 * heads
    bytes_kept += item * 5 * width  # q, k, v of one piece; q and k as attention reads them
    if config.qk_norm:
        wide = 4 * width if item != 4 else 0
        bytes_kept += 2 * (item * width + wide + 4 * heads)
    return bytes_kept + 2 * 4 * heads


def token_bytes(config: STDiT3Config, work: Work, form: Form) -> tuple[int, int]:
    """Return what a spatial and a temporal block keep of one token of `work`, in bytes."""
    spatial = _block_token_bytes(config, form, alone=work.places == 1, temporal=False)
    temporal = _block_token_bytes(config, form, alone=work.frames == 1, temporal=True)
    return spatial, temporal


def text_token_bytes(config: STDiT3Config, form: Form) -> int:
    """Return what one block keeps of one caption token: its key and value, and without kernels its mask."""
    return form.item_bytes * (2 * config.hidden_size + (0 if form.fast else 1))


def recomputed(blocks: int, count: int) -> set[int]:
    """Return the numbers of the blocks that `parallel.recompute_blocks` chooses: `count`, spread evenly."""
    count = min(count, blocks)
    return {number * blocks // count for number in range(count)}


def activation_bytes(config: STDiT3Config, work: Work, form: Form, recompute_blocks: int = 0) -> int:
    """Return what is kept of `work` from forward to backward, with every frame's own modulation.

    A block that is recomputed keeps its input alone, and one of them at a time is there whole.
    """
    width, item, blocks = config.hidden_size, form.item_bytes, 2 * config.depth
    texts, frames = work.clips * work.text_tokens, work.clips * work.frames
    aside = texts * text_token_bytes(config, form) + frames * item * width * (6 if form.fast else 8)
    block = [work.tokens * kind + aside for kind in token_bytes(config, work, form)]
    again = recomputed(blocks, recompute_blocks)
    kept = sum(
        work.tokens * item * width if number in again else block[number % 2] for number in range(blocks)
    )
    alive = max((block[number % 2] for number in again), default=0)
    patch = config.patch_size[1] * config.patch_size[2] * config.in_channels
    ends = work.tokens * item * (FINAL_UNITS * width + patch + 4) + texts * item * width
    return kept + alive + ends


def peak_bytes(config: STDiT3Config, work: Work, form: Form, recompute_blocks: int = 0) -> int:
    """Return the most that one micro-batch needs beside the weights: what is kept and what is worked with."""
    working = work.tokens * form.item_bytes * config.hidden_size * WORKING_UNITS
    return activation_bytes(config, work, form, recompute_blocks) + working


def state_bytes(
    trained: int, frozen: int, *, item_bytes: int, sharding: Sharding = "none", ranks: int = 1
) -> int:
    """Return what weights, gradients, two moments and moving average take on one of `ranks` that share them.

    `trained` and `frozen` are numbers of parameters. All is float32; in bfloat16 a rounded copy comes to it.
    Where the state is cut over ranks, each holds the whole copy that it computes with, and whole gradients
    until the step ends.
    """
    own = trained * (4 + 4 + 8 + 4) + frozen * (4 + 4)
    if sharding == "none" or ranks == 1:
        return own + (trained + frozen) * (item_bytes if item_bytes != 4 else 0)
    return -(-own // ranks) + (trained + frozen) * item_bytes + trained * 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How a bucket's clips go through the model: so many at once, with so many blocks recomputed."""

    clips: int
    recompute_blocks: int
    peak_bytes: int


def least_recompute(config: STDiT3Config, work: Work, form: Form, limit_bytes: float) -> int | None:
    """Return the fewest blocks to recompute with which `work` fits into the limit; None: it never does."""
    for count in range(2 * config.depth + 1):
        if peak_bytes(config, work, form, count) <= limit_bytes:
            return count
    return None


def fit(config: STDiT3Config, one: Work, form: Form, limit_bytes: float, most_clips: int) -> Fit | None:
    """Return the largest micro-batch of clips like `one` (a Work of 1 clip) that fits into `limit_bytes`.

    `limit_bytes` is what the weights leave free. Nothing is recomputed where one clip fits so; else the
    fewest blocks are that make it fit; None where no number does.
    """
    for clips in range(most_clips, 0, -1):
        work = replace(one, clips=clips)
        count = least_recompute(config, work, form, limit_bytes) if clips == 1 else 0
        if count is None:
            return None
        if (needed := peak_bytes(config, work, form, count)) <= limit_bytes:
            return Fit(clips=clips, recompute_blocks=count, peak_bytes=needed)
    return None
