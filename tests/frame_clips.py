"""Clips whose motion, blur, bars and cuts are known, as frames uint8 RGB (T, H, W, 3)."""

import cv2
import numpy as np
from numpy.typing import NDArray

Frames = NDArray[np.uint8]


def texture(height: int, width: int, seed: int = 0) -> NDArray[np.float32]:
    """Return a picture with something to see at every scale, 18 to 238."""
    rng = np.random.default_rng(seed)
    out = np.zeros((height, width, 3), np.float32)
    for size in (4, 8, 16, 32, 64):
        coarse = rng.normal(size=(height // size + 2, width // size + 2, 3)).astype(np.float32)
        out += cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC) * size**0.5
    return (out - out.min()) / (out.max() - out.min()) * 220 + 18


def panned(
    step_x: float,
    step_y: float,
    num_frames: int = 24,
    height: int = 288,
    width: int = 512,
    seed: int = 0,
) -> Frames:
    """Return a texture that moves by (step_x, step_y) px a frame; the picture is new at every edge."""
    reach_x, reach_y = (int(abs(step) * num_frames) + 2 for step in (step_x, step_y))
    base = texture(height + reach_y, width + reach_x, seed)
    frames = []
    for number in range(num_frames):
        x = step_x * number + (reach_x if step_x < 0 else 0)
        y = step_y * number + (reach_y if step_y < 0 else 0)
        move = np.array([[1, 0, -x], [0, 1, -y]], dtype=np.float32)
        frames.append(cv2.warpAffine(base, move, (width, height), flags=cv2.INTER_LINEAR))
    return np.rint(np.clip(frames, 0, 255)).astype(np.uint8)


def still(num_frames: int = 24, height: int = 288, width: int = 512, seed: int = 0) -> Frames:
    return np.rint(np.stack([texture(height, width, seed)] * num_frames)).astype(np.uint8)


def shapes(height: int = 576, width: int = 1024, contrast: float = 1.0) -> NDArray[np.float32]:
    """Return one picture of sharp discs on grey."""
    rng = np.random.default_rng(1)
    image = np.full((height, width, 3), 60, np.float32)
    for _ in range(30):
        colour = tuple(60 + contrast * (level - 60) for level in rng.integers(0, 255, 3).tolist())
        centre = (int(rng.integers(width)), int(rng.integers(height)))
        cv2.circle(image, centre, int(rng.integers(10, 90)), colour, -1)
    return image


def barred(frames: Frames, top: int = 0, bottom: int = 0, left: int = 0, right: int = 0) -> Frames:
    """Return the frames with black bars drawn over their borders."""
    out = frames.copy()
    height, width = frames.shape[1:3]
    out[:, :top], out[:, height - bottom :] = 0, 0
    out[:, :, :left], out[:, :, width - right :] = 0, 0
    return out
