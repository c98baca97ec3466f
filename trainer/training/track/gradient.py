"""Gradient of a track's step: eager, or a CUDA graph of forward and backward pass.

All steps of a run have one shape, or two with routing. A graph of each takes the host out of the step, which
at this size would otherwise wait for it.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainer.distributed.parallelize import Layout
from trainer.model import rectified_flow
from trainer.model.routing import Route
from trainer.training.optim import adamw
from trainer.training.optim.adamw import Masters

Inputs = dict[str, Tensor]
"""latents, noise, timesteps, y, mask, drops, fps, height, width, and route_order of a routed step"""

WARM_UP = 3  # steps before a capture, in which kernels are built, compared and timed


def losses(model: nn.Module, given: Inputs, route: Route | None) -> Tensor:
    """Return the clips' losses, float32 [B]."""
    routed: dict[str, Any] = {"route": route, "route_order": given["route_order"]} if route else {}
    return rectified_flow.training_losses(
        model,
        given["latents"],
        given["noise"],
        given["timesteps"],
        y=given["y"],
        mask=given["mask"],
        fps=given["fps"],
        height=given["height"],
        width=given["width"],
        drop_caption=given["drops"],
        **routed,
    )


@dataclass(slots=True, kw_only=True)
class _Captured:
    """A graph, the tensors that it reads, the losses and gradients that it writes."""

    graph: Any
    inputs: Inputs
    losses: Tensor
    gradients: list[Tensor | None]


class StepGradient:
    """Computes a step's gradient, which the masters' parameters then hold.

    `graphs`: capture them (on a GPU). If a capture fails, `why_eager` keeps the reason and steps are eager.
    """

    def __init__(self, layout: Layout, masters: Masters, *, graphs: bool) -> None:
        self.layout, self.masters = layout, masters
        self.why_eager = "" if graphs else "not asked for"
        self._captured: dict[Route | None, _Captured] = {}
        self._stream: Any = torch.cuda.Stream() if graphs else None  # type: ignore[no-untyped-call]

    def __call__(self, given: Inputs, route: Route | None) -> Tensor:
        """Compute the gradient of the mean loss; return the losses [B], detached."""
        adamw.drop_gradients(self.masters)
        self.layout.begin_step()
        if not self.why_eager and route not in self._captured:
            try:
                self._captured[route] = self._capture(given, route)
            except RuntimeError as error:
                self.why_eager = str(error).partition("\n")[0][:300]
                adamw.drop_gradients(self.masters)
        found = self._eager(given, route) if self.why_eager else self._replayed(given, route)
        self.layout.reduce_gradients()
        return found

    def _eager(self, given: Inputs, route: Route | None) -> Tensor:
        found = losses(self.layout.compute, given, route)
        found.mean().backward()  # type: ignore[no-untyped-call]
        return found.detach()

    def _capture(self, given: Inputs, route: Route | None) -> _Captured:
        inputs = {name: value.clone() for name, value in given.items()}
        stream = self._stream
        assert stream is not None
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self._eager(inputs, route)
                adamw.drop_gradients(self.masters)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            found = self._eager(inputs, route)
        gradients = [parameter.grad for parameter in self.masters.learns.values()]
        adamw.drop_gradients(self.masters)
        return _Captured(graph=graph, inputs=inputs, losses=found, gradients=gradients)

    def _replayed(self, given: Inputs, route: Route | None) -> Tensor:
        captured = self._captured[route]
        for name, value in captured.inputs.items():
            value.copy_(given[name], non_blocking=True)
        captured.graph.replay()
        for parameter, gradient in zip(self.masters.learns.values(), captured.gradients, strict=True):
            parameter.grad = gradient
        return captured.losses
