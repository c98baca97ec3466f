"""Triton kernels for what a compiler leaves slow in a block: each has its readable twin in `trainer.layers`.

Each module has a forward and a backward pass as plain functions, which `block` puts together. On a machine
without a GPU they run in Triton's interpreter (TRITON_INTERPRET=1), which is how the tests check them.
A head or a row is as wide as the model says, not a power of two: 72 is taken as 64 + 16, 1152 as 1024 + 128,
so that little is computed on nothing. `adamw` is not of a block but the update; its twin is torch's.
"""
