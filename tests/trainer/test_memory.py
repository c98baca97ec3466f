"""The memory model says what autograd keeps, to the byte, and what the GPU had at its peak, to 10 %."""

import itertools
from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor

from trainer import memory
from trainer.cost import Work
from trainer.memory import Form
from trainer.stdit import STDiT3, STDiT3Config

WIDTH, CAPTION = 40, 24  # one head of 40: the kernels take none below 16
SMALL = STDiT3Config(
    hidden_size=WIDTH,
    num_heads=1,
    depth=1,
    caption_channels=CAPTION,
    model_max_length=8,
    freeze_y_embedder=True,
)
XL_2 = STDiT3Config(freeze_y_embedder=True)
TRAINED, FROZEN = 1_201_595_936, 6_048_000
GIB = 2**30


def _saved_bytes(run: Callable[[], Tensor], weights: Iterable[Tensor]) -> int:
    """Return the bytes of all storages that autograd keeps of `run`, but for the weights."""
    found: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = run()  # kept until all are counted, or a freed place would be counted once for two
    for weight in weights:
        found.pop(weight.untyped_storage().data_ptr(), None)
    del out
    return sum(found.values())


def _model_bytes(form: Form, *, frames: int, rows: int, text_tokens: int) -> int:
    """Return what the small model keeps of one clip of `frames` frames of `rows` x 2 tokens."""
    model = STDiT3(SMALL).to(torch.float32 if form.item_bytes == 4 else torch.bfloat16)
    if form.fast:
        from trainer import fast

        fast.quicken(model)
    clock = torch.full((1,), 24.0)
    given = {
        "y": torch.randn(1, 1, text_tokens, CAPTION),
        "mask": torch.ones(1, text_tokens, dtype=torch.bool),
        "x_mask": torch.ones(1, frames, dtype=torch.bool),
        "fps": clock,
        "height": clock,
        "width": clock,
    }
    x = torch.randn(1, 4, frames, 2 * rows, 4)
    return _saved_bytes(lambda: model(x, clock, **given), model.parameters())


@pytest.mark.parametrize("frames", [2, 1], ids=["video", "image"])
@pytest.mark.parametrize(
    "form",
    [Form(fast=False, item_bytes=4), Form(fast=False), Form(fast=True)],
    ids=["readable-float32", "readable-bfloat16", "fast-bfloat16"],
)
def test_a_token_keeps_the_bytes_that_autograd_saves(form: Form, frames: int) -> None:
    if form.fast:
        pytest.importorskip("triton", reason="triton is not installed on this platform")

    def both(rows: int, text_tokens: int) -> tuple[int, int]:
        work = Work(clips=1, frames=frames, places=2 * rows, text_tokens=text_tokens)
        counted = _model_bytes(form, frames=frames, rows=rows, text_tokens=text_tokens)
        return counted, memory.activation_bytes(SMALL, work, form)

    (counted, predicted), taller, wordier = both(1, 2), both(2, 2), both(1, 3)
    assert taller[0] - counted == taller[1] - predicted
    assert wordier[0] - counted == wordier[1] - predicted
    # What is left of the whole are the tables of the clip, of which the model counts those of the blocks.
    assert 0 <= counted - predicted < 80 * form.item_bytes * WIDTH


