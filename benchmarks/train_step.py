"""Training step of STDiT3-XL/2 on one GPU: tokens a second, and time by phase.

    python benchmarks/train_step.py [--shapes 144p_51f,240p_102f] [--forms plain,compiled,fast] [--steps 2]
    python benchmarks/train_step.py --forms fast,packed,float8,float8_packed --steps 2 --merge

A step is forward and backward over the published batch of a bucket (in micro-batches without recompute),
gradient clipping, AdamW on float32 masters, EMA and the cast back to bfloat16. Weights, latents and text
features are random (300 real text tokens); medians of the timed steps. Forms: `recomputed` (eager, every
block checkpointed, one micro-batch: what the published run does), `plain` (eager), `compiled` (each kind of
block through torch.compile), `fast` (the same through the kernels of trainer.model.kernels), `float8` (that,
with `precision: float8`), `padded` and `packed` (the fast form with captions as a run reads them, padded to
300 or by their true lengths), and `float8_packed`. The last four are never taken for the best.

The goals are four times the published model's step on one H200. Beside plain blocks of the same run, each
rate is kept beside the original's (`Shape.original`), which another run measured. With `--merge` the rows go
among those that are kept, and a form stands beside the kept plain blocks where this run has none.
"""

import argparse
import gc
import itertools
import json
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from power import Meter
from rows import RESULTS, Row, as_table, row, write
from step_rows import CAPTIONED, merged, rows_of
from step_shapes import READ_TOKENS, SHAPES, TEXT_TOKENS, Shape, caption_lengths, in_parts
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from trainer.model.flops import forward_flops
from trainer.model.kernels import adamw
from trainer.model.kernels.apply import apply_fused_blocks
from trainer.model.stdit import STDiT3, STDiT3Config

CONFIG = STDiT3Config(freeze_y_embedder=True)
DENSE_BF16_TFLOPS = 989.0
# Timed steps at most, and steps before.
FEWER = {"plain": (3, 1), "recomputed": (3, 1), "float8": (5, 1), "float8_packed": (5, 1)}
KERNELS = ("fast", "float8", *CAPTIONED)  # the forms that go through trainer.model.kernels
SUSTAINED = 1200  # products, some 1.5 ms each


class Masters:
    """float32 copies, moments and EMA of the trained weights, and the trainer's update of all of them."""

    def __init__(self, model: STDiT3) -> None:
        self.weights = [weight for weight in model.parameters() if weight.requires_grad]
        self.masters = [weight.detach().float() for weight in self.weights]
        ema = [master.clone() for master in self.masters]
        firsts, seconds = ([torch.zeros_like(master) for master in self.masters] for _ in range(2))
        self.table, self.updates = adamw.table(self.masters, firsts, seconds, ema), 0

    @torch.no_grad()
    def step(self) -> None:
        """Clip to norm 1, update, average, cast back; as in the trainer the host waits for the norm."""
        gradients = [weight.grad.float() for weight in self.weights if weight.grad is not None]
        norm = float(torch.stack(torch._foreach_norm(gradients)).norm())
        self.updates += 1
        words = {"lr": 1e-4, "betas": (0.9, 0.999), "eps": 1e-15, "weight_decay": 0.01, "ema_decay": 0.99}
        adamw.update(self.table, gradients, count=self.updates, scale=min(1.0, 1.0 / norm), **words)
        for weight in self.weights:
            weight.grad = None
        torch._foreach_copy_(self.weights, self.masters)


def build() -> STDiT3:
    """Return the model in bfloat16 on the GPU, every weight random (none zero, as zeros run faster)."""
    with torch.device("meta"):
        model = STDiT3(CONFIG)
    model = model.to_empty(device="cuda").bfloat16()
    generator = torch.Generator("cuda").manual_seed(0)
    with torch.no_grad():
        for name, weight in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith("_norm.weight"):
                weight.fill_(1.0)
            else:
                weight.normal_(0, 0.02, generator=generator)
    return model


def blocks_of(model: STDiT3) -> list[nn.Module]:
    """Return the 56 blocks in the order of the forward pass."""
    return [block for pair in zip(model.spatial_blocks, model.temporal_blocks, strict=True) for block in pair]


