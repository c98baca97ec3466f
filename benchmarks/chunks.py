"""Published micro-batches on one GPU: in chunks, beside recomputed blocks.

    python benchmarks/chunks.py [--precision float8] [--shapes 240p_102f,360p_51f] [--keep]

A micro-batch of the published run does not fit a GPU with all activations kept. `parallel.recompute_blocks:
fit` puts its clips through in chunks (`trainer.distributed.memory.least_plan`); before, it recomputed blocks
of the whole micro-batch. Each shape's forward and backward pass runs both ways in turn, on the same random
weights, latents and text features, and the gradients' distance is printed. Where the host has handed over the
last kernel no sooner than the GPU has run it, the GPU waits for the host. The memory's limit is that of a
run whose state is cut over 8 ranks.
"""

import argparse
import statistics
import sys
from pathlib import Path
from time import perf_counter

import torch
from rows import as_table, card, keep, row
from step_shapes import SHAPES, TEXT_TOKENS
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from train_step import CONFIG, build, inputs

from trainer.distributed import environment, memory
from trainer.distributed.activation_checkpointing import USED_SHARE, Recompute
from trainer.distributed.memory import Plan
from trainer.distributed.step_time import Work
from trainer.model.kernels.apply import apply_fused_blocks

STATE = {"sharding": "hybrid", "ranks": 8, "item_bytes": 2}
TIMED, WARM = 3, 1
GIB = 2**30


def whole_plan(work: Work, form: memory.Form, limit_bytes: float) -> Plan:
    """Return the first plan of one chunk with which `work` fits."""
    return next(
        plan
        for plan in memory.plans(CONFIG, form)
        if memory.peak_bytes(CONFIG, work, form, plan) <= limit_bytes
    )


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--shapes", default="144p_51f,240p_102f,360p_51f,480p_51f", help=", ".join(SHAPES))
    arguments.add_argument("--precision", choices=("bfloat16", "float8"), default="float8")
    arguments.add_argument("--keep", action="store_true", help="write benchmarks/results")
    given = arguments.parse_args()
    environment.apply({"PYTORCH_ALLOC_CONF": "expandable_segments:True"})  # as a recipe with fit has it
    if not torch.cuda.is_available():
        sys.exit("chunks measures micro-batches on a GPU and finds none; run it where torch sees CUDA.")
    hardware = torch.cuda.get_device_name()
    form = memory.form_of("fast", given.precision)
    model = build()
    learns = [weight for weight in model.parameters() if weight.requires_grad]
    trained = sum(weight.numel() for weight in learns)
    frozen = sum(weight.numel() for weight in model.parameters()) - trained
    total = torch.cuda.get_device_properties(0).total_memory
    limit = USED_SHARE * total - memory.state_bytes(trained, frozen, **STATE)
    apply_fused_blocks(model, float8=form.float8)
    recompute = Recompute(model, lambda work, beside_bytes: memory.KEEP_ALL)
    rows = []
    for name in given.shapes.split(","):
        shape = SHAPES[name]
        work = Work(
            clips=shape.batch,
            frames=shape.frames,
            places=shape.tokens // shape.frames,
            text_tokens=TEXT_TOKENS,
        )
        chunked = memory.least_plan(CONFIG, work, form, limit)
        if chunked is None:
            sys.exit(f"{name}: not one clip fits into {limit / GIB:.1f} GiB.")
        ways = {"in chunks": chunked, "recomputed": whole_plan(work, form, limit)}
        batch = inputs(shape, shape.batch)
        target = batch.pop("target")

        def once(
            plan: Plan, batch: dict[str, Tensor] = batch, target: Tensor = target
        ) -> tuple[float, float]:
            """Return the seconds of one pass, and those until the host has handed over all of it."""
            recompute.plan = plan
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            model.zero_grad()
            torch.cuda.synchronize()
            started = perf_counter()
            begin.record()
            for chunk in plan.slices(len(target)):
                out = model(**{key: value[chunk] for key, value in batch.items()})[:, :4]
                ((out - target[chunk]).square().sum() / target.numel()).backward()
            end.record()
            host_seconds = perf_counter() - started
            end.synchronize()
            return float(begin.elapsed_time(end)) / 1000, host_seconds

        times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        gradients: dict[str, list[Tensor]] = {}
        for way, plan in ways.items():
            for _ in range(WARM):
                once(plan)
            gradients[way] = [weight.grad.cpu() for weight in learns if weight.grad is not None]
        peaks = {}
        for way, plan in ways.items():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            once(plan)
            peaks[way] = (torch.cuda.max_memory_allocated() - before) / GIB
        for _ in range(TIMED):
            for way, plan in ways.items():
                times[way].append(once(plan))
        seconds = {way: statistics.median(all_of for all_of, _ in found) for way, found in times.items()}
        host_seconds = statistics.median(host for _, host in times["in chunks"])
        pairs = list(zip(gradients["in chunks"], gradients["recomputed"], strict=True))
        apart = torch.stack([(one - other).float().norm() for one, other in pairs]).norm()
        size = torch.stack([other.float().norm() for _, other in pairs]).norm()
        found = [
            ("tokens/s", shape.batch * shape.tokens / seconds["in chunks"], "tokens/s",
             shape.batch * shape.tokens / seconds["recomputed"], True),
            ("peak beside the weights", peaks["in chunks"], "GiB", peaks["recomputed"], False),
        ]  # fmt: skip
        host = row(
            f"{name} until the host has handed over all kernels, {given.precision}", host_seconds, "s",
            peer="until the GPU has run them", peer_value=seconds["in chunks"], goal="sooner",
            higher_is_better=False, hardware=hardware,
        )  # fmt: skip
        said = f"{ways['in chunks']}"
        rows += [
            row(f"{name} {metric}, {given.precision}, {said}", value, unit, peer=f"{ways['recomputed']}",
                peer_value=other, higher_is_better=is_rate, hardware=hardware)
            for metric, value, unit, other, is_rate in found
        ]  # fmt: skip
        rows.append(host)
        rows.append(
            row(f"{name} gradients apart, {given.precision}", float(apart / size), "of their norm",
                peer="bfloat16's rounding of one number", peer_value=2**-9, higher_is_better=False,
                hardware=hardware)
        )  # fmt: skip
        print(as_table(rows[-4:]), flush=True)
        if given.keep:
            keep(f"chunks_{card(hardware)}{'_float8' * form.float8}", rows)


if __name__ == "__main__":
    main()
