"""Training data: stages over shards or precomputed latents, as model inputs.

`stages` lays out the stages of a recipe, `open_stage` opens a loader, `model_inputs` encodes, `latents`
precomputes.
"""
