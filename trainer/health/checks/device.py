"""Device check: correctness and rate of matmuls, memory rate, free memory.

The matmuls are those of the model's layers. Their result is known in advance: the factors are multiples of a
quarter with three significant bits, so that every sum is exact in float32, TF32 or bfloat16's float32 sums,
in any order; 64 distinct rows and columns, multiplied on the CPU in float64 by another library, are spread
over the whole matrix. So a single wrong bit of any element is detected.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trainer.health.checks.check import Check, Verdict, measured
from trainer.health.checks.spec import MIN_FREE_MEMORY
from trainer.model.stdit import STDiT3Config

DISTINCT = 64
SEED = 15  # of the factors: the same on every rank
TERA, GIGA = 1e12, 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is computed and moved: the short form costs a start little, the full one warms a GPU up."""

    rows: int
    work: float
    """floating-point operations of one product, at most; rows give way"""
    seconds: float
    copy_bytes: int
    all_reduce_bytes: int
    exchange_bytes: int
    write_bytes: int
    repeats: int


EFFORTS: dict[tuple[str, bool], Effort] = {
    ("cpu", False): Effort(
        rows=2048, work=2e7, seconds=0.005, copy_bytes=4 << 20, all_reduce_bytes=1 << 18,
        exchange_bytes=1 << 18, write_bytes=1 << 16, repeats=2,
    ),
    ("cpu", True): Effort(
        rows=4096, work=5e8, seconds=0.3, copy_bytes=64 << 20, all_reduce_bytes=8 << 20,
        exchange_bytes=4 << 20, write_bytes=64 << 20, repeats=3,
    ),
    ("cuda", False): Effort(
        rows=8192, work=1e13, seconds=0.2, copy_bytes=1 << 30, all_reduce_bytes=64 << 20,
        exchange_bytes=64 << 20, write_bytes=16 << 20, repeats=5,
    ),
    ("cuda", True): Effort(
        rows=16384, work=1e13, seconds=3.0, copy_bytes=4 << 30, all_reduce_bytes=512 << 20,
        exchange_bytes=256 << 20, write_bytes=1 << 30, repeats=10,
    ),
}  # fmt: skip
"""(kind of device, whether in full)"""


def uuid(place: torch.device) -> str:
    """Return the driver's name of a GPU, as nvidia-smi has it; "" of another device."""
    return "" if place.type == "cpu" else f"GPU-{torch.cuda.get_device_properties(place).uuid}"


def shapes(config: STDiT3Config) -> list[tuple[int, int]]:
    """Return (inner, columns) of the block's large products: q|k|v, and both of the MLP."""
    width, hidden = config.hidden_size, int(config.hidden_size * config.mlp_ratio)
    return [(width, 3 * width), (width, hidden), (hidden, width)]


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """Two factors on the device, and their product, which no device of this run has computed."""

    left: Tensor
    right: Tensor
    product: Tensor


def known(rows: int, inner: int, columns: int, device: torch.device, dtype: torch.dtype) -> DeviceKind:
    """Return factors [rows, inner] and [inner, columns] with their exact product, rounded once to `dtype`."""
    random = np.random.default_rng([SEED, rows, inner, columns])
    quarters = np.array([0.0, 0.0, 1.0, 1.25, 1.5, 1.75, -1.0, -1.25, -1.5, -1.75])
    left = random.choice(quarters, (DISTINCT, inner))
    right = random.choice(quarters, (inner, DISTINCT))
    exact = left @ right  # float64: every sum of these is exact
    row = torch.from_numpy(random.integers(0, DISTINCT, rows)).to(device)
    column = torch.from_numpy(random.integers(0, DISTINCT, columns)).to(device)

    def put(values: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]") -> Tensor:
        return torch.from_numpy(values).to(dtype).to(device)

    return DeviceKind(put(left)[row], put(right)[:, column], put(exact)[row][:, column])


