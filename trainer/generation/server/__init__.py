"""Inference server: sample every checkpoint of a run, answer prompts over HTTP.

`command` is `python -m trainer serve`, `follow` looks for new checkpoints, `presets` says what is
sampled, `http_server` answers POST /generate. It writes to RUN/samples/PRESET and RUN/serve only.
"""
