"""Rotation in a display orientation message (SEI) of H.264 and HEVC.

FFmpeg's decoder turns pictures by this message and not by the container's matrix where both exist. Sources:
ITU-T H.264 §D.1.27, §D.2.27 and H.265 §D.2.17, §D.3.17.
"""

import math
from collections.abc import Iterator
from typing import Any

from vidcurate.media.coded_units.units import CODECS, Bits, length_bytes_of, unescaped, units_of
from vidcurate.media.container import codec_of

_ORIENTATION = 47
_H264_SEI, _HEVC_SEI = 6, (39, 40)
_TURN = 1 << 16


def _messages(payload: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (type, content) of the messages of one unit."""
    at = 0
    while at + 2 < len(payload):
        numbers = []
        for _ in range(2):
            value = 0
            while at < len(payload) and payload[at] == 0xFF:
                value, at = value + 255, at + 1
            if at >= len(payload):
                return
            numbers.append(value + payload[at])
            at += 1
        yield numbers[0], payload[at : at + numbers[1]]
        at += numbers[1]


def rotation_degrees(stream: Any, first_packet: bytes) -> int | None:
    """Return the clockwise rotation (0, 90, 180, 270) that shows the clip upright; None without a message.

    The container's rotation then holds. A flip counts as FFmpeg's decoder applies it: after the rotation.
    """
    codec = codec_of(stream)
    if codec not in CODECS:
        return None
    head_bytes = 1 if codec == "h264" else 2
    for unit in units_of(first_packet, length_bytes_of(stream)):
        kind = unit[0] & 0x1F if unit and codec == "h264" else unit[0] >> 1 & 0x3F if unit else -1
        if kind != _H264_SEI if codec == "h264" else kind not in _HEVC_SEI:
            continue
        for message, content in _messages(unescaped(unit[head_bytes:])):
            if message != _ORIENTATION:
                continue
            try:
                return _rotation(Bits(content))
            except ValueError:
                return None
    return None


def _rotation(bits: Bits) -> int | None:
    is_cancelled, flips_left_right, flips_up_down, angle = bits.u(1), bits.u(1), bits.u(1), bits.u(16)
    if is_cancelled or not (angle or flips_left_right or flips_up_down):
        return None
    clockwise = math.radians(angle / _TURN * 360) * (-1 if flips_left_right == flips_up_down else 1)
    first = math.cos(clockwise) * (-1 if flips_left_right else 1)
    second = math.sin(clockwise) * (-1 if flips_up_down else 1)
    return round(math.degrees(math.atan2(second, first)) / 90) * 90 % 360
