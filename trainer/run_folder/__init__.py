"""Run folder: the files of a run.

`layout` has their names, `jsonl` appends lines, `metrics` writes metrics and events, `processes`
registers the run's processes, `sample_rounds` holds generated clips, `checkpoint` the checkpoints.
"""
