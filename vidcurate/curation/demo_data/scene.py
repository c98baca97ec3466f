"""Demo scene: renders the caption and the frames of a clip from one description.

Positions and distances are shares of the frame (x to the right, y down), sizes are shares of the shorter
side. Only the first thing of a scene may move.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (228, 38, 38),
    "green": (36, 190, 66),
    "blue": (48, 92, 244),
    "yellow": (240, 214, 40),
    "white": (240, 240, 240),
    "purple": (164, 60, 214),
    "orange": (246, 136, 24),
    "cyan": (36, 206, 214),
}
BACKGROUNDS: dict[str, tuple[int, int, int]] = {
    "dark": (16, 16, 20),
    "grey": (62, 62, 66),
    "dark blue": (14, 20, 56),
    "dark green": (10, 42, 24),
}
SHAPES = ("circle", "square", "triangle", "diamond", "ring", "cross")
# The step of each motion: x to the right, y down.
MOTIONS: dict[str, tuple[int, int]] = {
    "right": (1, 0),
    "left": (-1, 0),
    "up": (0, -1),
    "down": (0, 1),
    "still": (0, 0),
}
Floats = NDArray[np.float64]
_NUMBERS = {1: "a", 2: "two", 3: "three"}
_GAP = 1.2  # between centres of things in one group, in sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    """Group of `count` equal shapes; (`x`, `y`) is the middle of the path, `reach` its length."""

    shape: str
    colour: str
    motion: str = "still"
    count: int = 1
    x: float = 0.5
    y: float = 0.5
    reach: float = 0.56
    size: float = 0.34


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Scene: things on a plain background; `names_background`: the caption mentions the background."""

    things: tuple[Thing, ...]
    background: str = "dark"
    names_background: bool = False


def scene_from(fields: Mapping[str, Any]) -> Scene:
    """Return the scene of `fields` (from `dataclasses.asdict`, as in truth.json)."""
    things = tuple(Thing(**thing) for thing in fields["things"])
    return Scene(things=things, background=fields["background"], names_background=fields["names_background"])


# ── words ───────────────────────────────────────────────────────────────────────────────────────────────


def _plural(shape: str) -> str:
    return shape + ("es" if shape == "cross" else "s")


def _named(thing: Thing) -> str:
    number = "an" if thing.count == 1 and thing.colour[0] in "aeiou" else _NUMBERS[thing.count]
    return f"{number} {thing.colour} {thing.shape if thing.count == 1 else _plural(thing.shape)}"


def _moves(thing: Thing) -> str:
    ending = "s" if thing.count == 1 else ""
    if thing.motion == "still":
        return f"stay{ending} still"
    way = f"to the {thing.motion}" if thing.motion in ("left", "right") else thing.motion
    return f"move{ending} {way}"


def _relation(mover: Thing, others: tuple[Thing, ...]) -> str:
    if mover.motion in ("up", "down"):
        return "beside"  # it may pass from one side of the others to the other
    if all(mover.y < other.y for other in others):
        return "above"
    return "below" if all(mover.y > other.y for other in others) else "beside"


def caption(scene: Scene) -> str:
    """Return one true English sentence about the scene; more things give more nouns."""
    mover, *others = scene.things
    text = f"{_named(mover)} {_moves(mover)}"
    if others:
        names = [_named(other) for other in others]
        listed = ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else names[0]
        text += f" {_relation(mover, tuple(others))} {listed}"
    if scene.names_background:
        # Two more nouns keep the families apart even if a tagger counts "moves" or "right" as a noun.
        text += f" on a {scene.background} background of one colour"
    return f"{text[0].upper()}{text[1:]}."


# ── pixels ──────────────────────────────────────────────────────────────────────────────────────────────


def _length(x: Floats, y: Floats) -> Floats:
    length: Floats = np.sqrt(x * x + y * y)  # unlike hypot, rounded the same on every machine
    return length


def _distance(shape: str, x: Floats, y: Floats, radius: float) -> Floats:
    """Return how far (x, y), in px from the centre, lies outside the shape's edge; negative inside."""
    far, near = np.maximum(np.abs(x), np.abs(y)), np.minimum(np.abs(x), np.abs(y))
    distances: dict[str, Callable[[], Floats]] = {
        "circle": lambda: _length(x, y) - radius,
        "ring": lambda: np.abs(_length(x, y) - 0.75 * radius) - 0.25 * radius,
        "square": lambda: far - 0.86 * radius,
        "diamond": lambda: (far + near - 1.1 * radius) / 2.0**0.5,
        "cross": lambda: np.maximum(near - 0.34 * radius, far - radius),
        # A point at the top, a flat side at the bottom.
        "triangle": lambda: np.maximum(
            (1.8 * np.abs(x) - 0.9 * (y + radius)) / (0.9 * 5.0**0.5), y - 0.85 * radius
        ),
    }
    if shape in distances:
        return distances[shape]()
    raise ValueError(f"{shape}: unknown shape. Shapes: {', '.join(SHAPES)}.")


def _centres(thing: Thing, share: float, height: int, width: int) -> list[tuple[float, float]]:
    """Return the (x, y) in px of each of the thing's shapes when `share` of the clip has gone by."""
    step_x, step_y = MOTIONS[thing.motion]
    along = (share - 0.5) * thing.reach
    x, y = (thing.x + step_x * along) * width, (thing.y + step_y * along) * height
    gap = _GAP * thing.size * min(height, width)
    centres = []
    for number in range(thing.count):
        aside = (number - (thing.count - 1) / 2) * gap
        # Those that go together stand across their way, so that they never cover each other.
        centres.append((x, y + aside) if step_x else (x + aside, y))
    return centres


def render_clip(scene: Scene, *, num_frames: int, height: int, width: int) -> NDArray[np.uint8]:
    """Return the scene as uint8 RGB frames (T, height, width, 3) with edges smoothed over one pixel."""
    rows, columns = np.mgrid[0:height, 0:width] + 0.5
    frames = np.empty((num_frames, height, width, 3), dtype=np.uint8)
    for number in range(num_frames):
        share = number / (num_frames - 1) if num_frames > 1 else 0.5
        image = np.empty((height, width, 3))
        image[:] = BACKGROUNDS[scene.background]
        for thing in scene.things:
            radius = thing.size * min(height, width) / 2
            for x, y in _centres(thing, share, height, width):
                cover = np.clip(0.5 - _distance(thing.shape, columns - x, rows - y, radius), 0.0, 1.0)
                image += cover[..., None] * (np.array(COLOURS[thing.colour], dtype=np.float64) - image)
        frames[number] = np.rint(image)
    return frames
