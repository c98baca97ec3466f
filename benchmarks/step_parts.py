"""Parts of a training step: the kernels of each, and a lower bound of its cost.

The kernels of `trainer.model.kernels` have a name of their own for every job; cuBLAS's, cuDNN's and
FlashAttention's say whose they are. A floor is the FLOPs of a part at the rate of a large product, or its
bytes at the rate of a copy. u is one token's channels in bfloat16, 2304 bytes in XL/2.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.distributed.step_time import Work
    from trainer.model.stdit import STDiT3Config

OPTIMIZER_BYTES = (
    36  # master, two moments and EMA read and written in float32; gradient and weight in bfloat16
)
WITHOUT_FLOOR = ("other", "gaps")
ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the step; `kernels` are what their names have in them, in lower case."""

    name: str
    short: str
    kernels: tuple[str, ...] = ()
    counts: str = ""  # what the floor counts; {gflop} stands for the GFLOP of a token


# A kernel belongs to the first part that knows it: FlashAttention's are written in CUTLASS, too.
PARTS = (
    Part(
        name="attention in a frame and to captions",
        short="attention",
        kernels=("flash", "cudnn", "sdpa", "fmha"),
        counts="{gflop:.2f} GFLOP a token; a head of 72 as it is, no softmax",
    ),
    Part(
        name="linears",
        short="linears",
        kernels=("nvjet", "cublas", "cutlass", "gemm", "gemv", "_float8_"),
        counts="{gflop:.2f} GFLOP a token, forward and both gradients (captions: the weights')",
    ),
    Part(
        name="attention over time",
        short="time",
        kernels=("_temporal_",),
        counts="11 u in every second block: 4 forward, 7 backward",
    ),
    Part(
        name="norm of q and k, rotation",
        short="q and k",
        kernels=("_qk_norm_",),
        counts="12 u a block: 4 forward, 8 backward; 4 more in a lean one",
    ),
    Part(
        name="modulate, residual, norm",
        short="modulate",
        kernels=("_modulate_", "_normed_backward_", "_gated_backward_"),
        counts="28 u a block: 12 forward, 16 backward, where the norms' results are made again",
    ),
    Part(
        name="GELU",
        short="GELU",
        kernels=("gelu",),
        counts="20 u a block: 8 forward, 12 backward, 4 more in a lean one",
    ),
    Part(
        name="sums for biases and tables",
        short="sums",
        kernels=("_add_up_", "_bias_gradient_", "reduce_kernel"),
        counts="1 u a block: cross-attention's q; the others are made where the numbers are",
    ),
    Part(
        name="optimizer",
        short="optimizer",
        counts=f"{OPTIMIZER_BYTES} bytes of each trained parameter, over the tokens of the whole step",
    ),
    Part(
        name="other", short="other", counts="no floor: copies, casts, patches, embedders, final layer, loss"
    ),
    Part(name="gaps", short="gaps", counts="no floor: no kernel runs"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One launch: its name, and when it began and ended, in microseconds."""

    name: str
    start: float
    end: float

    @property
    def microseconds(self) -> float:
        """How long it ran."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What the device does at best: a large product in TFLOP/s, a copy in TB/s, read and written."""

    product: float
    copy: float


def part_of(name: str) -> str:
    """Return the part that the kernel `name` belongs to; what nobody knows is "other"."""
    small = name.lower()
    found = (part.name for part in PARTS if any(key in small for key in part.kernels))
    return next(found, "other")


def times(kernels: Iterable[Kernel]) -> dict[str, float]:
    """Return the microseconds of each part, "gaps" included: the time between first and last without any."""
    spent = {part.name: 0.0 for part in PARTS if part.kernels or part.name in WITHOUT_FLOOR}
    until = None
    for kernel in sorted(kernels, key=lambda kernel: kernel.start):
        spent[part_of(kernel.name)] += kernel.microseconds
        if until is not None:
            spent["gaps"] += max(0.0, kernel.start - until)
        until = kernel.end if until is None else max(until, kernel.end)
    return spent


def floors(
    config: "STDiT3Config",
    work: "Work",
    rates: Rates,
    *,
    lean: bool,
    trained: int,
    step_tokens: int,
) -> dict[str, float]:
    """Return the least microseconds a token of each part that has a floor.

    `trained` are the parameters that the optimizer moves, `step_tokens` the tokens that share its time.
    """
    d, depth, blocks = config.hidden_size, config.depth, 2 * config.depth
    hidden = int(d * config.mlp_ratio)
    # A block whose tokens see only themselves has neither queries nor keys, and sums the bias of its values.
    seeing = depth * ((work.places > 1) + (work.frames > 1))
    products = blocks * (4 * d * d + 4 * d * hidden) + seeing * 8 * d * d + (blocks - seeing) * 4 * d * d
    # What projects a caption is frozen: it runs forward, and the keys and values give it no gradient.
    caption = 2 * blocks * 4 * d * d + 2 * (config.caption_channels * d + d * d)
    captions = work.text_tokens * caption / (work.frames * work.places)
    in_frames = depth * work.places if work.places > 1 else 0
    flop = {
        "linears": 3 * products + captions,
        "attention in a frame and to captions": 3 * 4 * d * (in_frames + blocks * work.text_tokens),
    }
    units = {
        "modulate, residual, norm": 28 * blocks,
        "GELU": (6 if lean else 5) * blocks * hidden / d,
        "norm of q and k, rotation": (16 if lean else 12) * seeing,
        "attention over time": 11 * depth if work.frames > 1 else 0,
        "sums for biases and tables": blocks + (blocks - seeing),
        "optimizer": OPTIMIZER_BYTES * trained / step_tokens / (2 * d),
    }
    by_flop = {name: count / rates.product / 1e6 for name, count in flop.items()}
    return by_flop | {name: 2 * d * count / rates.copy / 1e6 for name, count in units.items()}
