"""Text area: share of the frame that is written text, by DBNet on the CPU.

DBNet (Liao et al. 2020) as ONNX, run by OpenCV. The net marks the inner part of each line of text; boxes
around the marks are expanded as in the paper, and the share counts each covered pixel once. Any DBNet with
input (1, 3, H, W) and output (1, 1, H, W) works, such as PP-OCR's detection models.
"""

from pathlib import Path

import cv2
import numpy as np

from vidcurate.curation.model_scores.frames import Frames, Vectors, reason_of
from vidcurate.errors import InputError

_STRIDE = 32
_MEAN, _DEVIATION = (
    np.array(of_colours, np.float32) for of_colours in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
)
_UNCLIP = 1.6
_SMALLEST_PX = 3
_BOX_CHANCE = 0.5


class TextDetector:
    """Text detector: a DBNet loaded from an ONNX file."""

    def __init__(self, path: Path, threshold: float) -> None:
        """Load the net and run it once. Raises InputError for a file that is not a DBNet for OpenCV."""
        try:
            self.net = cv2.dnn.readNetFromONNX(str(path))
            self.threshold = threshold
            chances = self._chances(np.zeros((64, 96, 3), np.uint8))
        except cv2.error as error:
            raise InputError(
                f"models.text_detector is {path}: no ONNX net that OpenCV runs ({reason_of(error)})."
            ) from error
        if chances.shape != (64, 96):
            raise InputError(
                f"models.text_detector is {path}: it gives {chances.shape} for a picture of (64, 96); a "
                "DBNet gives a probability for each pixel."
            )

    def _chances(self, image: Frames) -> Vectors:
        numbers = (image.astype(np.float32) / 255 - _MEAN) / _DEVIATION
        self.net.setInput(np.ascontiguousarray(numbers.transpose(2, 0, 1)[None]))
        result: Vectors = np.squeeze(self.net.forward())
        return result

    def share(self, image: Frames) -> float:
        """Return the share of `image` (uint8, H, W, 3) that is text, 0 to 1."""
        height, width = (max(_STRIDE, round(side / _STRIDE) * _STRIDE) for side in image.shape[:2])
        chances = self._chances(cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA))
        marks = (chances > self.threshold).astype(np.uint8)
        covered = np.zeros((height, width), np.uint8)
        for outline in cv2.findContours(marks, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)[0]:
            (x, y), (a, b), angle = cv2.minAreaRect(outline)
            inside = np.zeros_like(marks)
            cv2.fillPoly(inside, [outline], 1)
            if min(a, b) < _SMALLEST_PX or chances[inside > 0].mean() < _BOX_CHANCE:
                continue
            grow = 2 * _UNCLIP * a * b / (2 * (a + b))
            box = cv2.boxPoints(((x, y), (a + grow, b + grow), angle))
            cv2.fillPoly(covered, [np.rint(box).astype(np.int32)], 1)
        return float(covered.mean())

    def shares(self, frames: Frames) -> Vectors:
        """Return `share` of each of `frames` (N, H, W, 3), float32 (N,)."""
        return np.array([self.share(image) for image in frames], dtype=np.float32)
