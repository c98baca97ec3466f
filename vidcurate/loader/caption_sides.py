"""Caption sides: find captions that mention left or right, false when mirrored.

English words. A light module: decode workers import it.
"""

import re

_SIDE = re.compile(
    r"\b(?:left|right)(?:s|most|wards?|-?hand(?:ed)?)?\b|\b(?:anti-?|counter-?)?clockwise\b", re.IGNORECASE
)


def mentions_left_or_right(caption: str) -> bool:
    """Return whether a caption contains left, right, clockwise or a related word, in any sense."""
    return _SIDE.search(caption) is not None
