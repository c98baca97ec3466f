"""Profile of one fast micro-batch: kernel time by part, each beside its floor.

    python benchmarks/step_profile.py [--shapes 240p_102f,720p_51f] [--keep]

For each shape of benchmarks/train_step.py one micro-batch of the fast form goes through torch's profiler,
after two that warm up. Its kernels are sorted into parts by their names (benchmarks/step_parts.py); gaps are
the time of the micro-batch in which none runs. Before the micro-batch the GPU waits some milliseconds, so
that the host is ahead as it is within a step, and its gradients are added to others where the step has
several. The optimizer's time is that of train_step's, shared by the tokens of the published batch. All in
microseconds a token; the rates under the floors are measured in the same process. `--keep` writes
benchmarks/results/step_profile_h200.json, from which benchmarks/speed_page.py makes the tables of
docs/speed.md.
"""

import argparse
import gc
import sys
from collections import Counter
from time import perf_counter

import torch
import torch.nn.functional as F
from rows import Row, as_table, keep, row
from step_parts import ALL, WITHOUT_FLOOR, Kernel, Rates, floors, part_of, times
from step_shapes import SHAPES, TEXT_TOKENS, Shape, in_parts
from torch.profiler import ProfilerActivity, profile
from train_step import (
    CONFIG,
    DENSE_BF16_TFLOPS,
    Masters,
    build,
    ceiling_tflops,
    inputs,
    prepare,
)

from trainer.distributed.step_time import Work
from trainer.model.kernels.autotune import milliseconds
from trainer.model.stdit import STDiT3

RESULT = "step_profile_h200"
WARM_UP = 2
HEAD_START = 40_000_000  # clock cycles that the GPU waits for the host to be ahead, some 20 ms
COPY_TB_PER_S = 4.8  # the memory's rate on the data sheet
SHOWN = 5  # kernels without a part, the largest


