"""Track: one model, one seeded data set, one target loss, the fewest seconds.

The track asks which settings reach the loss in the fewest seconds.
`clips` makes the data, `run` trains and measures, `record` keeps what came out, `spec` has the recipe. Needs
torch, numpy and pydantic, no shards and no decoder.
"""
