"""Blocks with random weights, and kernels cut small for Triton's interpreter, which is slow."""

import pytest
import torch

from trainer.model import layers


def random_block(*, temporal: bool, width: int, heads: int = 1) -> layers.Block:
    """Return a block none of whose weights is zero."""
    block = layers.Block(width, heads, 4 * width, temporal=temporal)
    with torch.no_grad():
        for name, parameter in block.named_parameters():
            parameter.normal_(0, 0.1)
            if name.endswith("norm.weight"):
                parameter.add_(1)
    return block


def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let kernels work on a few rows at a time, so that several tiles are used."""
    from tests.trainer.interpreter_for_tests import patch_once_a_launch
    from trainer.model.kernels import flash_attention, mlp, modulate_backward, qk_norm, tiles

    patch_once_a_launch(monkeypatch)
    monkeypatch.setattr(flash_attention, "tiles", lambda *_: ((16, 16, 4, 1), (32, 16, 4, 1), (16, 32, 4, 1)))
    monkeypatch.setattr(mlp, "TILE", (4, 64, 4))
    monkeypatch.setattr(mlp, "SUM_TILE", (8, 32, 4))
    monkeypatch.setattr(mlp, "TILES", 2)
    monkeypatch.setattr(modulate_backward, "CHUNK", 2)
    monkeypatch.setattr(qk_norm, "BACKWARD", (4, 4))
    monkeypatch.setattr(qk_norm, "BACKWARD_ROWS", (4, 4))
    monkeypatch.setattr(tiles, "ROWS", 2)
    monkeypatch.setattr(tiles, "NUMBERS", 64)
