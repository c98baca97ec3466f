"""Contact sheet: an HTML page of micro-batches with first frames and captions.

The page contains the pictures, no script, and requests nothing.
"""

import base64
import html
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vidcurate.media import encode

THUMBNAIL_PX = 192  # of the longer side

_STYLE = """
:root { color-scheme: light dark; --paper: #fcfcfa; --ink: #1f2328; --soft: #6a6f76; --line: #dcdcd6;
        --card: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --paper: #16181b; --ink: #e7e8ea; --soft: #9aa0a8;
        --line: #33373c; --card: #1e2125; } }
body { margin: 0 auto; padding: 2rem 1.5rem 4rem; max-width: 84rem; background: var(--paper);
       color: var(--ink); font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
h3 { font-size: .9rem; font-weight: 600; margin: 1rem 0 .5rem; color: var(--soft); }
p.about { margin: 0; color: var(--soft); }
.clips { display: grid; grid-template-columns: repeat(auto-fill, minmax(12rem, 1fr)); gap: .75rem; }
figure { margin: 0; padding: .5rem; background: var(--card); border: 1px solid var(--line);
         border-radius: 8px; overflow-wrap: anywhere; }
img { display: block; max-width: 100%; height: auto; border-radius: 4px; }
figcaption { font-size: .8rem; margin-top: .4rem; }
figcaption b { display: block; font-size: .75rem; color: var(--soft); font-weight: 600; }
.none { color: var(--soft); font-size: .8rem; padding: 1.5rem .5rem; border: 1px dashed var(--line);
        border-radius: 4px; }
"""


def thumbnail(frame: NDArray[np.uint8]) -> str:
    """Return a frame (H, W, 3) as the data URL of a small JPEG: means of squares of whole pixels."""
    height, width = frame.shape[:2]
    step = max(1, -(-max(height, width) // THUMBNAIL_PX))
    height, width = height // (2 * step) * 2 * step, width // (2 * step) * 2 * step  # JPEG halves colours
    if height and width:
        blocks = frame[:height, :width].reshape(height // step, step, width // step, step, 3)
        frame = np.ascontiguousarray(blocks.mean(axis=(1, 3)).round().astype(np.uint8))
    return "data:image/jpeg;base64," + base64.b64encode(encode.encode_image(frame)).decode()


def _clip(clip: dict[str, Any]) -> str:
    picture = (
        f'<img src="{clip["thumbnail"]}" alt="{html.escape(clip["clip_id"])}">'
        if clip.get("thumbnail")
        else f'<div class="none">{html.escape(clip.get("problem") or "no picture")}</div>'
    )
    return (
        f"<figure>{picture}<figcaption><b>{html.escape(clip['clip_id'])}</b>"
        f"{html.escape(clip['caption'])}</figcaption></figure>"
    )


def page(title: str, batches: Iterable[dict[str, Any]]) -> str:
    """Return the page of these micro-batches, records of `plan show`, in the order of steps."""
    parts: list[str] = []
    step = None
    count = 0
    for batch in batches:
        if batch["step"] != step:
            step = batch["step"]
            parts.append(f'<h2 id="step-{step}">Step {step:,} · {html.escape(batch["stage"])}</h2>')
        rank = f", rank {batch['rank']}" if "rank" in batch else ""
        parts.append(f"<h3>micro-batch {batch['position']:,} · {html.escape(batch['cell'])}{rank}</h3>")
        parts.append(f'<div class="clips">{"".join(map(_clip, batch["clips"]))}</div>')
        count += len(batch["clips"])
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>"
        f'<h1>{html.escape(title)}</h1><p class="about">{count:,} clips, as they are read: the picture is '
        "the first frame that the model is shown.</p>"
        f"{''.join(parts)}</body></html>\n"
    )
