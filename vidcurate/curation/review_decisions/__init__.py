"""Review decisions: what people decided by looking at clips, in RUN/reviews.jsonl.

`decision` has the models, `journal` appends, reads and undoes (crash-safe, many processes at once), `outcome`
merges the reviewers and measures their agreement.
"""
