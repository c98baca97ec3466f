"""Links from a run's pages into the review app of the curation of its shards.

A stage whose shards lie in a curation's folder has such links once the curation has its page of links,
RUN/review.html, which `vidcurate report` and `vidcurate review` write.
"""

import html
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trainer.report import event_marks, summary
from trainer.run_folder import layout as run_folder_layout
from vidcurate.curation.report import review_link
from vidcurate.errors import StorageError

TITLE = "Open in the review app, while it runs"
_LONG_WORDS = 3  # of a prompt, that are searched for in the captions


def targets(run: Path, beside: Path) -> dict[str, str]:
    """Return stage → its curation's page of links as a path relative to the folder `beside`.

    Stages without one are left out; so are all of a run whose recipe cannot be read.
    """
    try:
        stages = run_folder_layout.read_recipe(run).get("stages", ())
        shards = {str(stage["name"]): stage["data"].get("shards") for stage in stages}
    except (StorageError, KeyError, TypeError, AttributeError):
        return {}
    found = {}
    for name, place in shards.items():
        page = Path(str(place)).parent / review_link.PAGE
        if place and "://" not in str(place) and page.is_file():
            found[name] = Path(os.path.relpath(page.absolute(), beside.absolute())).as_posix()
    return found


def target(found: dict[str, str], stage: object) -> str | None:
    """Return the page of links of a stage; of an unnamed stage that of all, if there is one only."""
    pages = set(found.values())
    return found.get(str(stage)) if stage is not None else pages.pop() if len(pages) == 1 else None


def link_captions(prompt: str, to: str) -> str:
    """Return the address of the clips whose captions have the three longest words of a prompt."""
    words = dict.fromkeys(re.findall(r"\w{3,}", prompt))
    chosen = sorted(words, key=len, reverse=True)[:_LONG_WORDS]
    return review_link.link({"text": " ".join(word for word in words if word in chosen)}, to)


def anchor(href: str, words: str) -> str:
    """Return an HTML link; both are escaped."""
    return f'<a href="{html.escape(href)}" title="{TITLE}">{html.escape(words)}</a>'


def event_fact(name: str, value: Any, to: str | None) -> str:
    """Return an event's fact as HTML: a time in UTC, ids of clips as links where there is a page of links."""
    words = f"{summary.moment(value)} UTC" if name == "process_began" else event_marks.fact(value)
    ids: Iterable[str] = [value] if isinstance(value, str) else value if isinstance(value, list) else ()
    if to is None or name not in ("clip_id", "clip_ids", "fallback") or not ids:
        return html.escape(words)
    return anchor(review_link.link_clips(map(str, ids), to), words)
