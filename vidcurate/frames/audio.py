"""How loud is the clip at its loudest? The peak of the first audio stream, in dB below full scale."""

from math import log10
from typing import Any

import numpy as np

from vidcurate.frames.look import Columns, rounded

SILENT_DBFS = -60.0
_FLOOR_DBFS = -120.0  # digital silence


def peak(samples: np.ndarray[Any, Any]) -> float:
    """Return the largest magnitude of the samples of any FFmpeg format, 1.0 at full scale."""
    if samples.size == 0:
        return 0.0
    if samples.dtype.kind == "f":
        return float(np.nan_to_num(np.abs(samples), posinf=1.0).max())
    if samples.dtype.kind == "u":  # 8-bit samples swing around 128
        return float(np.abs(samples.astype(np.int16) - 128).max()) / 128
    return max(abs(int(samples.min())), int(samples.max())) / -float(np.iinfo(samples.dtype).min)


class Audio:
    def __init__(self) -> None:
        self._peak: float | None = None

    def hear(self, samples: np.ndarray[Any, Any]) -> None:
        self._peak = max(self._peak or 0.0, peak(samples))

    def columns(self) -> Columns:
        if self._peak is None:
            return {"audio_peak_dbfs": None, "is_audio_silent": None}
        level = max(_FLOOR_DBFS, 20 * log10(self._peak)) if self._peak > 0 else _FLOOR_DBFS
        return {"audio_peak_dbfs": rounded(level), "is_audio_silent": level <= SILENT_DBFS}
