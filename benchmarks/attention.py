"""Attention kernels of STDiT3-XL/2 on one GPU: µs forward and backward, and errors.

    python benchmarks/attention.py [--keep]

One row for each pair of lengths that training has: the tokens of a frame among themselves (144p to 720p, and
256 px images), and the tokens of a clip to captions of 300, all of one length or of 30 to 300. Heads: 16 of
72. Each time is the median of `triton.testing.do_bench`. A kernel's distance is that of its output and three
gradients from float32, relative 2-norm, over the first two sequences; kept is the largest of all lengths.
FlashAttention-4 (`pip install 'vidcurate[hopper]'`) runs in the form that is right
(trainer.model.kernels.flash_attention4).
`--keep` writes benchmarks/results/attention_<card>.json. Takes half a minute.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rows import Row, as_table, card, keep, row
from torch import Tensor

HEADS, WIDTH = 16, 72
COMPARED = 2  # sequences: float32 takes long
SHORTEST = 30  # of ragged captions


@dataclass(frozen=True, slots=True)
class Lengths:
    """So many sequences of queries, and the keys of each; `is_ragged`: those that are real differ."""

    sequences: int
    queries: int
    keys: int
    is_ragged: bool = False

    @property
    def is_captions(self) -> bool:
        """Whether the keys are a caption's: keys and values are then views into one tensor."""
        return self.queries != self.keys


SHAPES = {
    "frame_144p": Lengths(255, 144, 144),
    "frame_256px": Lengths(96, 256, 256),
    "frame_240p": Lengths(90, 405, 405),
    "frame_360p": Lengths(30, 920, 920),
    "frame_480p": Lengths(15, 1590, 1590),
    "frame_720p": Lengths(15, 3600, 3600),
    "captions_144p": Lengths(17, 2160, 300),
    "captions_256px": Lengths(96, 256, 300),
    "captions_240p": Lengths(3, 12150, 300),
    "captions_480p": Lengths(1, 23850, 300),
    "ragged_144p": Lengths(17, 2160, 300, is_ragged=True),
    "ragged_256px": Lengths(96, 256, 300, is_ragged=True),
    "ragged_240p": Lengths(3, 12150, 300, is_ragged=True),
}


@dataclass(frozen=True, slots=True)
class Given:
    """Random tensors of some lengths: what attention takes."""

    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor
    lengths: Tensor | None

    @staticmethod
    def of(shape: Lengths, generator: torch.Generator) -> "Given":
        def normal(*size: int) -> Tensor:
            whole = (shape.sequences, *size, HEADS, WIDTH)
            return torch.randn(whole, device="cuda", dtype=torch.bfloat16, generator=generator)

        q, dout = normal(shape.queries), normal(shape.queries)
        # As in the model: v is a view into qkv, or k and v are views into a caption's keys and values.
        k, v = normal(shape.keys, 2 if shape.is_captions else 3).unbind(2)[-2:]
        lengths = None
        if shape.is_ragged:
            size = (shape.sequences,)
            lengths = torch.randint(SHORTEST, shape.keys + 1, size, device="cuda", generator=generator)
            lengths[0] = shape.keys
            lengths = lengths.int()
        return Given(q, k if shape.is_captions else k.contiguous(), v, dout, lengths)


def exact(given: Given) -> list[Tensor]:
    """Return the output and the gradients of the first sequences in float32."""
    parts = [part[:COMPARED].float().transpose(1, 2).requires_grad_() for part in (given.q, given.k, given.v)]
    mask = None
    if given.lengths is not None:
        places = torch.arange(given.k.shape[1], device="cuda")
        mask = (places < given.lengths[:COMPARED, None])[:, None, None]
    out = F.scaled_dot_product_attention(*parts, attn_mask=mask)
    gradients = torch.autograd.grad(out, parts, given.dout[:COMPARED].float().transpose(1, 2))
    return [part.transpose(1, 2) for part in (out.detach(), *gradients)]


def own_ragged(given: Given) -> "Kernel":  # noqa: F821
    """Return our kernel for keys that are filled up, as the others take them.

    So its backward pass fills the missing keys' gradients with zeros, as theirs do and training's does not.
    """
    from trainer.model.kernels import attention
    from trainer.model.kernels.flash_attention import Ragged

    own, (count, keys) = attention.OWN, given.k.shape[:2]
    starts = torch.arange(0, count * keys, keys, device="cuda", dtype=torch.int32)
    where = Ragged(starts, given.lengths, longest=keys, has_gaps=True)

    def forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Any]:
        return own.forward(q, k.flatten(0, 1), v.flatten(0, 1), where)

    def backward(q: Tensor, k: Tensor, v: Tensor, out: Tensor, kept: Any, dout: Tensor) -> tuple[Tensor, ...]:
        dq, dk, dv = own.backward(q, k.flatten(0, 1), v.flatten(0, 1), out, kept, dout, where)
        return dq, dk.view(k.shape), dv.view(v.shape)

    return replace(own, forward=forward, backward=backward)


