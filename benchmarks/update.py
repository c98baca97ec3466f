"""Update of XL/2 on one GPU beside its micro-batches: norm, AdamW and average, cast.

    python benchmarks/update.py [--keep]
    python benchmarks/update.py --width 144 --depth 2     # a look at the script where there is no GPU

The trainer's own model, masters and layout, with random weights and random gradients that are clipped. The
parts are timed by the host, each until the device is done; `all` is the three of them in a row as a step does
them, which waits for the norm alone. The host's part is the time until the call comes back, and the GPU idles
while it lasts: of `norm` it is not given, as in a step it passes while the GPU still computes. The peer is
what the trainer did before: lists made by walks through the model, foreach kernels (its `norm` scales the
gradients too), torch's fused AdamW. Both begin at the same weights and get the same gradients; how far apart
they end is printed. The goals are the bytes that the parts must move, at 4.3 TB/s.
"""

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rows import as_table, card, cpu, keep, row
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from trainer.distributed import parallelize
from trainer.distributed.mesh import World
from trainer.distributed.spec import ParallelSpec
from trainer.model.stdit import STDiT3, STDiT3Config
from trainer.training.optim import adamw
from trainer.training.optim import ema as optim_ema
from trainer.training.optim.schedule import OptimSpec

BYTES_PER_SECOND = 4.3e12  # of an H200's memory, as a copy reaches it
# of an element: the norm reads a gradient, the update reads five numbers and writes four, the cast 4 to 2
BYTES = {"norm": 4, "update and average": 36, "open": 6}
WARM_UP = 3
SPEC, LR, DECAY, LIMIT = OptimSpec(weight_decay=0.01, eps=1e-15), 1e-4, 0.99, 1.0


def trained(model: STDiT3) -> dict[str, Any]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


