"""Inference server: sample every checkpoint of a run, answer prompts over HTTP.

`command` is `python -m trainer serve`, `follow` looks for new checkpoints, `presets` defines what is sampled,
`http_server` answers POST /generate. The server writes only to RUN/samples/PRESET and RUN/serve.
"""
