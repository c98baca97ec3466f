"""Leading pictures at the start of a clip: packets that no decoder decodes.

In an open GOP, pictures that follow a key frame in decoding order and precede it in display order refer to
pictures before the key frame. A copy that begins at this key frame lacks those, and players show the clip
from the key frame on. Sources: ITU-T H.264 §7.4.1.2.4 (only an IDR picture closes), H.265 §7.4.2.2 and
§8.1.3 (RASL pictures of a first CRA or BLA picture are not output).
"""

from typing import Any

from vidcurate.media.coded_units.units import CODECS, Bits, length_bytes_of, unescaped, units_of
from vidcurate.media.container import codec_of

_IDR, _H264_SLICES, _B_SLICE_TYPES = 5, (1, 5), (1, 6)
_HEVC_OPEN, _HEVC_RASL, _HEVC_PICTURES = (16, 17, 18, 21), (8, 9), range(32)


class LeadingPictures:
    """Tell, packet by packet in decoding order, which ones lead the first key frame and do not decode.

    AVI has no display times of its own. There, and where a packet has no time, the B pictures that directly
    follow the key frame are the leading ones.
    """

    def __init__(self, container: Any, stream: Any) -> None:
        self._codec = codec_of(stream)
        self._has_times = container.format.name != "avi"
        self._length_bytes = length_bytes_of(stream) if self._codec in CODECS else 0
        self._is_over = self._codec not in CODECS
        self._key_time: int | None = None
        self._is_open = False

    def opens(self, first_packet: bytes) -> bool:
        """Return whether leading pictures may follow a clip's first packet."""
        types = self._types(first_packet)
        if self._codec == "h264":
            return bool(types) and _IDR not in types
        return self._codec == "hevc" and any(kind in _HEVC_OPEN for kind in types)

    def is_undecodable(self, packet: Any) -> bool:
        """Return whether a packet holds a leading picture of the first key frame that no decoder decodes."""
        if self._is_over or not packet.size:
            return False
        data = bytes(packet)
        if not self._is_open:
            if packet.is_keyframe:
                self._is_open, self._key_time = self.opens(data), packet.pts
                self._is_over = not self._is_open
            return False
        if self._codec == "hevc":
            types = self._types(data)
            self._is_over = any(kind >= 16 for kind in types)
            return any(kind in _HEVC_RASL for kind in types)
        if self._has_times and packet.pts is not None and self._key_time is not None:
            is_leading = bool(packet.pts < self._key_time)
        else:
            is_leading = self._holds_b_slices(data)
        self._is_over = not is_leading
        return is_leading

    def _types(self, data: bytes) -> list[int]:
        """Return the types of the units that hold slices."""
        heads = [unit[0] for unit in units_of(data, self._length_bytes) if unit]
        if self._codec == "h264":
            return [head & 0x1F for head in heads if head & 0x1F in _H264_SLICES]
        return [head >> 1 & 0x3F for head in heads if head >> 1 & 0x3F in _HEVC_PICTURES]

    def _holds_b_slices(self, data: bytes) -> bool:
        kinds = []
        for unit in units_of(data, self._length_bytes):
            if unit and unit[0] & 0x1F in _H264_SLICES:
                bits = Bits(unescaped(unit[1:65]))
                try:
                    bits.ue()
                    kinds.append(bits.ue())
                except ValueError:
                    return False
        return bool(kinds) and all(kind in _B_SLICE_TYPES for kind in kinds)
