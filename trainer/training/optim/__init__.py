"""Optimizer: AdamW, learning-rate schedule, gradient clipping, EMA of the weights.

`adamw` has the update, `muon` that of matrices, `schedule` the learning rate, `ema` the moving average,
`power_averages` those of which one of any width is made afterwards.
"""
