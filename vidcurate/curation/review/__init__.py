"""Review app: a local web page to watch, search and sort a run's clips.

People play the clips, find them and try other thresholds. `serve.serve_review` is the command, `app.make_app`
the routes, `clip_rows` the table in memory, `query` what the grid shows, `access` who may ask. `static/` has
the page: plain JavaScript and CSS that load nothing else.
"""
