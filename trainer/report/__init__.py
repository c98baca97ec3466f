"""Report: a run as HTML pages and text.

`command` is `python -m trainer report`, `page` the HTML, `gallery` the samples, `goodput` the time ledger.
`preview` shows what a recipe will do, `experiment` compares runs.
"""
