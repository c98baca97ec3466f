"""Track: one model, one data set made from a seed, one target loss; who reaches it in the fewest seconds.

`clips` makes the data, `run` trains and measures, `record` keeps what came out, `spec` has the recipe. Needs
torch, numpy and pydantic, no shards and no decoder.
"""
