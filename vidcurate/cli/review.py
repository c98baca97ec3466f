"""Command `review`: start the local review app of a run."""

import json
import sys
from contextlib import suppress
from typing import Annotated

import typer

from vidcurate.cli.common import Json, Run, Videos, app, known_videos
from vidcurate.cli.training import refuse_training_run


@app.command()
def review(
    run: Run,
    videos: Videos = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port on 127.0.0.1. Default: 8765, or a free one.", metavar="N"),
    ] = None,
    to_json: Json = False,
) -> None:
    """Watch, search and sort the clips of a run in a browser, and try other thresholds.

    The app listens on 127.0.0.1 and needs the token of the printed address. Ctrl-C stops it. From another
    machine: ssh -L 8765:127.0.0.1:8765 HOST, then open the same address.

    Example: vidcurate review run
    """
    from vidcurate.curation.review.serve import serve_review

    refuse_training_run(run, "report")

    def announce(address: str) -> None:
        if to_json:
            print(json.dumps({"url": address, "run": str(run)}), flush=True)
        else:
            print(f"review → {address}", flush=True)
            print("Open this address in a browser. Ctrl-C stops the app.", file=sys.stderr)

    with suppress(KeyboardInterrupt):
        serve_review(run, videos=videos or known_videos(run), port=port, announce=announce)
