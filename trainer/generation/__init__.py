"""Generation: prompts to mp4 clips from a checkpoint.

`sample_command` is `python -m trainer sample`; `server` samples every checkpoint of a run and answers over
HTTP.
"""