def wait_for_device(device: torch.device) -> None:
    """Return when the device has finished all work that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _timed(work: Callable[[], object], seconds: float, device: torch.device) -> float:
    """Return the mean seconds of one `work`, over as many as `seconds` hold, at least 3."""
    work()
    wait_for_device(device)
    began = time.perf_counter()
    work()
    wait_for_device(device)
    once = max(time.perf_counter() - began, 1e-7)
    count = max(3, int(seconds / once))
    began = time.perf_counter()
    for _ in range(count):
        work()
    wait_for_device(device)
    return (time.perf_counter() - began) / count


def product(config: STDiT3Config, device: torch.device, dtype: torch.dtype, effort: Effort) -> list[Check]:
    """Check the model's products against what they must be, before and after a while, and their rate."""
    dtype = dtype if device.type == "cuda" else torch.float32  # a CPU need not have bfloat16's sums
    work, seconds, wrong, elements = 0.0, 0.0, 0, 0
    for inner, columns in shapes(config):
        rows = max(DISTINCT, min(effort.rows, int(effort.work / (2 * inner * columns))))
        given = known(rows, inner, columns, device, dtype)

        def multiply(given: DeviceKind = given) -> Tensor:
            return torch.matmul(given.left, given.right)

        wrong += int((multiply() != given.product).sum())
        seconds += _timed(multiply, effort.seconds / 3, device)
        wrong += int((multiply() != given.product).sum())
        work += 2 * rows * inner * columns
        elements += 2 * given.product.numel()
    if wrong:
        return [
            Check(
                name="product",
                verdict="bad",
                value=f"{wrong:,} of {elements:,} elements are wrong",
                limit="0 wrong",
                advice="this device computes wrongly: take its node out and have it looked at",
            )
        ]
    exact = Check(name="product", verdict="ok", value=f"all of {elements:,} elements are right")
    return [exact, measured("product rate", work / seconds / TERA, "TFLOP/s")]


def copy(device: torch.device, effort: Effort) -> list[Check]:
    """Check how fast the device's memory is read and written, and that a copy is what it is a copy of."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 1 << 62
    count = min(effort.copy_bytes, free // 8) // 4
    source = torch.arange(count, dtype=torch.int32, device=device)
    target = torch.empty_like(source)
    seconds = _timed(lambda: target.copy_(source), effort.seconds / 3, device)
    if not torch.equal(target, source):
        advice = "this device's memory fails: take its node out"
        return [Check(name="copy", verdict="bad", value="a copy differs from its source", advice=advice)]
    rate = 2 * 4 * count / seconds / GIGA
    return [measured("copy rate", rate, "GB/s")]


def memory(device: torch.device, forecast_bytes: int | None, uncounted: str = "") -> list[Check]:
    """Check that the device's memory is free, and enough for the prediction of the recipe's need.

    `uncounted`: text on what the prediction leaves out. A shared GPU only gets a warning where the rest of
    its memory is enough.
    """
    if device.type != "cuda":
        return _host_memory(forecast_bytes, uncounted)
    free, total = torch.cuda.mem_get_info(device)
    share = free / total
    shared: Verdict = "warn" if forecast_bytes is not None and forecast_bytes <= free else "bad"
    found = Check(
        name="free memory",
        verdict=shared if share < MIN_FREE_MEMORY else "ok",
        value=f"{free / GIGA:.1f} of {total / GIGA:.1f} GB",
        limit=f"at least {100 * MIN_FREE_MEMORY:g} % free",
        advice="" if share >= MIN_FREE_MEMORY else "another process holds the rest: see nvidia-smi",
        figure=free / GIGA,
        unit="GB",
    )
    return [found, *_enough(free, forecast_bytes, uncounted)]


def _host_memory(forecast_bytes: int | None, uncounted: str) -> list[Check]:
    """On the CPU the memory is everybody's: it is shown, and compared with the forecast."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            facts = dict(line.split(":", 1) for line in file)
        free = int(facts["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):
        return [Check(name="free memory", verdict="ok", value="this system does not say")]
    found = Check(
        name="free memory",
        verdict="ok",
        value=f"{free / GIGA:.1f} GB",
        figure=free / GIGA,
        unit="GB",
    )
    return [found, *_enough(free, forecast_bytes, uncounted)]


def _enough(free: int, forecast_bytes: int | None, uncounted: str) -> list[Check]:
    if forecast_bytes is None or (forecast_bytes <= free and not uncounted):
        return []
    without = f", without {uncounted}" if uncounted else ""
    fits = forecast_bytes <= free
    return [
        Check(
            name="memory forecast",
            verdict="ok" if fits else "warn",
            value=f"{forecast_bytes / GIGA:.3g} GB needed by the forecast{without}",
            limit=f"{free / GIGA:.3g} GB free",
            advice=""
            if fits
            else "smaller micro-batches, parallel.sharding=full or parallel.recompute_blocks need less",
        )
    ]
