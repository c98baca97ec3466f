"""Memory of a micro-batch, predicted; and the recompute plan with which it fits.

Counts what autograd saves from the forward to the backward pass, in units of one token's D channels. A
block of the readable form saves, for each token,

    x, norm, modulated (3), q | k | v (3), both norms of q and k (2 wide copies each in bfloat16, 1 normed),
    q and k as attention reads them (2), its output, the projection's output; cross-attention's input, q and
    output (3); x, norm, modulated (3), the MLP before and after GELU (4 + 4), its output (1)

31 in bfloat16 and 27 in float32, where the wide copy is no copy. A block of the fast form saves 21,

    x, q | k | v (3), q and k as attention reads them (2), its output, the projection's output;
    cross-attention's input, q and output (3); x, the MLP before and after GELU (4 + 4), its output (1)

and a lean one 15: its backward pass recomputes q and k and the GELU's output. With float8 matmuls the MLP
after GELU is float8, half as many bytes and a scale for each token, so a fast block saves 19. A block whose
tokens attend only to themselves saves no q | k | v: its attention's output is v. A recomputed block saves x
alone. Tests count the saved tensors of all of these and find exactly these bytes. A caption counts with its
maximal number of tokens: fast blocks, which save its true ones, save no more. On top come the weights with
their gradients and optimizer state, and the temporaries of one block's backward pass.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

from trainer.distributed.step_time import Work
from trainer.model.stdit import STDiT3Config

Sharding = Literal["none", "full", "hybrid"]

# Gradients alive at once in the backward pass of an MLP, in channels of a token: both sides of the GELU (8),
# the modulated input, the sum, the branch and its gate. When a lean block recomputes the GELU's output (4),
# what the final layer saved is already freed.
WORKING_UNITS = 12
FINAL_UNITS = 5  # of the final layer with a frame mask; 3 without


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Implementation of the blocks: with kernels (`fast`) or without, and bytes per number, 2 or 4.

    `float8`: the largest matmuls of fast blocks are in float8.
    """

    fast: bool
    item_bytes: int = 2
    float8: bool = False


