"""How a width that is no power of two is cut in two that are."""


def pieces(width: int, least: int) -> tuple[int, int]:
    """Return (first, second): powers of two of at least `least` that together cover `width`; second may be 0.

    `width` itself when it is a power of two; else the largest power of two below it, and the smallest that
    covers the rest: 72 → 64 + 16 with least 16, 1152 → 1024 + 128.
    """
    first = max(least, 1 << (width.bit_length() - 1))
    rest = max(0, width - first)
    return first, max(least, 1 << (rest - 1).bit_length()) if rest else 0
