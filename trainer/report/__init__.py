"""Report: a run as pages and answers for people.

`command` is `python -m trainer report`, `page` the HTML, `gallery` the samples, `goodput` where time
went. `preview` shows what a recipe will do, `experiment` compares runs.
"""
