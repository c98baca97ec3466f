"""Optimizer: AdamW, learning-rate schedule, gradient clipping, EMA of the weights.

`adamw` has the update, `ema` the moving average.
"""
