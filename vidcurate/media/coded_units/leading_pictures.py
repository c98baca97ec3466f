"""Leading pictures at the start of a clip: packets that no decoder decodes.

In an open GOP, pictures that follow a key frame in decoding order and precede it in display order refer to
pictures before the key frame. A copy that begins at this key frame lacks those, and players show the clip
from the key frame on. Sources: ITU-T H.264 §7.4.1.2.4 (only an IDR picture closes), H.265 §7.4.2.2 and
§8.1.3 (RASL pictures of a first CRA or BLA picture are not output); ISO/IEC 13818-2 §6.3.8 (closed_gop) and
14496-2 §6.2.5 (MPEG-4 part 2, where FFmpeg's decoder leaves the B pictures out in a closed group too).
"""

from typing import Any

from vidcurate.media.coded_units.units import (
    B_SLICE,
    CODECS,
    H264_IDR,
    length_bytes_of,
    mpeg_picture,
    slice_types,
    units_of,
)
from vidcurate.media.container import codec_of

_HEVC_OPEN, _HEVC_RASL, _HEVC_PICTURES = (16, 17, 18, 21), (8, 9), range(32)
_MPEG = ("mpeg1video", "mpeg2video", "mpeg4")


class LeadingPictures:
    """Tell, packet by packet in decoding order, which ones lead the first key frame and do not decode.

    AVI has no display times of its own. There, in MPEG-1, 2 and 4, and where a packet has no time, the B
    pictures that directly follow the key frame are the leading ones. `is_open`: the first key frame, once
    seen, may have leading pictures.
    """

    def __init__(self, container: Any, stream: Any) -> None:
        self._codec = codec_of(stream)
        self._has_times = container.format.name != "avi" and self._codec == "h264"
        self._length_bytes = length_bytes_of(stream) if self._codec in CODECS else 0
        self._is_over = self._codec not in (*CODECS, *_MPEG)
        self._key_time: int | None = None
        self.is_open = False

    def opens(self, first_packet: bytes, second_packet: bytes | None = None) -> bool:
        """Return whether leading pictures may follow a clip's first packet; its second one tells more."""
        if self._codec in _MPEG:
            kind, is_closed = mpeg_picture(self._codec, first_packet)
            is_led = second_packet is None or self._holds_b_pictures(second_packet)
            return kind is not None and not is_closed and is_led
        types = self._types(first_packet)
        if self._codec == "h264":
            return bool(types) and H264_IDR not in types
        return self._codec == "hevc" and any(kind in _HEVC_OPEN for kind in types)

    def is_undecodable(self, packet: Any) -> bool:
        """Return whether a packet holds a leading picture of the first key frame that no decoder decodes."""
        if self._is_over or not packet.size:
            return False
        data = bytes(packet)
        if not self.is_open:
            if packet.is_keyframe:
                self.is_open, self._key_time = self.opens(data), packet.pts
                self._is_over = not self.is_open
            return False
        if self._codec == "hevc":
            types = self._types(data)
            self._is_over = any(kind >= 16 for kind in types)
            return any(kind in _HEVC_RASL for kind in types)
        if self._has_times and packet.pts is not None and self._key_time is not None:
            is_leading = bool(packet.pts < self._key_time)
        else:
            is_leading = self._holds_b_pictures(data)
        self._is_over = not is_leading
        return is_leading

    def _types(self, data: bytes) -> list[int]:
        """Return the types of the units that hold slices."""
        heads = [unit[0] for unit in units_of(data, self._length_bytes) if unit]
        if self._codec == "h264":
            return [head & 0x1F for head in heads if head & 0x1F in (1, H264_IDR)]
        return [head >> 1 & 0x3F for head in heads if head >> 1 & 0x3F in _HEVC_PICTURES]

    def _holds_b_pictures(self, data: bytes) -> bool:
        if self._codec in _MPEG:
            return mpeg_picture(self._codec, data)[0] == "B"
        types = slice_types(data, self._length_bytes)
        return bool(types) and all(kind == B_SLICE for kind in types)