def recompute(model: STDiT3, count: int) -> None:
    """Checkpoint `count` blocks, spread evenly, around whatever runs them (compiled or not)."""
    blocks = blocks_of(model)
    for number in range(count):
        block = blocks[number * len(blocks) // count]
        inner = block._compiled_call_impl or block.forward
        block._compiled_call_impl = partial(checkpoint, inner, use_reentrant=False)


def compile_blocks(model: STDiT3) -> None:
    """Compile the two kinds of block, each once for all its layers."""
    torch._dynamo.config.cache_size_limit = 64
    for block in blocks_of(model):
        block.compile(dynamic=False, fullgraph=True)


def inputs(shape: Shape, count: int) -> dict[str, Tensor]:
    def normal(*size: int) -> Tensor:
        return torch.randn(*size, device="cuda", dtype=torch.bfloat16)

    size = (count, 4, shape.frames, shape.height, shape.width)
    return {
        "x": normal(*size),
        "target": normal(*size).float(),
        "timestep": torch.rand(count, device="cuda") * 1000,
        "y": normal(count, 1, TEXT_TOKENS, CONFIG.caption_channels),
        "fps": torch.full((count,), 24.0, device="cuda"),
        "height": torch.full((count,), shape.height * 8.0, device="cuda"),
        "width": torch.full((count,), shape.width * 8.0, device="cuda"),
    }


def with_captions(batch: dict[str, Tensor], lengths: list[int], packed: bool) -> dict[str, Any]:
    """Return the micro-batch with captions of `lengths`: given (`packed`), or as a mask alone."""
    device = batch["x"].device
    mask = torch.arange(TEXT_TOKENS, device=device) < torch.tensor(lengths, device=device)[:, None]
    return {**batch, "mask": mask, **({"text_lengths": lengths} if packed else {})}


def timed_step(model: STDiT3, masters: Masters, batches: list[dict[str, Any]]) -> tuple[float, float, float]:
    """Return milliseconds of forward, backward and optimizer of one step."""
    marks: list[torch.cuda.Event] = []

    def mark() -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        marks.append(event)

    mark()
    total = sum(len(batch["x"]) for batch in batches)
    for batch in batches:
        given = {name: tensor for name, tensor in batch.items() if name != "target"}
        out = model(**given)[:, :4]
        loss = F.mse_loss(out, batch["target"]) * (len(batch["x"]) / total)
        mark()
        loss.backward()
        mark()
    masters.step()
    mark()
    torch.cuda.synchronize()
    times = [first.elapsed_time(second) for first, second in itertools.pairwise(marks)]
    return sum(times[0:-1:2]), sum(times[1:-1:2]), times[-1]


def ceiling_tflops(repeats: int = 10, warm_up: int = 3) -> float:
    """Return the rate of an 8192^3 bfloat16 product on random data in this process, a median."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    marks = []
    for _ in range(warm_up + repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        torch.mm(a, b)
        end.record()
        marks.append((start, end))
    torch.cuda.synchronize()
    times = [start.elapsed_time(end) for start, end in marks]
    return 2 * 8192**3 / statistics.median(times[warm_up:]) / 1e9


def sustained() -> tuple[float, Meter]:
    """Return the rate of the product after seconds of it, as in a long training run, and clock and power."""
    with Meter() as meter:
        rate = ceiling_tflops(SUSTAINED // 2, warm_up=SUSTAINED // 2)
    return rate, meter


def prepare(model: STDiT3, shape: Shape, form: str) -> None:
    """Put `model` into one of the forms."""
    if form == "compiled":
        compile_blocks(model)
    count = len(blocks_of(model)) if form == "recomputed" else shape.recomputed_blocks
    if form in KERNELS:
        apply_fused_blocks(model, float8=form.startswith("float8"))
        if shape.fast_lean:
            count = 0
            for block in blocks_of(model):
                block.forward = partial(block.forward, lean=True)
    if count:
        recompute(model, count)


def measure(shape: Shape, form: str, steps: int, warm_up: int) -> dict[str, float]:
    """Return the figures of one form at one shape, and the seconds of its warm-up and of all its steps."""
    began = time.perf_counter()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch._dynamo.reset()
    model = build()
    prepare(model, shape, form)
    model.train()
    masters = Masters(model)
    micro = shape.batch if form == "recomputed" else shape.micro_batch
    if form in KERNELS and shape.fast_micro_batch:
        micro = shape.fast_micro_batch
    batches = [inputs(shape, count) for count in in_parts(shape.batch, micro)]
    text = TEXT_TOKENS
    if form in CAPTIONED:
        lengths = iter(caption_lengths(shape.batch))
        of_batches = [list(itertools.islice(lengths, len(batch["x"]))) for batch in batches]
        batches = [
            with_captions(batch, own, CAPTIONED[form]) for batch, own in zip(batches, of_batches, strict=True)
        ]
        text = READ_TOKENS
    for _ in range(warm_up):
        timed_step(model, masters, batches)
    warm = time.perf_counter()
    with Meter() as meter:
        runs = [timed_step(model, masters, batches) for _ in range(steps)]
    forward, backward, optimizer = (statistics.median(part) for part in zip(*runs, strict=True))
    seconds = statistics.median(sum(run) for run in runs) / 1000
    work = 3 * shape.batch * forward_flops(CONFIG, shape.frames, shape.height, shape.width, text)
    return {
        "tokens_per_s": shape.batch * shape.tokens / seconds,
        "forward_ms": forward,
        "backward_ms": backward,
        "optimizer_ms": optimizer,
        "tflops": work / seconds / 1e12,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        "sm_mhz": meter.sm_mhz,
        "watts": meter.watts,
        "warm_up_seconds": warm - began,
        "timed_seconds": time.perf_counter() - warm,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--shapes", default=",".join(SHAPES))
    arguments.add_argument("--forms", default="plain,compiled,fast")
    arguments.add_argument("--steps", type=int, default=10, help="timed steps of fast and compiled")
    arguments.add_argument("--out", default="train_step_h200")
    arguments.add_argument(
        "--merge", action="store_true", help="replace only what is measured in the kept file"
    )
    given = arguments.parse_args()
    if not torch.cuda.is_available():
        sys.exit("train_step times steps on a GPU and finds none; run it where torch sees CUDA.")
    hardware = torch.cuda.get_device_name()
    path = RESULTS / f"{given.out}.json"
    kept: list[Row] = json.loads(path.read_text()) if given.merge and path.exists() else []
    ceiling = ceiling_tflops()
    kept_up, meter = sustained()
    print(
        f"{hardware}, torch {torch.__version__}: 8192^3 bf16 product {ceiling:.0f} TFLOP/s; after seconds "
        f"of it {kept_up:.0f}, at {meter.sm_mhz:.0f} of {meter.most_mhz:.0f} MHz and {meter.watts:.0f} of "
        f"{meter.most_watts:.0f} W",
        flush=True,
    )
    of_product = [
        ("product_8192_kept_up", kept_up, "TFLOP/s", "its first ten", ceiling),
        ("product_8192_sm_mhz", meter.sm_mhz, "MHz", "most", meter.most_mhz),
        ("product_8192_watts", meter.watts, "W", "limit", meter.most_watts),
    ]
    rows = [
        row(metric, value, unit, peer=peer, peer_value=other, hardware=hardware)
        for metric, value, unit, peer, other in of_product
    ]
    for name in given.shapes.split(","):
        shape = SHAPES[name]
        found: dict[str, dict[str, float]] = {}
        for form in given.forms.split(","):
            most, warm_up = FEWER.get(form, (given.steps, 2))
            try:
                found[form] = measure(shape, form, steps=min(most, given.steps), warm_up=warm_up)
            except (RuntimeError, torch.OutOfMemoryError) as error:
                print(f"{name} {form}: {str(error).splitlines()[0][:200]}", flush=True)
                continue
            figures = found[form]
            of_ceiling, of_dense = figures["tflops"] / kept_up, figures["tflops"] / DENSE_BF16_TFLOPS
            print(
                f"{name:10} {form:15} {figures['tokens_per_s']:8,.0f} tokens/s  "
                f"fwd {figures['forward_ms']:6.0f} bwd {figures['backward_ms']:6.0f} "
                f"opt {figures['optimizer_ms']:4.0f} ms  {figures['tflops']:5.0f} TFLOP/s "
                f"({of_ceiling:.1%} of the product kept up, {of_dense:.1%} of 989)  "
                f"{figures['peak_gib']:4.0f} GiB, {figures['sm_mhz']:.0f} MHz, {figures['watts']:.0f} W; "
                f"{figures['warm_up_seconds']:.1f} s before, {figures['timed_seconds']:.1f} s timed",
                flush=True,
            )
        rows += rows_of(name, shape, found, hardware, kept)
        write(given.out, merged(kept, rows))
    print(as_table(rows))


if __name__ == "__main__":
    main()
