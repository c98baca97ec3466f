"""Review decisions: what people decided by looking at clips, in RUN/reviews.jsonl.

`decision` has the models, `journal` appends, reads and undoes (crash-safe, many processes at once), `outcome`
merges the reviewers and measures their agreement. `draw_sample` draws a stratified blind sample,
`blind_sample` keeps it and estimates how often the filter is wrong, `interval` has the confidence intervals.
"""