def form_of(blocks: Literal["eager", "fast"], precision: Literal["float32", "bfloat16", "float8"]) -> Form:
    """Return the form of a recipe's `blocks` and `precision`."""
    item_bytes = 4 if precision == "float32" else 2
    return Form(fast=blocks == "fast", item_bytes=item_bytes, float8=precision == "float8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a micro-batch is computed: in how many chunks of its clips, and what its blocks save.

    Each chunk goes forward and backward before the next, and their gradients add up. In the order of the
    forward pass, the first `recompute_blocks` save only their input: the backward pass recomputes them one at
    a time, when the blocks behind them are already freed. The next `lean_blocks` are lean, which only the
    fast form supports.
    """

    chunks: int = 1
    lean_blocks: int = 0
    recompute_blocks: int = 0

    def slices(self, clips: int) -> list[slice]:
        """Return the clips of each chunk, as even as can be, the largest first."""
        sizes = [-(-(clips - number) // self.chunks) for number in range(self.chunks)]
        return [slice(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True) if size]

    def is_recomputed(self, number: int) -> bool:
        """Return whether block `number` saves only its input."""
        return number < self.recompute_blocks

    def is_lean(self, number: int) -> bool:
        """Return whether block `number` is lean."""
        return 0 <= number - self.recompute_blocks < self.lean_blocks

    def __str__(self) -> str:
        chunks = f"{self.chunks} chunks, " if self.chunks > 1 else ""
        lean = f", {self.lean_blocks} lean" if self.lean_blocks else ""
        return f"{chunks}{self.recompute_blocks} blocks recomputed{lean}"


KEEP_ALL = Plan()


def _block_token_bytes(
    config: STDiT3Config, form: Form, *, alone: bool, temporal: bool, lean: bool = False
) -> int:
    """Return the bytes that one block saves for one token. `alone`: its attention sees a single token."""
    width, hidden = config.hidden_size, int(config.hidden_size * config.mlp_ratio)
    item, heads = form.item_bytes, config.num_heads
    # Each attention, cross-attention included, saves its log-sum-exp in float32.
    if form.fast:
        kept = (8 if alone else 11) * width + hidden
        after = 0  # the MLP after GELU
        if not lean:
            kept += 0 if alone else 2 * width
            after = hidden + 4 if form.float8 else item * hidden
        sums = 1 if alone or temporal else 2  # temporal attention recomputes its weights
        return item * kept + after + 4 * (heads * sums + 4)  # and mean and deviation of two norms, float32
    kept = 10 * width + 2 * hidden + 2 * width
    bytes_kept = item * (kept + 4)  # and mean and deviation of two norms
    if alone:
        return bytes_kept + 4 * heads
    bytes_kept += item * 5 * width  # q, k, v in one tensor; q and k as attention reads them
    wide = 4 * width if item != 4 else 0
    bytes_kept += 2 * (item * width + wide + 4 * heads)
    return bytes_kept + 2 * 4 * heads


def token_bytes(config: STDiT3Config, work: Work, form: Form, *, lean: bool = False) -> tuple[int, int]:
    """Return the bytes that a spatial and a temporal block save for one token of `work`."""
    spatial = _block_token_bytes(config, form, alone=work.places == 1, temporal=False, lean=lean)
    temporal = _block_token_bytes(config, form, alone=work.frames == 1, temporal=True, lean=lean)
    return spatial, temporal


def text_token_bytes(config: STDiT3Config, form: Form) -> int:
    """Return the bytes that one block saves for one caption token: key, value, without kernels its mask."""
    return form.item_bytes * (2 * config.hidden_size + (0 if form.fast else 1))


def _largest_chunk(work: Work, plan: Plan) -> Work:
    return replace(work, clips=-(-work.clips // plan.chunks))


def activation_bytes(config: STDiT3Config, work: Work, form: Form, plan: Plan = KEEP_ALL) -> int:
    """Return the peak of saved activations of `work`'s largest chunk, with one modulation per frame.

    The backward pass frees block after block, the last one first, and holds a recomputed block in full while
    it is the current one.
    """
    work = _largest_chunk(work, plan)
    width, item, blocks = config.hidden_size, form.item_bytes, range(2 * config.depth)
    texts, frames = work.clips * work.text_tokens, work.clips * work.frames
    aside = texts * text_token_bytes(config, form) + frames * item * width * (6 if form.fast else 8)
    kinds = {lean: token_bytes(config, work, form, lean=lean) for lean in (False, True)}
    whole = [work.tokens * kinds[plan.is_lean(number)][number % 2] + aside for number in blocks]
    kept = [work.tokens * item * width if plan.is_recomputed(number) else whole[number] for number in blocks]
    most = max(map(sum, zip(accumulate(kept, initial=0), whole, strict=False)))
    patch = config.patch_size[1] * config.patch_size[2] * config.in_channels
    ends = work.tokens * item * (FINAL_UNITS * width + patch + 4) + texts * item * width
    return most + ends


def peak_bytes(config: STDiT3Config, work: Work, form: Form, plan: Plan = KEEP_ALL) -> int:
    """Return the peak bytes of one micro-batch beside the weights: saved activations and temporaries."""
    tokens = _largest_chunk(work, plan).tokens
    working = tokens * form.item_bytes * config.hidden_size * WORKING_UNITS
    return activation_bytes(config, work, form, plan) + working


def state_bytes(
    trained: int,
    frozen: int,
    *,
    item_bytes: int,
    sharding: Sharding = "none",
    ranks: int = 1,
    power_averages: int = 0,
) -> int:
    """Return the bytes of weights, gradients, two moments, EMA and further averages on one rank.

    `trained` and `frozen` are numbers of parameters. All are float32; in bfloat16 a rounded copy is added.
    Where the state is sharded over `ranks`, each rank still holds the full copy that it computes with, and
    full gradients until the step ends.
    """
    own = trained * (4 + 4 + 8 + 4 + 4 * power_averages) + frozen * (4 + 4)
    if sharding == "none" or ranks == 1:
        return own + (trained + frozen) * (item_bytes if item_bytes != 4 else 0)
    return -(-own // ranks) + (trained + frozen) * item_bytes + trained * 4


def plan_of(config: STDiT3Config, recompute_blocks: int) -> Plan:
    """Return the plan with `recompute_blocks` blocks recomputed, at most all."""
    return Plan(recompute_blocks=min(recompute_blocks, 2 * config.depth))


def plans(config: STDiT3Config, form: Form) -> Iterator[Plan]:
    """Yield the plans of one chunk, from the fastest to the one with the least memory.

    First more and more blocks are lean: each saves 6 vectors per token for about 2 % of its time. Then more
    and more are recomputed: each saves all but one vector, for a second forward pass. The last block is never
    recomputed, because the backward pass would need it at once.
    """
    blocks = 2 * config.depth
    lean = blocks if form.fast else 0
    yield from (Plan(lean_blocks=count) for count in range(lean + 1))
    yield from (Plan(lean_blocks=max(lean - count, 0), recompute_blocks=count) for count in range(1, blocks))


def least_plan(config: STDiT3Config, work: Work, form: Form, limit_bytes: float) -> Plan | None:
    """Return the plan of fewest chunks, then of fewest lean blocks, with which `work` fits into the limit.

    Blocks are recomputed only where a single clip fits with no other plan; None where none fits.
    """
    sizes = {-(-work.clips // chunks) for chunks in range(1, work.clips + 1)}
    for size in sorted(sizes, reverse=True):
        for plan in plans(config, form):
            if plan.recompute_blocks and size > 1:
                break
            found = replace(plan, chunks=-(-work.clips // size))
            if peak_bytes(config, work, form, found) <= limit_bytes:
                return found
    return None


def least_bytes(config: STDiT3Config, work: Work, form: Form) -> int:
    """Return the bytes that `work` needs clip by clip, with the plan that needs least."""
    *_, last = plans(config, form)
    return peak_bytes(config, work, form, replace(last, chunks=work.clips))
