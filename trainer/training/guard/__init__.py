"""Guard: detect loss spikes, divergence and bad devices, and roll back.

`detect` and `decide` are pure functions of a step's metrics and of `history`, which lies in the
checkpoint: all ranks decide alike, and a resumed run decides as an uninterrupted one. `step_guard` runs
them, `rollback` goes back to a checkpoint and `rollback_file` keeps RUN/guard.json, `rerun_step` computes a
suspicious step again.
"""
