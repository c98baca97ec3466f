"""The projection's cost of encoding: FLOPs by torch's counter, at rates that were kept up."""

import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(
    find_spec("diffusers") is None, reason="the frame VAE is diffusers'"
)  # asked without the import, which takes each test process three seconds
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def cost() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import encoder_cost  # type: ignore[import-not-found]

        yield encoder_cost
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


def _kept() -> list[dict[str, Any]]:
    kept: list[dict[str, Any]] = json.loads((ROOT / "benchmarks/results/encoders_h200.json").read_text())
    return kept


def test_flops_are_those_that_the_gpu_run_counted(cost: ModuleType) -> None:
    by_metric = {row["metric"]: row["value"] for row in _kept()}
    found = cost.clip_flops(51, 144, 256) / (51 * 144 * 256) / 1e6
    assert found == pytest.approx(
        by_metric["VAE v1.2 encode, 51 x 144 x 256: FLOPs, torch's counter"], rel=1e-3
    )
    # A chunk of one frame is filled up to four.
    image = cost.clip_flops(1, 144, 256)
    assert image > 1.2 * cost.clip_flops(51, 144, 256) / 51


def test_rates_are_the_measured_ones_and_lie_between_them_elsewhere(cost: ModuleType) -> None:
    rates = cost.Rates(_kept())
    sizes = [pixels for pixels, _ in rates.points]
    assert sizes == sorted(height * width for height, width in
                           ((144, 256), (240, 424), (360, 640), (480, 848), (720, 1280)))  # fmt: skip
    assert [rates.flops_per_second(size) for size in sizes] == [rate for _, rate in rates.points]
    low, high = rates.points[0][1], rates.points[1][1]
    assert low < rates.flops_per_second(256 * 256) < high
    assert rates.flops_per_second(64 * 64) == low
    assert rates.flops_per_second(1080 * 1920) == rates.points[-1][1]
    assert rates.clip_seconds(17, 144, 256) == pytest.approx(
        cost.clip_flops(17, 144, 256) / low + rates.caption_seconds
    )
