"""Gradient moves: from a model's rounded copy to its float32 masters, in groups.

A cast for each of XL/2's 700 tensors is a launch each; in groups they are few. A group is moved when it is
full and at the end of the backward pass, so the rounded gradients of few tensors wait.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

MOST_WAITING = 64  # tensors whose rounded gradients wait


class GradientMoves:
    """Moves each gradient of `pairs` (master, rounded copy) as soon as a backward pass has made it.

    A master without a gradient gets the gradient as float32, another one has it added in float32; the copy's
    gradient is None afterwards.
    """

    def __init__(self, pairs: Iterable[tuple[nn.Parameter, nn.Parameter]]) -> None:
        self._waiting: list[tuple[nn.Parameter, nn.Parameter]] = []
        self._is_queued = False
        for master, rounded in pairs:
            if rounded.requires_grad:
                rounded.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    lambda rounded, master=master: self._add(master, rounded)
                )

    def drop(self) -> None:
        """Forget gradients that a backward pass left which did not end."""
        self._is_queued = False
        for _, rounded in self._waiting:
            rounded.grad = None
        self._waiting.clear()

    def _add(self, master: nn.Parameter, rounded: nn.Parameter) -> None:
        if not self._is_queued:
            self._is_queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end)
        self._waiting.append((master, rounded))
        if len(self._waiting) == MOST_WAITING:
            self._move()

    def _end(self) -> None:
        self._is_queued = False
        self._move()

    @torch.no_grad()
    def _move(self) -> None:
        new: list[tuple[Tensor, Tensor]] = []
        added: list[tuple[Tensor, Tensor]] = []
        for master, rounded in self._waiting:
            gradient = rounded.grad
            assert gradient is not None
            if master.grad is None:
                master.grad = torch.empty_like(gradient, dtype=torch.float32)
                new.append((master.grad, gradient))
            else:
                added.append((master.grad, gradient))
            rounded.grad = None
        self._waiting.clear()
        for pairs, work in ((new, torch._foreach_copy_), (added, torch._foreach_add_)):
            if pairs:
                work([into for into, _ in pairs], [gradient for _, gradient in pairs])