def kernels(given: Given) -> list["Kernel"]:  # noqa: F821 - imported once there is a GPU
    """Return every available kernel for these lengths, in the right layout; the Triton kernel first."""
    from trainer.model.kernels import attention, flash_attention4
    from trainer.model.kernels.autotune import both_passes, right_form

    def bound(kernel: "Kernel") -> "Kernel":  # noqa: F821
        return replace(
            kernel,
            forward=partial(kernel.forward, lengths=given.lengths),
            backward=partial(kernel.backward, lengths=given.lengths),
            mended=kernel.mended and bound(kernel.mended),
        )

    own = attention.OWN if given.lengths is None else own_ragged(given)
    others = attention.others(given.q, given.k, given.v)
    if given.lengths is not None:
        others = [bound(kernel) for kernel in others if kernel is flash_attention4.FLASH4]
    tensors = (given.q, given.k, given.v, given.dout)
    trusted = both_passes(own, *tensors)
    found = [own]
    for kernel in others:
        form, why = right_form(kernel, tensors, trusted)
        if form is None:
            print(f"{kernel.name} is left out: {why}", file=sys.stderr, flush=True)
        else:
            found.append(form)
    return found


def measure(given: Given, kernel: "Kernel", wanted: list[Tensor]) -> tuple[float, float, list[float]]:  # noqa: F821
    """Return µs forward and backward, and the distances of output, dq, dk and dv from `wanted`."""
    from triton.testing import do_bench

    from trainer.model.kernels.autotune import distance

    def microseconds(run: Callable[[], object]) -> float:
        return 1e3 * do_bench(run, warmup=8, rep=40, return_mode="median")

    q, k, v = given.q, given.k, given.v
    out, kept = kernel.forward(q, k, v)
    found = out, *kernel.backward(q, k, v, out, kept, given.dout)
    far = [distance(one[:COMPARED].float(), two) for one, two in zip(found, wanted, strict=True)]
    return (
        microseconds(lambda: kernel.forward(q, k, v)),
        microseconds(lambda: kernel.backward(q, k, v, out, kept, given.dout)),
        far,
    )


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog="example: python benchmarks/attention.py --keep"
    )
    arguments.add_argument("--keep", action="store_true", help="write results/attention_<card>.json")
    options = arguments.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks/attention.py needs a GPU, and torch sees none: run it on a machine with one")
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    hardware = torch.cuda.get_device_name()
    generator = torch.Generator("cuda").manual_seed(0)
    rows: list[Row] = []
    farthest: dict[str, float] = {}
    for name, shape in SHAPES.items():
        given = Given.of(shape, generator)
        wanted = exact(given)
        times: dict[str, tuple[float, float]] = {}
        for kernel in kernels(given):
            forward, backward, far = measure(given, kernel, wanted)
            times[kernel.name] = forward, backward
            farthest[kernel.name] = max(farthest.get(kernel.name, 0.0), *far)
            shown = " ".join(f"{one:.4f}" for one in far)
            print(
                f"{name:15} {shape.sequences:4} x {shape.queries:6,} x {shape.keys:5,}  {kernel.name:7}"
                f"{forward:6.0f} + {backward:6.0f} µs; out, dq, dk, dv from float32 {shown}",
                flush=True,
            )
        peer = "cudnn" if "cudnn" in times else "own"
        rows += [
            row(
                f"{name}_{kernel}_{way}",
                times[kernel][place],
                "µs",
                peer=peer,
                peer_value=times[peer][place],
                higher_is_better=False,
                hardware=hardware,
            )
            for kernel in times
            if kernel != peer
            for place, way in enumerate(("forward", "backward"))
        ]
    peer = "cudnn" if "cudnn" in farthest else "own"
    rows += [
        row(
            f"{kernel}_distance_from_float32",
            off,
            "of the norm",
            peer=peer,
            peer_value=farthest[peer],
            higher_is_better=False,
            hardware=hardware,
        )
        for kernel, off in farthest.items()
        if kernel != peer
    ]
    if options.keep:
        keep(f"attention_{card(hardware)}", rows)
    else:
        print(as_table(rows))


if __name__ == "__main__":
    main()
