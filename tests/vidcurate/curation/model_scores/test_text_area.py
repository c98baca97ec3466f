"""How much of a picture is written text, by a net of DBNet's form."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from tests.onnx_net import onnx_net


def test_the_area_of_text_is_that_of_the_boxes(tmp_path: Path) -> None:
    from vidcurate.curation.model_scores.text_area import TextDetector

    detector = TextDetector(onnx_net(tmp_path / "bright.onnx"), threshold=0.3)
    image = np.full((192, 320, 3), 20, np.uint8)
    assert detector.share(image) == 0
    image[80:100, 60:260] = 250  # a line of 20 x 200: grown by 1.6 * 4000 / 440 = 14.5 px on each side
    expected = (20 + 2 * 14.5) * (200 + 2 * 14.5) / (192 * 320)
    assert detector.share(image) == pytest.approx(expected, rel=0.1)
    image[150:170, 60:260] = 250
    assert detector.share(image) == pytest.approx(2 * expected, rel=0.1)


@pytest.mark.engine
def test_text_is_found_by_a_real_detector() -> None:
    """PP-OCR's detection model, where the package that ships it is installed."""
    found = importlib.util.find_spec("rapidocr")
    if found is None or found.origin is None:
        pytest.skip("rapidocr is not installed: no real DBNet at hand; the made one covers the same code")
    import cv2

    from vidcurate.curation.model_scores.text_area import TextDetector

    (model,) = sorted((Path(found.origin).parent / "models").glob("*det*.onnx"))[:1]
    detector = TextDetector(model, threshold=0.3)
    image = np.full((448, 800, 3), 60, np.uint8)
    assert detector.share(image) == 0
    cv2.putText(image, "BREAKING NEWS", (100, 240), cv2.FONT_HERSHEY_SIMPLEX, 2.4, (255, 255, 255), 5)
    assert 0.05 < detector.share(image) < 0.25
