"""Captions that mention left or right: they are false of a mirrored picture.

English words. A light module: decode workers import it.
"""

import re

_SIDE = re.compile(
    r"\b(?:left|right)(?:s|most|wards?|-?hand(?:ed)?)?\b|\b(?:anti-?|counter-?)?clockwise\b", re.IGNORECASE
)


def mentions_left_or_right(caption: str) -> bool:
    """Say whether a caption has left, right, clockwise or one of their kin, in whatever sense."""
    return _SIDE.search(caption) is not None
