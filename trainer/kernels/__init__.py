"""Triton kernels for what a compiler leaves slow in a block: each has its readable twin in `trainer.layers`.

A kernel is an operator of torch with a derivative, so it goes through torch.compile like any other; on a
machine without a GPU it runs in Triton's interpreter (TRITON_INTERPRET=1), which is how the tests check it.
A head or a row is as wide as the model says, not a power of two: 72 is taken as 64 + 16, 1152 as 1024 + 128,
so that little is computed on nothing.
"""
