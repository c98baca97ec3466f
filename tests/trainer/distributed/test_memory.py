"""The memory model says what autograd keeps, to the byte, and what the GPU had at its peak, to 10 %."""

import itertools
import re
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from trainer.distributed import memory
from trainer.distributed.activation_checkpointing import Recompute
from trainer.distributed.memory import KEEP_ALL, Form, Plan
from trainer.distributed.step_time import Work
from trainer.model.stdit import STDiT3, STDiT3Config

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
ALL_LEAN = Plan(lean_blocks=56)
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


def _model_bytes(form: Form, plan: Plan, *, frames: int, rows: int, text_tokens: int) -> int:
    """Return what the small model keeps of one clip of `frames` frames of `rows` x 2 tokens."""
    model = STDiT3(SMALL).to(torch.float32 if form.item_bytes == 4 else torch.bfloat16)
    if form.fast:
        from trainer.model.kernels import apply

        apply.apply_fused_blocks(model, float8=form.float8)
    clock = torch.full((1,), 24.0)
    given = {
        "mask": torch.ones(1, text_tokens, dtype=torch.bool),
        "x_mask": torch.ones(1, frames, dtype=torch.bool),
        "fps": clock,
        "height": clock,
        "width": clock,
    }
    x, y = torch.randn(1, 4, frames, 2 * rows, 4), torch.randn(1, 1, text_tokens, CAPTION)
    Recompute(model, lambda work, _: plan).choose_plan(x, y)
    return _saved_bytes(lambda: model(x, clock, y, **given), model.parameters())


@pytest.mark.parametrize(
    ("form", "plan", "frames"),
    [
        (Form(fast=False, item_bytes=4), KEEP_ALL, 2),
        (Form(fast=False, item_bytes=4), KEEP_ALL, 1),
        (Form(fast=False), KEEP_ALL, 2),
        (Form(fast=False), KEEP_ALL, 1),
        (Form(fast=False), Plan(recompute_blocks=1), 2),
        (Form(fast=True), KEEP_ALL, 2),
        (Form(fast=True), KEEP_ALL, 1),
        (Form(fast=True), Plan(lean_blocks=1), 2),
        (Form(fast=True), Plan(lean_blocks=2), 2),
        (Form(fast=True), Plan(lean_blocks=2), 1),
        (Form(fast=True), Plan(recompute_blocks=1), 2),
        (Form(fast=True, float8=True), KEEP_ALL, 2),
        (Form(fast=True, float8=True), Plan(lean_blocks=1), 2),
    ],
    ids=str,
)
def test_a_token_keeps_the_bytes_that_autograd_saves(
    monkeypatch: pytest.MonkeyPatch, form: Form, plan: Plan, frames: int
) -> None:
    """The captions are full, as the forecast has them: packed ones keep less, each what its tokens do."""
    if form.fast:
        pytest.importorskip("triton", reason="triton is not installed on this platform")
        from tests.trainer.interpreter_for_tests import no_kernel_runs

        no_kernel_runs(monkeypatch)

    def both(rows: int, text_tokens: int) -> tuple[int, int]:
        work = Work(clips=1, frames=frames, places=2 * rows, text_tokens=text_tokens)
        counted = _model_bytes(form, plan, frames=frames, rows=rows, text_tokens=text_tokens)
        return counted, memory.activation_bytes(SMALL, work, form, plan)

    (counted, predicted), taller, wordier = both(1, 2), both(2, 2), both(1, 3)
    assert taller[0] - counted == taller[1] - predicted
    mask = 1 if plan.recompute_blocks and not form.fast else 0  # which all recomputed blocks share
    assert wordier[0] - counted == wordier[1] - predicted + mask
    # What is left of the whole are the tables of the clip, of which the model counts those of the blocks.
    assert 0 <= counted - predicted < 80 * form.item_bytes * WIDTH


