"""Review app: a local web page on which people watch the clips of a run, search them and try thresholds.

`serve.serve_review` is the command, `app.make_app` the routes, `clip_rows` the table in memory, `query` what
the grid shows, `access` who may ask. `static/` has the page: plain JavaScript and CSS that load
nothing else.
"""