@pytest.mark.parametrize(
    ("name", "work", "is_fast", "measured_gib"),
    [
        ("240p_102f", Work(clips=2, frames=30, places=405, text_tokens=300), True, 90.3),
        ("144p_51f", Work(clips=17, frames=15, places=144, text_tokens=300), True, 126.0),
        ("480p_51f", Work(clips=1, frames=15, places=1590, text_tokens=300), True, 89.4),
        ("240p_102f", Work(clips=2, frames=30, places=405, text_tokens=300), False, 113.91),
        ("144p_51f", Work(clips=10, frames=15, places=144, text_tokens=300), False, 104.46),
        ("480p_51f", Work(clips=1, frames=15, places=1590, text_tokens=300), False, 112.14),
        ("360p_51f", Work(clips=2, frames=15, places=920, text_tokens=300), False, 126.28),
        ("256_image", Work(clips=96, frames=1, places=256, text_tokens=300), False, 103.46),
    ],
)
def test_peaks_on_an_h200_are_predicted_within_a_tenth(
    name: str, work: Work, is_fast: bool, measured_gib: float
) -> None:
    """Measured by benchmarks/train_step.py, which holds weights and gradients in bfloat16."""
    held = TRAINED * (2 + 2 + 4 + 8 + 4) + FROZEN * 2
    predicted = (held + memory.peak_bytes(XL_2, work, Form(fast=is_fast))) / GIB
    assert predicted == pytest.approx(measured_gib, rel=0.1), name


def test_half_of_the_blocks_recomputed_is_predicted_within_a_tenth() -> None:
    """720p x 51 frames with 28 of 56 blocks recomputed, readable: 127.44 GiB on an H200."""
    held = TRAINED * (2 + 2 + 4 + 8 + 4) + FROZEN * 2
    work = Work(clips=1, frames=15, places=3600, text_tokens=300)
    predicted = (held + memory.peak_bytes(XL_2, work, Form(fast=False), recompute_blocks=28)) / GIB
    assert predicted == pytest.approx(127.44, rel=0.1)


def test_recomputing_more_blocks_never_needs_more_but_for_the_one_that_is_alive() -> None:
    work, form = Work(clips=1, frames=30, places=3600, text_tokens=300), Form(fast=True)
    peaks = [memory.peak_bytes(XL_2, work, form, count) for count in range(57)]
    assert all(after < before for before, after in itertools.pairwise(peaks[1:]))
    assert peaks[56] < peaks[0] / 8
    assert memory.peak_bytes(XL_2, work, form, 99) == peaks[56]


def test_the_largest_micro_batch_that_fits_is_found_and_one_more_does_not_fit() -> None:
    form = Form(fast=True)
    one = Work(clips=1, frames=15, places=144, text_tokens=300)
    limit = 115 * GIB
    found = memory.fit(XL_2, one, form, limit, most_clips=51)
    assert found is not None
    assert found.recompute_blocks == 0
    assert 1 < found.clips < 51
    more = Work(clips=found.clips + 1, frames=15, places=144, text_tokens=300)
    assert found.peak_bytes <= limit < memory.peak_bytes(XL_2, more, form)
    assert memory.fit(XL_2, one, form, limit, most_clips=3) == memory.Fit(
        clips=3,
        recompute_blocks=0,
        peak_bytes=memory.peak_bytes(XL_2, Work(clips=3, frames=15, places=144, text_tokens=300), form),
    )


def test_a_clip_that_does_not_fit_has_the_fewest_blocks_recomputed_or_is_refused() -> None:
    form, limit = Form(fast=True), 115 * GIB
    one = Work(clips=1, frames=30, places=3600, text_tokens=300)
    found = memory.fit(XL_2, one, form, limit, most_clips=4)
    assert found is not None
    assert found.clips == 1
    assert found.recompute_blocks > 1
    assert memory.peak_bytes(XL_2, one, form, found.recompute_blocks - 1) > limit
    assert memory.fit(XL_2, one, form, 10 * GIB, most_clips=4) is None


def test_the_state_is_held_whole_or_cut_over_the_ranks() -> None:
    assert memory.state_bytes(1000, 10, item_bytes=4) == 20_080
    assert memory.state_bytes(1000, 10, item_bytes=2) == 20_080 + 2_020
    assert memory.state_bytes(1000, 10, item_bytes=2, sharding="full", ranks=1) == 20_080 + 2_020
    assert memory.state_bytes(1000, 10, item_bytes=2, sharding="full", ranks=8) == 2_510 + 2_020 + 4_000
