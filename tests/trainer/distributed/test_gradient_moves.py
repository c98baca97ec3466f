"""Gradients of a rounded copy reach the float32 masters in groups, with the bits of moves one by one."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainer.distributed import gradient_moves
from trainer.distributed.gradient_moves import GradientMoves


def _models() -> tuple[nn.Sequential, nn.Sequential]:
    torch.manual_seed(1)
    master = nn.Sequential(*(nn.Linear(3, 3) for _ in range(4)))
    rounded = nn.Sequential(*(nn.Linear(3, 3) for _ in range(4))).bfloat16()
    rounded.load_state_dict(master.state_dict())
    master[1].weight.requires_grad_(False)
    rounded[1].weight.requires_grad_(False)
    return master, rounded


def _backward(rounded: nn.Module, seed: int) -> None:
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(seed)).bfloat16()
    rounded(x).float().square().sum().backward()


@pytest.mark.parametrize("most", [1, 3, 64])
def test_groups_of_any_size_give_the_bits_of_single_moves(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(gradient_moves, "MOST_WAITING", most)
    master, rounded = _models()
    GradientMoves(zip(master.parameters(), rounded.parameters(), strict=True))
    _, alone = _models()
    wanted: dict[str, Tensor] = {}

    for seed in range(3):
        _backward(rounded, seed)
        alone.zero_grad()
        _backward(alone, seed)
        for name, parameter in alone.named_parameters():
            if parameter.grad is not None:
                found = parameter.grad.float()
                wanted[name] = wanted[name] + found if name in wanted else found

    assert {name for name, one in master.named_parameters() if one.grad is not None} == wanted.keys()
    for name, parameter in master.named_parameters():
        if name in wanted:
            assert parameter.grad is not None
            assert parameter.grad.dtype == torch.float32
            assert torch.equal(parameter.grad, wanted[name]), name
    assert all(parameter.grad is None for parameter in rounded.parameters())


def test_gradients_of_a_backward_pass_that_failed_are_not_moved_later() -> None:
    master, rounded = _models()
    moves = GradientMoves(zip(master.parameters(), rounded.parameters(), strict=True))

    def fail(gradient: Tensor) -> Any:
        raise RuntimeError("out of memory")

    handle = rounded[0].weight.register_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        _backward(rounded, 1)
    handle.remove()
    moves.drop()
    for parameter in master.parameters():
        parameter.grad = None
    _backward(rounded, 2)

    other, again = _models()
    GradientMoves(zip(other.parameters(), again.parameters(), strict=True))
    _backward(again, 2)
    for one, theirs in zip(master.parameters(), other.parameters(), strict=True):
        assert (one.grad is None) == (theirs.grad is None)
        assert one.grad is None or torch.equal(one.grad, theirs.grad)
