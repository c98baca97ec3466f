"""Own scores: functions of the user, as columns beside the built-in scores.

Main names: `load.load_scores`, `stage.run_own_scores`. May import the clip table, the sampled frames of
`frame_scores`, and what runs a function over clips.
"""
