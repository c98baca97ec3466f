"""Filter: keep or reject every clip by named rules.

`stage.run_filter` is the stage, `rules` builds the expressions, `outliers` finds limits in the data,
`presets` has published thresholds.
"""
