"""Display times of decoded frames, also of reordered ones in AVI.

AVI has no display times. For reordered pictures of H.264 and HEVC, and for MPEG-4 whose packets hold two
pictures (DivX's and Xvid's packed bitstream), FFmpeg guesses them wrongly: frames come out of order. The
right ones are the decoding times of the packets, in rising order.
"""

import heapq
import re
from typing import Any

from vidcurate.media.coded_units.leading_pictures import LeadingPictures
from vidcurate.media.coded_units.units import CODECS
from vidcurate.media.container import codec_of

# The user data by which FFmpeg's decoder knows a packed bitstream.
_PACKED = re.compile(rb"DivX\d+(?:Build|b)\d+p")


def are_guessed(container: Any, stream: Any) -> bool:
    """Return whether FFmpeg guesses the display times; a seek by time then leads nowhere."""
    if container.format.name != "avi":
        return False
    if codec_of(stream) == "mpeg4":
        return _PACKED.search(bytes(stream.codec_context.extradata or b"")) is not None
    return codec_of(stream) in CODECS and bool(stream.codec_context.has_b_frames)


class DisplayTimes:
    """Times of frames in seconds on the file's clock, decoded from the start where `are_guessed`."""

    def __init__(self, container: Any, stream: Any) -> None:
        self._base = stream.time_base if are_guessed(container, stream) else None
        self._leading = LeadingPictures(container, stream)
        self._waiting: list[int] = []

    def add(self, packet: Any) -> None:
        """Take a video packet before it is decoded."""
        if self._base and packet.size and packet.dts is not None and not self._leading.is_undecodable(packet):
            heapq.heappush(self._waiting, packet.dts)

    def of(self, frame: Any) -> float | None:
        """Return the time of the next frame that the decoder gives, None without one."""
        if self._base is None:
            return None if frame.time is None else float(frame.time)
        return float(heapq.heappop(self._waiting) * self._base) if self._waiting else None
