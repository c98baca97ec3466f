"""Precomputed latents and text features in shards.

`command` is `python -m trainer precompute`, `precompute` encodes, `folder` is the folder on disk
(docs/latents.md), `read` yields micro-batches from it, `request` says what a recipe asks of it.
"""
