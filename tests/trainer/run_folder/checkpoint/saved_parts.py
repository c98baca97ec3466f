"""A small state of a training run, to save."""

import torch

STATE = {"step": 100, "recipe": {"name": "small"}}


def parts(value: float = 1.0) -> dict[str, dict[str, torch.Tensor]]:
    weights = {"layer.weight": torch.full((2, 3), value), "layer.bias": torch.arange(3).to(torch.bfloat16)}
    return {"model": weights, "ema": weights, "optimizer": {"exp_avg.layer.weight": torch.zeros(2, 3)}}
