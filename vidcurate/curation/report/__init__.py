"""Report: what a run holds, for people.

`build` writes RUN/report.html, `card` the data card, `what_if` tries other thresholds, `inspect_clip`
shows one clip.
"""
