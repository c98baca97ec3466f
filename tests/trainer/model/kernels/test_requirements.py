"""Triton's kernels are not begun where Triton could not build them."""

import dataclasses
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed on this platform")

from trainer.distributed import parallelize
from trainer.distributed.mesh import ALONE
from trainer.distributed.spec import ParallelSpec
from trainer.model.kernels import requirements
from trainer.model.stdit import STDiT3, STDiT3Config
from vidcurate.errors import InputError


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the one folder on PATH, empty."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    return tmp_path


def test_a_gpu_without_a_c_compiler_is_named(tools: Path) -> None:
    assert requirements.missing(on_gpu=True).startswith("a C compiler for Triton (gcc, clang")
    assert not requirements.missing(on_gpu=False)


@pytest.mark.parametrize("name", ["gcc", "clang"])
def test_a_c_compiler_on_the_path_is_enough(tools: Path, name: str) -> None:
    (tools / name).write_text("#!/bin/sh\n")
    (tools / name).chmod(0o755)
    assert not requirements.missing(on_gpu=True)


def test_fast_blocks_without_a_c_compiler_are_refused(tools: Path) -> None:
    config = STDiT3Config(hidden_size=32, depth=1, num_heads=2, caption_channels=8, model_max_length=6)
    on_a_gpu = dataclasses.replace(ALONE, device=torch.device("cuda"))
    with pytest.raises(InputError, match=r"lacks a C compiler for Triton .* or set blocks=eager"):
        parallelize.parallelize_model(STDiT3(config, 0), ParallelSpec(), on_a_gpu, torch.bfloat16, fast=True)
