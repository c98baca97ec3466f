"""Whether a caption names a side, so that it would be false of the mirrored picture. English words."""

import re

_SIDE = re.compile(
    r"\b(?:left|right)(?:s|most|wards?|-?hand(?:ed)?)?\b|\b(?:anti-?|counter-?)?clockwise\b", re.IGNORECASE
)


def names_a_side(caption: str) -> bool:
    """Say whether a caption has left, right, clockwise or one of their kin, in whatever sense."""
    return _SIDE.search(caption) is not None
