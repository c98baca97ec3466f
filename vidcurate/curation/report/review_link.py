"""Links into the review app, and RUN/review.html, the page to which they lead.

A page from the disk cannot know whether the app runs, on which port, or its token. Its links therefore lead
to RUN/review.html. While the app runs, that page sends the browser on to the app, with the query of the link;
otherwise it shows the command that starts the app, and looks again every two seconds. The page has the app's
port and never its token.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from vidcurate.storage import atomic_file

PAGE = "review.html"
OPEN = "/open"  # the app's own page that takes the query of a link from another site
MOST_CLIPS = 200  # of one link
_MOST_LETTERS = 12_000  # of the ids in one link
_SCRIPT = """
const to = document.body.dataset.app;
if (to) location.replace(to + location.hash);
else setTimeout(() => location.reload(), 2000);
const run = decodeURIComponent(location.pathname).replace(/\\/review\\.html$/, "");
if (location.protocol === "file:") document.querySelector("code")?.replaceChildren(`vidcurate review ${run}`);
"""
_DIGEST = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
_HTML = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'sha256-DIGEST'; style-src 'unsafe-inline'">
<meta name="referrer" content="no-referrer"><meta name="color-scheme" content="light dark"><title>Review app of a run</title>
<style>
body { margin: 0 auto; max-width: 40rem; padding: 3rem 1rem; font: 15px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.3rem; } code { overflow-wrap: anywhere; }
</style></head>
<body data-app="ADDRESS"><h1>Review app of this run</h1>
WORDS
<script>SCRIPT</script></body></html>
"""  # noqa: E501
_NO_APP = """<p>The review app of this run is not running. Start it: <code>vidcurate review RUN</code>,
and open the address that it prints. This page then leads to what you asked for.</p>"""


def page(port: int | None) -> bytes:
    """Return RUN/review.html for the app on this port, or for no app. It is the same for every run."""
    address = "" if port is None else f"http://127.0.0.1:{port}{OPEN}"
    words = _NO_APP if port is None else f'<p><a href="{address}">{address}</a></p>'
    parts = {"DIGEST": _DIGEST, "ADDRESS": address, "WORDS": words, "SCRIPT": _SCRIPT}
    text = _HTML
    for name, part in parts.items():
        text = text.replace(name, part, 1)
    return text.encode()


def write_page(run: Path) -> None:
    """Write RUN/review.html for no app, unless there is such a page. Raises StorageError."""
    if not (run / PAGE).exists():
        atomic_file.write_bytes(run / PAGE, page(None))


def link(query: Mapping[str, Any], to: str = PAGE) -> str:
    """Return the address of a query of the review grid; `to` is RUN/review.html seen from the page."""
    text = json.dumps(query, ensure_ascii=False, separators=(",", ":"))
    return f"{quote(to, errors='replace')}#{quote(text, safe='', errors='replace')}"


def link_clips(clip_ids: Iterable[str], to: str = PAGE) -> str:
    """Return the address of these clips in this order: the first 200, of long ids fewer."""
    chosen: list[str] = []
    letters = 0
    for clip_id in dict.fromkeys(clip_ids):
        letters += len(clip_id)
        if chosen and (len(chosen) == MOST_CLIPS or letters > _MOST_LETTERS):
            break
        chosen.append(clip_id)
    return link({"clips": chosen}, to)
