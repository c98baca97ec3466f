"""Loader: the frames of step t on one rank.

`loader.Loader` yields micro-batches, `decode` has the worker processes, `fallback` replaces clips that
fail to decode, `torch` makes tensors (the only file that imports torch).
"""
