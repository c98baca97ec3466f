"""Training data: stages over shards or precomputed latents, as model inputs.

`stages` opens a recipe's stages, `open_stage` opens a loader, `model_inputs` encodes, `latents` precomputes.
"""
