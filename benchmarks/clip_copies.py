"""Copies of a clip as they are found in the wild: frames changed, and how they are written."""

from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

Frames = NDArray[np.uint8]


def _resized(frames: Frames, scale: float) -> Frames:
    height, width = (max(32, round(side * scale)) for side in frames.shape[1:3])
    return np.stack([cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA) for image in frames])


def _boxed(frames: Frames, share: float) -> Frames:
    bar = max(2, round(frames.shape[1] * share))
    return np.pad(frames, ((0, 0), (bar, bar), (0, 0), (0, 0)))


def _window_boxed(frames: Frames, share: float) -> Frames:
    rows, columns = (max(2, round(side * share)) for side in frames.shape[1:3])
    return np.pad(frames, ((0, 0), (rows, rows), (columns, columns), (0, 0)))


def _bright(frames: Frames, factor: float, shift: float) -> Frames:
    return np.clip(frames.astype(np.float32) * factor + shift, 0, 255).astype(np.uint8)


def _marked(frames: Frames) -> Frames:
    marked = frames.copy()
    height, width = frames.shape[1:3]
    marked[:, -height // 10 - 4 : -4, 4 : 4 + width // 4] = 230  # a light label in a corner
    return marked


def _cropped(frames: Frames, share: float) -> Frames:
    rows, columns = (round(side * share) for side in frames.shape[1:3])
    return frames[:, rows : frames.shape[1] - rows, columns : frames.shape[2] - columns]


def _trimmed(frames: Frames, head: float, tail: float) -> Frames:
    count = len(frames)
    return frames[round(count * head) : max(round(count * (1 - tail)), 1)]


# What is done to the pictures, and how they are written.
COPIES: dict[str, tuple[Callable[[Frames], Frames], dict[str, Any]]] = {
    "re-encoded, crf 35": (lambda frames: frames, {"crf": 35}),
    "re-encoded in VP9": (lambda frames: frames, {"codec": "libvpx-vp9", "crf": 40, "suffix": ".webm"}),
    "half size": (lambda frames: _resized(frames, 0.5), {}),
    "squeezed to square": (
        lambda frames: np.stack(
            [cv2.resize(image, (128, 128), interpolation=cv2.INTER_AREA) for image in frames]
        ),
        {},
    ),
    "half the frame rate": (lambda frames: frames[::2], {"fps": 12.0}),
    "trimmed by 5 % at the start": (lambda frames: _trimmed(frames, 0.05, 0), {}),
    "trimmed by 10 % at both ends": (lambda frames: _trimmed(frames, 0.1, 0.1), {}),
    "rotated by 90": (lambda frames: np.rot90(frames, -1, (1, 2)), {}),
    "rotated by 180": (lambda frames: np.rot90(frames, 2, (1, 2)), {}),
    "rotated by 270": (lambda frames: np.rot90(frames, 1, (1, 2)), {}),
    "mirrored": (lambda frames: frames[:, :, ::-1], {}),
    "mirrored, rotated by 90, crf 35": (lambda frames: np.rot90(frames[:, :, ::-1], -1, (1, 2)), {"crf": 35}),
    "brighter": (lambda frames: _bright(frames, 1.15, 12), {}),
    "less contrast": (lambda frames: _bright(frames, 0.7, 20), {}),
    "a label in a corner": (_marked, {}),
    "black bars of 6 %": (lambda frames: _boxed(frames, 0.06), {}),
    "black bars of 15 %": (lambda frames: _boxed(frames, 0.15), {}),
    "black bars of 12 % on all sides": (lambda frames: _window_boxed(frames, 0.12), {}),
    "cropped by 5 % on each side": (lambda frames: _cropped(frames, 0.05), {}),
}


def spliced(before: Frames, behind: Frames) -> Frames:
    """Return the frames with half as many of the other clip behind them, in their size."""
    height, width = before.shape[1:3]
    tail = behind[: max(len(before) // 2, 1)]
    return np.concatenate([before, [cv2.resize(frame, (width, height)) for frame in tail]])
