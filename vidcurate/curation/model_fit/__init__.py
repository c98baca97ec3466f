"""Model fit: which clips a video model takes, at which size and frame rate.

`models` is the table of models, `fit_clip` the pure function from one clip and one model to what would be
written, `summary` counts a whole run.
"""
