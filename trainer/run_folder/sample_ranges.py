"""Ranges of a sampled clip's numbers: for `sample` and the requests of `serve`."""

# name → (kind, least, most)
RANGES: dict[str, tuple[type, float, float]] = {
    "seed": (int, 0, 2**63 - 1),
    "num_frames": (int, 1, 10_000),
    "height": (int, 2, 10_000),
    "width": (int, 2, 10_000),
    "steps": (int, 1, 1000),
    "guidance": (float, 0, 100),
    "fps": (float, 0.1, 240),
}


def number_fault(name: str, value: object) -> str:
    """Return what is needed instead of this value; "" for a number in its range."""
    kind, least, most = RANGES[name]
    is_number = isinstance(value, (int, float) if kind is float else int) and not isinstance(value, bool)
    if is_number and least <= value <= most:  # type: ignore[operator]  # nor is NaN
        return ""
    word = "a whole number" if kind is int else "a number"
    return f"{word} from {least:g} to {most:g} is needed"


def text_fault(text: str) -> str:
    """Return what is wrong with a text that UTF-8 cannot hold, or ""."""
    is_half = any("\ud800" <= letter <= "\udfff" for letter in text)
    return "has half of a surrogate pair; Unicode text is needed" if is_half else ""