@pytest.mark.parametrize(
    ("name", "work", "plan", "measured_gib"),
    [
        ("240p_102f", Work(clips=2, frames=30, places=405, text_tokens=300), KEEP_ALL, 64.8),
        ("144p_51f", Work(clips=17, frames=15, places=144, text_tokens=300), KEEP_ALL, 97.4),
        ("480p_51f", Work(clips=1, frames=15, places=1590, text_tokens=300), KEEP_ALL, 63.3),
        ("240p_102f", Work(clips=2, frames=30, places=405, text_tokens=300), ALL_LEAN, 47.5),
        ("240p_102f", Work(clips=4, frames=30, places=405, text_tokens=300), ALL_LEAN, 92.2),
        ("720p_51f", Work(clips=1, frames=15, places=3600, text_tokens=300), ALL_LEAN, 101.8),
    ],
)
def test_peaks_of_fast_blocks_on_an_h200_are_predicted_within_a_tenth(
    name: str, work: Work, plan: Plan, measured_gib: float
) -> None:
    """One micro-batch on torch 2.11; held are weights in bfloat16, no gradients and no optimizer state."""
    held = (TRAINED + FROZEN) * 2
    predicted = (held + memory.peak_bytes(XL_2, work, Form(fast=True), plan)) / GIB
    assert predicted == pytest.approx(measured_gib, rel=0.1), name


@pytest.mark.parametrize(
    ("name", "work", "again", "measured_gib"),
    [
        ("240p_102f", Work(clips=2, frames=30, places=405, text_tokens=300), 0, 113.91),
        ("144p_51f", Work(clips=10, frames=15, places=144, text_tokens=300), 0, 104.46),
        ("480p_51f", Work(clips=1, frames=15, places=1590, text_tokens=300), 0, 112.14),
        ("360p_51f", Work(clips=2, frames=15, places=920, text_tokens=300), 0, 126.28),
        ("256_image", Work(clips=96, frames=1, places=256, text_tokens=300), 0, 103.46),
        ("720p_51f", Work(clips=1, frames=15, places=3600, text_tokens=300), 28, 127.44),
    ],
)
def test_peaks_of_readable_blocks_on_an_h200_are_predicted_within_a_tenth(
    name: str, work: Work, again: int, measured_gib: float
) -> None:
    """Measured by benchmarks/train_step.py, which holds weights and gradients in bfloat16 and masters."""
    held = TRAINED * (2 + 2 + 4 + 8 + 4) + FROZEN * 2
    predicted = (held + memory.peak_bytes(XL_2, work, Form(fast=False), Plan(recompute_blocks=again))) / GIB
    assert predicted == pytest.approx(measured_gib, rel=0.1), name


@pytest.mark.parametrize("form", [Form(fast=True), Form(fast=False)], ids=["fast", "eager"])
@pytest.mark.parametrize(
    "work",
    [
        Work(clips=1, frames=30, places=3600, text_tokens=300),
        Work(clips=96, frames=1, places=256, text_tokens=300),
        Work(clips=2, frames=8, places=1, text_tokens=300),
    ],
    ids=["video", "image", "one_place"],
)
def test_each_plan_needs_less_than_the_one_before_it(work: Work, form: Form) -> None:
    plans = [*memory.plans(XL_2, form)]
    peaks = [memory.peak_bytes(XL_2, work, form, plan) for plan in plans]
    assert all(after < before for before, after in itertools.pairwise(peaks))
    assert peaks[-1] < peaks[0] / 8
    # A recipe may recompute every block: then one is there whole beside the others' inputs.
    every = memory.peak_bytes(XL_2, work, form, memory.plan_of(XL_2, 99))
    assert every == memory.peak_bytes(XL_2, work, form, Plan(recompute_blocks=56)) < peaks[0] / 8


def test_blocks_are_lean_before_any_is_recomputed_and_only_where_they_are_fast() -> None:
    quick, plain = ([*memory.plans(XL_2, Form(fast=fast))] for fast in (True, False))

    assert [str(quick[number]) for number in (0, 1, 56, 57, 111)] == [
        "0 blocks recomputed",
        "0 blocks recomputed, 1 lean",
        "0 blocks recomputed, 56 lean",
        "1 blocks recomputed, 55 lean",
        "55 blocks recomputed, 1 lean",
    ]
    assert plain == [Plan(recompute_blocks=count) for count in range(56)]


