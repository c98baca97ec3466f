"""Scene cuts inside a clip, by PySceneDetect's AdaptiveDetector.

The defaults are the best of its published benchmark: threshold 3.5, window 3, at least 0.6 s between cuts.
The detector alone reports nothing for the first and last frames of a clip, where a clip that was cut one
frame late shows its neighbour (PySceneDetect 431). So the first frame is repeated before the clip and the
last one after.
"""

from typing import Any

import numpy as np
from scenedetect.common import FrameTimecode
from scenedetect.detectors import AdaptiveDetector

from vidcurate.curation.frame_scores.scorer import Columns, FrameView, Pixels, rounded

_TICKS_PER_SECOND = 1_000_000  # time stamps in ticks: supports variable frame rates


class Cuts:
    def __init__(self, threshold: float, window_frames: int, min_scene_seconds: float) -> None:
        self._detector: Any = AdaptiveDetector(
            adaptive_threshold=threshold,
            window_width=window_frames,
            min_scene_len=max(1, round(min_scene_seconds * _TICKS_PER_SECOND)),
        )
        self._window = window_frames
        self._lead_ticks = round((min_scene_seconds + 1) * _TICKS_PER_SECOND)
        self._tick = -1
        self._last: Pixels | None = None
        self._found: list[float] = []

    def _show(self, bgr: Pixels, tick: int = 0) -> None:
        self._tick = max(self._tick + 1, tick)  # no two frames share one
        now = FrameTimecode(self._tick, float(_TICKS_PER_SECOND))
        for cut in self._detector.process_frame(now, bgr):
            self._found.append(rounded((cut.frame_num - self._lead_ticks) / _TICKS_PER_SECOND))

    def see(self, look: FrameView) -> None:
        if self._last is None:
            for _ in range(self._window + 1):
                self._show(look.bgr)
        self._last = look.bgr
        self._show(look.bgr, self._lead_ticks + round(look.seconds * _TICKS_PER_SECOND))

    def finish(self, end_seconds: float) -> Columns:
        for _ in range(self._window):
            self._show(np.asarray(self._last))
        return {"num_cuts": len(self._found), "cut_seconds": self._found}
