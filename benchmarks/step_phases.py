"""Update phases of XL/2 beside its micro-batches, on one GPU or several of a host.

    python benchmarks/step_phases.py [--sharding none] [--keep]
    torchrun --nproc-per-node 2 benchmarks/step_phases.py --sharding full [--keep]

`open` gathers the weights, `close` sums the gradients over the ranks; then their norm is taken, AdamW updates
and the average follows. Each phase is timed by the host until the device is done. A micro-batch holds two
clips of 240p x 102 frames, random, through the kernels; medians of the timed updates. The peer is the time of
the micro-batches: with several ranks all else should stay below 3 % of it.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rows import as_table, card, cpu, keep, row

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from trainer.distributed import mesh, parallelize
from trainer.distributed.spec import ParallelSpec
from trainer.model.stdit import STDiT3, STDiT3Config
from trainer.training.optim import adamw, schedule

CLIPS, FRAMES, HEIGHT, WIDTH = 2, 30, 30, 53  # a micro-batch of latents: 24,300 tokens
WARM_UP = 3


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--sharding", choices=("none", "full"), default="none")
    arguments.add_argument("--micro-batches", type=int, default=2, help="of each rank in an update")
    arguments.add_argument("--updates", type=int, default=8)
    arguments.add_argument("--depth", type=int, default=28)
    arguments.add_argument("--keep", action="store_true", help="keep the figures in benchmarks/results")
    given = arguments.parse_args()
    world = mesh.init_process_groups()
    gpu = world.device.type == "cuda"
    model = STDiT3(STDiT3Config(freeze_y_embedder=True, depth=given.depth), 0)
    spec = ParallelSpec(sharding=given.sharding)
    layout = parallelize.parallelize_model(model, spec, world, torch.bfloat16, fast=gpu)
    masters = adamw.masters(model)
    scale = 1 if gpu else 8  # a look at the script where there is no GPU
    size = (CLIPS, 4, FRAMES // scale, HEIGHT // scale, WIDTH // scale)
    x = torch.randn(size, device=world.device)
    y = torch.randn(CLIPS, 1, 300, 4096, device=world.device, dtype=torch.bfloat16)
    words = {"fps": 24.0, "height": 240.0, "width": 424.0}
    reported = {name: torch.full((CLIPS,), value, device=world.device) for name, value in words.items()}
    times: dict[str, list[float]] = {}

    def micro_batches() -> None:
        for _ in range(given.micro_batches):
            timestep = torch.full((CLIPS,), 500.0, device=world.device)
            out = layout.compute(x, timestep, y, **reported)
            (out.square().mean() * 1e-3).backward()

    def sync() -> None:
        if gpu:
            torch.cuda.synchronize()

    phases: dict[str, Callable[[], object]] = {
        "open": layout.begin_step,
        "micro-batches": micro_batches,
        "close": layout.reduce_gradients,
        "norm": lambda: adamw.gradient_norm(masters),
        "update": lambda: adamw.update(masters, schedule.OptimSpec(), lr=1e-6, ema_decay=0.99),
    }
    for number in range(WARM_UP + given.updates):
        for name, phase in phases.items():
            began = time.perf_counter()
            phase()
            sync()
            if number >= WARM_UP:
                times.setdefault(name, []).append(1000 * (time.perf_counter() - began))
    if world.is_first:
        middle = {name: statistics.median(values) for name, values in times.items()}
        hardware = f"{world.size} x {torch.cuda.get_device_name()}" if gpu else cpu()
        peer, peer_value = f"{given.micro_batches} micro-batches", middle.pop("micro-batches")
        middle["all beside micro-batches"] = sum(middle.values())
        rows = [
            row(f"{name}, sharding {given.sharding}", value, "ms", peer=peer,
                peer_value=peer_value, goal="<= 3 %" if name.startswith("all") else "",
                higher_is_better=False, hardware=hardware)
            for name, value in middle.items()
        ]  # fmt: skip
        if given.keep:
            kind = card(torch.cuda.get_device_name()) if gpu else "cpu"
            keep(f"step_phases_{given.sharding}_{world.size}x{kind}", rows)
        else:
            print(as_table(rows))
    mesh.destroy_process_groups(world)


if __name__ == "__main__":
    main()