def test_chunks_are_even_and_hold_every_clip_once_in_order() -> None:
    for clips in range(1, 12):
        for chunks in range(1, clips + 1):
            slices = Plan(chunks=chunks).slices(clips)
            sizes = [chunk.stop - chunk.start for chunk in slices]
            assert [clip for chunk in slices for clip in range(clips)[chunk]] == [*range(clips)]
            assert len(slices) == chunks
            assert max(sizes) - min(sizes) <= 1
            assert sizes[0] == max(sizes) == -(-clips // chunks)


def test_a_plan_with_chunks_needs_what_its_largest_chunk_needs() -> None:
    form, plan = Form(fast=True), Plan(chunks=3, lean_blocks=9)
    seven, three = (Work(clips=clips, frames=15, places=144, text_tokens=300) for clips in (7, 3))
    needed = memory.peak_bytes(XL_2, three, form, Plan(lean_blocks=9))
    assert memory.peak_bytes(XL_2, seven, form, plan) == needed


@pytest.mark.parametrize("is_fast", [True, False])
def test_a_micro_batch_gets_the_fewest_chunks_that_fit_and_recomputes_nothing(is_fast: bool) -> None:
    form, limit = Form(fast=is_fast), 115 * GIB
    work = Work(clips=51, frames=15, places=144, text_tokens=300)
    found = memory.least_plan(XL_2, work, form, limit)
    assert found is not None
    assert found.chunks > 1
    assert found.recompute_blocks == 0
    assert memory.peak_bytes(XL_2, work, form, found) <= limit
    all_lean = 56 if is_fast else 0
    larger = Plan(chunks=found.chunks - 1, lean_blocks=all_lean)
    assert memory.peak_bytes(XL_2, work, form, larger) > limit
    if found.lean_blocks:
        one_less = replace(found, lean_blocks=found.lean_blocks - 1)
        assert memory.peak_bytes(XL_2, work, form, one_less) > limit


@pytest.mark.parametrize(
    ("is_fast", "places", "limit_gib", "expected"),
    [
        (True, 3600, 115, "4 chunks, 0 blocks recomputed, .* lean"),
        (True, 7200, 115, "4 chunks, .* blocks recomputed, .* lean"),
        (False, 3600, 115, "4 chunks, .* blocks recomputed"),
    ],
)
def test_a_clip_that_does_not_fit_gets_the_first_plan_with_which_it_does(
    is_fast: bool, places: int, limit_gib: float, expected: str
) -> None:
    form, limit = Form(fast=is_fast), limit_gib * GIB
    work = Work(clips=4, frames=15, places=places, text_tokens=300)
    found = memory.least_plan(XL_2, work, form, limit)
    assert found is not None
    assert re.fullmatch(expected, str(found))
    plans = [replace(plan, chunks=4) for plan in memory.plans(XL_2, form)]
    before = plans[plans.index(found) - 1]
    needed = memory.peak_bytes(XL_2, work, form, found)
    assert (
        memory.peak_bytes(XL_2, work, form, before) > limit >= needed >= memory.least_bytes(XL_2, work, form)
    )
    assert memory.least_plan(XL_2, work, form, GIB) is None


def test_the_state_is_held_whole_or_cut_over_the_ranks() -> None:
    assert memory.state_bytes(1000, 10, item_bytes=4) == 20_080
    assert memory.state_bytes(1000, 10, item_bytes=2) == 20_080 + 2_020
    assert memory.state_bytes(1000, 10, item_bytes=2, power_averages=2) == 28_080 + 2_020
    assert memory.state_bytes(1000, 10, item_bytes=2, sharding="full", ranks=1) == 20_080 + 2_020
    assert memory.state_bytes(1000, 10, item_bytes=2, sharding="full", ranks=8) == 2_510 + 2_020 + 4_000
