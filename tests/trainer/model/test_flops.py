"""The FLOPs of a step are those that torch counts on the real shapes, and MFU needs a peak that is known."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from trainer.model.flops import PEAK_FLOPS, flops_per_step, rates
from trainer.model.stdit import STDiT3, STDiT3Config

TINY = STDiT3Config(
    hidden_size=32, depth=2, num_heads=2, in_channels=4, caption_channels=16, model_max_length=6
)


def test_a_step_costs_three_times_the_forward_pass_of_every_clip() -> None:
    model = STDiT3(TINY).eval()
    shapes, texts = [(3, 4, 6), (1, 4, 4), (3, 4, 6)], [6, 2, 4]
    total = 0
    for (frames, rows, columns), tokens in zip(shapes, texts, strict=True):
        one = torch.ones(1)
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
            model(
                torch.zeros(1, 4, frames, rows, columns),
                one,
                torch.zeros(1, 1, tokens, 16),
                fps=one,
                height=8 * rows * one,
                width=8 * columns * one,
            )
        total += counter.get_total_flops()

    assert flops_per_step(TINY, shapes, texts) == 3 * total


def test_the_order_and_number_of_clips_is_all_that_a_step_adds() -> None:
    one, other = (3, 4, 6), (1, 4, 4)

    assert flops_per_step(TINY, [one, other], [5, 3]) == flops_per_step(TINY, [other, one], [3, 5])
    assert flops_per_step(TINY, [one] * 7, [5] * 7) == 7 * flops_per_step(TINY, [one], [5])


def test_mfu_is_said_for_a_device_whose_peak_is_known_and_only_then() -> None:
    work = int(PEAK_FLOPS["NVIDIA H200"])

    assert rates(work, 4.0, "NVIDIA H200", 2) == pytest.approx({"tflops_per_device": 989 / 8, "mfu": 0.125})
    assert rates(work, 4.0, "cpu", 1) == pytest.approx({"tflops_per_device": 989 / 4})
