"""Probe: check every video file up to a level of integrity.

`stage.run_probe` is the stage, `examine` checks one file (header, index, keyframes, full), `cache`
remembers files that were checked before.
"""