def measured_rates() -> Rates:
    """Return the rates of an 8192^3 bfloat16 product and of a copy of 2 GiB, in this process."""
    source = torch.randn(1 << 30, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    seconds = milliseconds([lambda: target.copy_(source)])[0] / 1000
    return Rates(product=ceiling_tflops(), copy=2 * source.nbytes / seconds / 1e12)


def optimizer_milliseconds(model: STDiT3) -> float:
    """Return the time of train_step's optimizer on random gradients; nothing of it stays on the device."""
    masters = Masters(model)
    gradients = [torch.randn_like(weight) for weight in masters.weights]

    def step() -> None:
        for weight, gradient in zip(masters.weights, gradients, strict=True):
            weight.grad = gradient
        masters.step()

    return milliseconds([step])[0]


def profiled(model: STDiT3, shape: Shape, clips: int) -> list[Kernel]:
    """Return the kernels of one micro-batch of `clips`, in the order of their beginning.

    Raises RuntimeError where the profiler has not seen the micro-batch from its beginning.
    """
    prepare(model, shape, "fast")
    batch = inputs(shape, clips)
    target = batch.pop("target")

    def micro_batch() -> None:
        F.mse_loss(model(**batch)[:, :4], target).backward()

    for _ in range(WARM_UP):
        micro_batch()
    if len(in_parts(shape.batch, clips)) == 1:  # nothing to add the gradients to
        model.zero_grad()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        torch.cuda._sleep(HEAD_START)
        micro_batch()
        torch.cuda.synchronize()
    model.zero_grad()
    found = sorted(
        (
            Kernel(name=event.name, start=event.time_range.start, end=event.time_range.end)
            for event in seen.events()
            if event.device_type == torch.autograd.DeviceType.CUDA
        ),
        key=lambda kernel: kernel.start,
    )
    if not found or found[0].microseconds < 1000:
        raise RuntimeError(
            "The profile has not seen the GPU wait: it does not begin where the micro-batch does."
        )
    return found[1:]


def largest_others(kernels: list[Kernel], tokens: int) -> list[str]:
    """Return a line each for the kernels that no part knows and that took most."""
    spent: dict[str, float] = {}
    launches = Counter[str]()
    for kernel in kernels:
        if part_of(kernel.name) == "other":
            spent[kernel.name] = spent.get(kernel.name, 0.0) + kernel.microseconds
            launches[kernel.name] += 1
    return [
        f"    other: {total / tokens:.4f} us/token, {launches[name]} x {name[:150]}"
        for name, total in sorted(spent.items(), key=lambda item: -item[1])[:SHOWN]
    ]


def rows_of(
    name: str,
    shape: Shape,
    clips: int,
    kernels: list[Kernel],
    rates: Rates,
    step_ms: float,
    trained: int,
    device: str,
) -> list[Row]:
    """Return a row for each part of a shape's budget, for all of them, and for the number of kernels."""
    tokens = clips * shape.tokens
    work = Work(
        clips=clips, frames=shape.frames, places=shape.tokens // shape.frames, text_tokens=TEXT_TOKENS
    )
    spent = {part: microseconds / tokens for part, microseconds in times(kernels).items()}
    spent["optimizer"] = 1000 * step_ms / (shape.batch * shape.tokens)
    least = floors(
        CONFIG,
        work,
        rates,
        lean=shape.fast_lean,
        trained=trained,
        step_tokens=shape.batch * shape.tokens,
    )
    whole = sum(spent.values())
    spent[ALL], least[ALL] = whole, sum(least.values())
    rows = []
    for part, value in spent.items():
        if not value:  # an image has no attention over time
            continue
        has_floor = part not in WITHOUT_FLOOR and least[part] > 0
        peer = ("floor, lean blocks" if shape.fast_lean else "floor") if has_floor else "the whole"
        rows.append(
            row(
                f"{name} {part}",
                value,
                "us/token",
                peer=peer,
                peer_value=least[part] if has_floor else whole,
                higher_is_better=False,
                hardware=device,
            )
        )
    others = sum(part_of(kernel.name) == "other" for kernel in kernels)
    rows.append(
        row(
            f"{name} kernels",
            len(kernels),
            "kernels",
            peer="those of no part",
            peer_value=max(1, others),
            higher_is_better=False,
            hardware=device,
        )
    )
    return rows


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="Example: python benchmarks/step_profile.py --shapes 240p_102f",
    )
    arguments.add_argument("--shapes", default=",".join(SHAPES), help=f"of {', '.join(SHAPES)}; all of them")
    arguments.add_argument("--keep", action="store_true", help=f"write benchmarks/results/{RESULT}.json")
    given = arguments.parse_args()
    names = given.shapes.split(",")
    if unknown := [name for name in names if name not in SHAPES]:
        arguments.error(f"{unknown[0]!r} is no shape; there are {', '.join(SHAPES)}")
    if not torch.cuda.is_available():
        sys.exit("step_profile measures kernels on a GPU and finds none; run it where torch sees CUDA.")
    device = torch.cuda.get_device_name()
    rates = measured_rates()
    reached = f"product {rates.product:.0f} TFLOP/s, copy {rates.copy:.2f} TB/s"
    print(f"{device}, torch {torch.__version__}: {reached}", flush=True)
    model = build()
    model.train()
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    step_ms = optimizer_milliseconds(model)
    rows = [
        row(
            "product",
            rates.product,
            "TFLOP/s",
            peer="data sheet",
            peer_value=DENSE_BF16_TFLOPS,
            hardware=device,
        ),
        row("copy", rates.copy, "TB/s", peer="data sheet", peer_value=COPY_TB_PER_S, hardware=device),
    ]
    missed = []
    for name in names:
        shape, start = SHAPES[name], perf_counter()
        clips = shape.fast_micro_batch or shape.micro_batch
        model.zero_grad()
        gc.collect()
        torch.cuda.empty_cache()
        try:
            kernels = profiled(model, shape, clips)
        except torch.OutOfMemoryError as error:
            missed.append(name)
            print(f"{name}: {str(error).splitlines()[0][:200]}", flush=True)
            continue
        rows += rows_of(name, shape, clips, kernels, rates, step_ms, trained, device)
        span = (max(kernel.end for kernel in kernels) - kernels[0].start) / 1000
        print(
            f"{name}: {clips} clips, {span:.1f} ms, {1000 * span / clips / shape.tokens:.2f} us/token, "
            f"{len(kernels)} kernels; {perf_counter() - start:.1f} s",
            *largest_others(kernels, clips * shape.tokens),
            sep="\n",
            flush=True,
        )
        if given.keep:  # after each, so that a run that is cut off leaves what it has
            keep(RESULT, rows)
    if not given.keep:
        print(as_table(rows))
    if missed:
        sys.exit(f"no room on {device} for {', '.join(missed)}; the others are above.")


if __name__ == "__main__":
    main()
