"""Triton kernels for the blocks of STDiT3 and for the AdamW update.

Each has an eager twin in `trainer.model.layers`; `apply` replaces the blocks of a model, `block` holds
the forward and backward pass of one, `attention` chooses the attention kernel. Without a GPU they run in
Triton's interpreter (TRITON_INTERPRET=1), as in the tests. A width that is no power of two is cut in two
that are: 72 = 64 + 16 (8 used), 1152 = 1024 + 128.
"""
