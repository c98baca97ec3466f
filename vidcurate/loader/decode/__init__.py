"""Decode workers of a loader.

`worker_pool` starts, kills and replaces them, `worker_process` is one of them, `decode_clip` decodes one
clip.
"""
