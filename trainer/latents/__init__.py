"""Latents and text features in shards: what they are kept in, how they are written, found and read.

docs/latents.md describes the folder. Only torch, numpy, pyarrow and pydantic are imported here.
"""