@dataclass
class Before:
    """The update as the trainer made it before."""

    model: STDiT3
    layout: Any
    norm_now: float = 0.0
    optimizer: torch.optim.AdamW = field(init=False)
    ema: dict[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        learns = list(trained(self.model).values())
        fused = learns[0].device.type == "cuda" or None
        self.optimizer, self.ema = torch.optim.AdamW(learns, fused=fused), optim_ema.make_ema(self.model)

    @torch.no_grad()
    def norm(self) -> None:
        grads = [parameter.grad for parameter in trained(self.model).values()]
        self.norm_now = float(torch.stack(torch._foreach_norm(grads)).double().square().sum().sqrt())
        if self.norm_now > LIMIT:
            torch._foreach_mul_(grads, LIMIT / self.norm_now)

    def update(self) -> None:
        words = {"betas": SPEC.betas, "eps": SPEC.eps, "weight_decay": SPEC.weight_decay}
        self.optimizer.param_groups[0].update(lr=LR, **words)
        trained(self.model)
        self.optimizer.step()
        for parameter in trained(self.model).values():
            parameter.grad = None
        learns = trained(self.model)
        averages, weights = [], []
        for name, value in itertools.chain(self.model.named_parameters(), self.model.named_buffers()):
            if name in learns:
                averages.append(self.ema[name])
                weights.append(value.detach())
            else:
                self.ema[name].copy_(value.detach())
        torch._foreach_lerp_(averages, weights, 1 - DECAY)

    @torch.no_grad()
    def open(self) -> None:
        self.model.zero_grad(set_to_none=True)
        copied, weights = (list(one.parameters()) for one in (self.layout.compute, self.model))
        torch._foreach_copy_(copied, weights)
        for copy, buffer in zip(self.layout.compute.buffers(), self.model.buffers(), strict=True):
            copy.copy_(buffer)


@dataclass
class Now:
    """The update as the trainer makes it."""

    model: STDiT3
    layout: Any
    norm_now: float = 0.0
    masters: adamw.Masters = field(init=False)

    def __post_init__(self) -> None:
        self.masters = adamw.masters(self.model)

    def norm(self) -> None:
        self.norm_now = adamw.gradient_norm(self.masters)

    def update(self) -> None:
        factor = adamw.clip_factor(self.norm_now, LIMIT)
        adamw.update(self.masters, SPEC, lr=LR, ema_decay=DECAY, clip_factor=factor)

    def open(self) -> None:
        adamw.drop_gradients(self.masters)
        self.layout.begin_step()


def build(config: STDiT3Config, device: torch.device) -> tuple[STDiT3, Any]:
    """Return the model with random weights, laid out, and its layout."""
    with torch.device("meta"):
        model = STDiT3(config)
    model = model.to_empty(device=device)
    generator = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for value in itertools.chain(model.parameters(), model.buffers()):
            value.normal_(0, 0.02, generator=generator)
    world = World(rank=0, size=1, device=device)
    return model, parallelize.parallelize_model(model, ParallelSpec(), world, torch.bfloat16)


def timed(work: Callable[[], object], sync: Callable[[], object]) -> tuple[float, float]:
    """Return milliseconds until the device is done, and until the call came back."""
    sync()
    began = time.perf_counter()
    work()
    back = time.perf_counter()
    sync()
    return 1000 * (time.perf_counter() - began), 1000 * (back - began)


def measure(form: Before | Now, repeats: int, sync: Callable[[], object]) -> dict[str, float]:
    """Return the median milliseconds of each part, of all, and of the host in them."""
    learns = list(trained(form.model).values())
    gradients = [torch.empty_like(parameter) for parameter in learns]
    generator = torch.Generator(learns[0].device).manual_seed(1)
    parts = {"norm": form.norm, "update and average": form.update, "open": form.open}

    def whole() -> None:
        for part in parts.values():
            part()

    times: dict[str, list[float]] = {}
    for number in range(2 * (WARM_UP + repeats)):
        for parameter, gradient in zip(learns, gradients, strict=True):
            parameter.grad = gradient.normal_(0, 1e-3, generator=generator)
        works: dict[str, Callable[[], object]] = {"all": whole} if number % 2 else dict(parts)
        for name, work in works.items():
            until_done, until_back = timed(work, sync)
            if number >= 2 * WARM_UP:
                times.setdefault(name, []).append(until_done)
                if name in ("update and average", "open"):
                    times.setdefault(f"{name}, host", []).append(until_back)
    return {name: statistics.median(values) for name, values in times.items()}


@torch.no_grad()
def apart(now: Now, before: Before, start: dict[str, Tensor]) -> dict[str, float]:
    """Return how far weights and averages are apart, as shares of what the updates have changed."""

    def share(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
        names = list(trained(now.model))
        off = adamw.norm(ours[name].detach() - theirs[name].detach() for name in names)
        return float(off / adamw.norm(theirs[name].detach() - start[name] for name in names))

    weights = share(trained(now.model), trained(before.model))
    return {"weights": weights, "averages": share(now.masters.ema, before.ema)}


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--repeats", type=int, default=12)
    arguments.add_argument("--width", type=int, default=1152)
    arguments.add_argument("--depth", type=int, default=28)
    arguments.add_argument("--keep", action="store_true", help="keep the figures in benchmarks/results")
    given = arguments.parse_args()
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", 0) if gpu else torch.device("cpu")
    config = STDiT3Config(
        hidden_size=given.width, num_heads=given.width // 72, depth=given.depth, freeze_y_embedder=False
    )
    sync = torch.cuda.synchronize if gpu else lambda: None
    before, now = Before(*build(config, device)), Now(*build(config, device))
    start = {name: parameter.detach().clone() for name, parameter in trained(now.model).items()}
    peers, found = (measure(form, given.repeats, sync) for form in (before, now))
    for name, share in apart(now, before, start).items():
        print(f"{name}: {share:.2e} of what {2 * (WARM_UP + given.repeats)} updates changed")
    elements = sum(tensor.numel() for tensor in start.values())
    floors = {name: 1000 * elements * size / BYTES_PER_SECOND for name, size in BYTES.items()}
    floors["all"] = sum(floors.values())
    rows = [
        row(
            f"update of {elements / 1e6:.0f} M parameters: {name}",
            value,
            "ms",
            peer="lists by walks, foreach, torch's fused AdamW",
            peer_value=peers[name],
            goal=f"bytes: {floors[name]:.2f} ms" if gpu and name in floors else "",
            higher_is_better=False,
            hardware=torch.cuda.get_device_name() if gpu else cpu(),
        )
        for name, value in found.items()
    ]
    if given.keep:
        keep(f"update_{card(torch.cuda.get_device_name()) if gpu else 'cpu'}", rows)
    else:
        print(as_table(rows))


if __name__ == "__main__":
    main()
