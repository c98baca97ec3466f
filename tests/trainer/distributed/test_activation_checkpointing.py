"""Blocks keep what a micro-batch has room for: which are lean, which run twice; nothing else changes."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer.distributed import activation_checkpointing, memory, parallelize
from trainer.distributed.activation_checkpointing import Recompute
from trainer.distributed.memory import KEEP_ALL, Form, Plan
from trainer.distributed.mesh import ALONE
from trainer.distributed.spec import ParallelSpec
from trainer.distributed.step_time import Work
from trainer.model import rng
from trainer.model.stdit import XL_2, STDiT3, STDiT3Config
from vidcurate.errors import InputError

WIDTH = 24  # one head of it: the kernels take none below 16
CONFIG = STDiT3Config(
    hidden_size=WIDTH, depth=2, num_heads=1, caption_channels=8, model_max_length=6, input_sq_size=32
)
PAIR = CONFIG.model_copy(update={"depth": 1})
SIZES = {name: torch.full((1,), 32.0) for name in ("fps", "height", "width")}


def _model(config: STDiT3Config = CONFIG) -> STDiT3:
    model = STDiT3(config, seed=1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # none zero: every gradient is
            parameter.add_(0.1 * rng.normal(0, "init", 0, [name], tuple(parameter.shape))[0])
    return model


def _runs(model: STDiT3) -> list[int]:
    """Return the list to which each block adds its number when it runs."""
    runs: list[int] = []
    for number, block in enumerate(activation_checkpointing.blocks_of(model)):
        block.get_submodule("mlp.fc1").register_forward_hook(lambda *_, number=number: runs.append(number))
    return runs


def _given(frames: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(frames)
    return torch.randn(1, 4, frames, 4, 6, generator=draw), torch.randn(1, 1, 6, 8, generator=draw)


def _backward(model: Any, latents: Tensor, features: Tensor) -> None:
    model(latents, torch.tensor([300.0]), features, **SIZES).square().mean().backward()


def test_the_first_blocks_are_those_that_run_twice() -> None:
    laid = _model()
    layout = parallelize.parallelize_model(laid, ParallelSpec(recompute_blocks=1), ALONE, torch.float32)
    runs = _runs(laid)
    latents, features = _given(2)

    assert layout.recompute.choose_plan(latents, features) == Plan(recompute_blocks=1)
    _backward(layout.compute, latents, features)

    assert runs == [0, 1, 2, 3, 0]


def test_each_shape_of_micro_batch_has_its_own_plan() -> None:
    laid = _model()
    sizes = {2: 0, 3: 2, 5: 4}  # frames → blocks
    recompute, runs = Recompute(laid, lambda work, _: Plan(recompute_blocks=sizes[work.frames])), _runs(laid)

    for frames in (5, 2, 3, 5):
        runs.clear()
        latents, features = _given(frames)
        recompute.choose_plan(latents, features)
        _backward(laid, latents, features)
        assert len(runs) == 4 + sizes[frames]


def test_lean_blocks_keep_less_and_change_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="triton is not installed on this platform")
    from trainer.model.kernels import apply, qk_norm

    # The interpreter is slow: a program goes through few tokens.
    monkeypatch.setattr(qk_norm, "BACKWARD", (4, *qk_norm.BACKWARD[1:]))
    gradients: dict[Plan, dict[str, Tensor | None]] = {}
    saved: dict[Plan, int] = {}
    latents, features = torch.randn(1, 4, 2, 2, 4), torch.randn(1, 1, 2, 8)

    for plan in (KEEP_ALL, Plan(lean_blocks=2)):
        laid = _model(PAIR)
        apply.apply_fused_blocks(laid)
        layout = parallelize.Replicated(laid, ALONE, torch.float32, lambda work, _, plan=plan: plan)
        counted: list[int] = []
        layout.begin_step()
        assert layout.recompute.choose_plan(latents, features) == plan
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor, counted=counted: counted.append(tensor.nbytes) or tensor, lambda tensor: tensor
        ):
            loss = layout.compute(latents, torch.tensor([300.0]), features, **SIZES).square().mean()
        loss.backward()
        layout.reduce_gradients()
        saved[plan] = sum(counted)
        gradients[plan] = {
            name: parameter.grad for name, parameter in laid.named_parameters() if parameter.requires_grad
        }

    assert saved[Plan(lean_blocks=2)] < saved[KEEP_ALL]
    for name, wanted in gradients[KEEP_ALL].items():
        found = gradients[Plan(lean_blocks=2)][name]
        assert wanted is not None
        assert found is not None
        assert float(wanted.norm()) > 0, name
        assert float((found - wanted).norm()) <= 1e-6 * float(wanted.norm()), name


def test_fit_asks_for_no_more_than_the_memory_does_and_refuses_what_cannot_fit() -> None:
    form = Form(fast=True)
    whole = Work(clips=1, frames=15, places=3600, text_tokens=300)
    without = memory.peak_bytes(XL_2, whole, form)

    assert activation_checkpointing.least(XL_2, whole, form, without) == KEEP_ALL
    lean = activation_checkpointing.least(XL_2, whole, form, 0.8 * without)
    assert 0 < lean.lean_blocks < 56
    assert lean.recompute_blocks == 0
    again = activation_checkpointing.least(XL_2, whole, form, 0.6 * without)
    assert again.recompute_blocks > 0
    assert again.lean_blocks + again.recompute_blocks == 56
    with pytest.raises(InputError, match=r"one clip of 15 x 3600 tokens needs .* leave this bucket out"):
        activation_checkpointing.least(XL_2, whole, form, 1e9)


def test_the_published_micro_batches_fit_an_h200_and_recompute_nothing_up_to_102_frames_of_480p() -> None:
    form, limit = Form(fast=True), 0.92 * 139.8 * 2**30 - 8.9 * 2**30  # the state cut over 8 ranks
    published = {(15, 144): 51, (30, 405): 10, (15, 900): 8, (15, 1590): 5, (30, 1590): 2, (1, 405): 297}
    for (frames, places), clips in published.items():
        work = Work(clips=clips, frames=frames, places=places, text_tokens=300)
        plan = activation_checkpointing.least(XL_2, work, form, limit)
        assert plan.recompute_blocks == 0, work
        assert plan.chunks > 1 or clips == 2, work


def test_what_encoders_take_is_not_there_for_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(total_memory=80 * 10**9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    choose = activation_checkpointing.chooser("fit", XL_2, Form(fast=True), torch.device("cuda"), 25 * 10**9)
    work = Work(clips=1, frames=15, places=1000, text_tokens=300)
    alone, beside_t5 = choose(work, 0), choose(work, 10 * 10**9)
    assert alone == KEEP_ALL
    assert beside_t5.lean_blocks > 0


def test_fit_on_the_cpu_keeps_everything() -> None:
    choose = activation_checkpointing.chooser("fit", CONFIG, Form(fast=False), torch.device("cpu"), 0)

    assert choose(Work(clips=99, frames=99, places=9999, text_tokens=300), 0) == KEEP_ALL


def test_a_number_of_blocks_is_recomputed_whatever_the_memory_and_none_is_lean() -> None:
    choose = activation_checkpointing.chooser(99, CONFIG, Form(fast=True), torch.device("cpu"), 0)

    assert choose(Work(clips=1, frames=1, places=1, text_tokens=300), 0) == Plan(recompute_blocks=4)
