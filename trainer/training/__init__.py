"""Training: state, set-up, one step, resume, validation, log.

`setup` builds what a run needs, `step` is one update, `resume` loads a checkpoint, `validation` the
validation loss, `log` the console and events. `guard` detects spikes and rolls back, `preflight` checks
nodes, `optim` has the optimizer. `trainer/train.py` puts them together.
"""
