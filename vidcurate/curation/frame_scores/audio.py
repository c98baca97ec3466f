"""Audio silence: decode the first audio stream until a sample is audible."""

from typing import Any

import numpy as np

from vidcurate.curation.frame_scores.scorer import Columns

SILENT_DBFS = -60.0
_QUIET = 10 ** (SILENT_DBFS / 20)


def peak(samples: np.ndarray[Any, Any]) -> float:
    """Return the largest magnitude of the samples of any FFmpeg format, 1.0 at full scale."""
    if samples.size == 0:
        return 0.0
    if samples.dtype.kind == "f":
        return float(np.nanmax(np.abs(samples), initial=0.0))
    if samples.dtype.kind == "u":  # 8-bit samples swing around 128
        return float(np.abs(samples.astype(np.int16) - 128).max()) / 128
    return max(abs(int(samples.min())), int(samples.max())) / -float(np.iinfo(samples.dtype).min)


class Audio:
    """Silence of a clip's audio; `is_silent` is None until the first sample."""

    def __init__(self) -> None:
        self.is_silent: bool | None = None

    def hear(self, samples: np.ndarray[Any, Any]) -> None:
        self.is_silent = peak(samples) <= _QUIET and self.is_silent is not False

    def columns(self) -> Columns:
        return {"is_audio_silent": self.is_silent}
