"""Dedup: find clips that are copies, and choose the one to keep.

`stage.run_dedup` is the stage; `exact`, `perceptual`, `captions` and `semantic` find pairs, `clusters`
groups them.
"""
