"""Prompt check: measure from frames what moved where in a demo clip.

No model: the moving thing differs from the background in some frames and not in others; its colour is the
nearest named colour, its way the path of its centre.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vidcurate.curation.demo_data.choose import MAIN_COLOURS
from vidcurate.curation.demo_data.scene import COLOURS, MOTIONS, Scene

_STANDS_OUT = 0.15  # of full scale, above the background: twice the compression noise at 64 px
_SHORTEST_WAY = 0.08  # of the frame; a centre that moves less is at rest


def _salience(frames: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return (T, H, W): how far each pixel is from the background's colour, 0 to 1."""
    pixels = frames.astype(np.float64) / 255.0
    background = np.median(pixels.reshape(-1, 3), axis=0)
    distance: NDArray[np.float64] = np.abs(pixels - background).max(axis=3)
    return distance


def _colour(frames: NDArray[np.uint8], weight: NDArray[np.float64], colours: Sequence[str]) -> str | None:
    """Return the named colour that is nearest to most of the weighted pixels."""
    chosen = weight > 0
    if not chosen.any():
        return None
    pixels = frames[chosen].astype(np.float64)
    named = np.array([COLOURS[name] for name in colours], dtype=np.float64)
    # Brightness apart: a blurred edge is a darker shade of the same colour.
    pixels /= np.linalg.norm(pixels, axis=1, keepdims=True) + 1e-9
    named /= np.linalg.norm(named, axis=1, keepdims=True)
    votes = np.bincount(np.argmax(pixels @ named.T, axis=1), weights=weight[chosen], minlength=len(colours))
    return colours[int(np.argmax(votes))]


def _way(weight: NDArray[np.float64]) -> tuple[float, float]:
    """Return how far the weight's centre travels over the clip, (x, y) in shares of the frame."""
    num_frames, height, width = weight.shape
    mass = weight.sum(axis=(1, 2))
    seen = mass > 0.1 * mass.max(initial=0.0)
    if num_frames < 2 or seen.sum() < 2:
        return 0.0, 0.0
    time = np.arange(num_frames)[seen]
    rows = (weight.sum(axis=2) @ (np.arange(height) + 0.5))[seen] / mass[seen] / height
    columns = (weight.sum(axis=1) @ (np.arange(width) + 0.5))[seen] / mass[seen] / width
    spread = time - np.average(time, weights=mass[seen])
    total = np.sum(mass[seen] * spread**2)
    x, y = (np.sum(mass[seen] * spread * line) / total * (num_frames - 1) for line in (columns, rows))
    return float(x), float(y)


def follows(frames: NDArray[np.uint8], truth: Scene, *, colours: Sequence[str] = ()) -> dict[str, Any]:
    """Return what uint8 RGB frames (T, H, W, 3) show of the scene's first thing, compared with the truth.

    Keys: `colour` (None when nothing stands out), `motion`, `way` (x, y in shares of the frame over the
    clip), `is_colour_right`, `is_motion_right`. `colours` are the names to choose from: by default the four
    of the easy clips, all eight when the truth is another; chance is one in their number, and one in four for
    a motion.
    """
    wanted = truth.things[0]
    if not colours:
        colours = MAIN_COLOURS if wanted.colour in MAIN_COLOURS else tuple(COLOURS)
    salience = _salience(frames)
    # What stands there most of the time rests. A slow thing covers the middle of its way half of the time.
    resting = np.quantile(salience, 0.2, axis=0, method="lower")
    moving = np.where(salience - resting > _STANDS_OUT, salience - resting, 0.0)
    is_moving = moving.sum() > 0.002 * moving.size
    weight = moving if is_moving else np.where(salience > _STANDS_OUT, salience, 0.0)
    x, y = _way(moving) if is_moving else (0.0, 0.0)
    motion = "still"
    if max(abs(x), abs(y)) >= _SHORTEST_WAY:
        step = (int(np.sign(x)), 0) if abs(x) >= abs(y) else (0, int(np.sign(y)))
        motion = next(name for name, way in MOTIONS.items() if way == step)
    colour = _colour(frames, weight, colours)
    return {
        "colour": colour,
        "motion": motion,
        "way": (round(x, 4), round(y, 4)),
        "is_colour_right": colour == wanted.colour,
        "is_motion_right": motion == wanted.motion,
    }
