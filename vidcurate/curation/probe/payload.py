"""Packet payload check: find bytes that no encoder writes, without decoding.

An encoder never writes certain things: H.264 and HEVC forbid three bytes that look like a start code inside a
unit (they escape them), the lengths of the units of a packet add up to it, and no codec of this list
writes a long run of zeros before a picture's end. A block that a disk lost is full of them.

Sources: ITU-T H.264 §7.3.1, §7.4.1.1 and H.265 §7.3.1, ISO/IEC 14496-15 §5.3.3 (lengths), RFC 6386 §9.1
(VP8), the VP9 bitstream specification §6.2.
"""

import re
from collections.abc import Callable

# Runs that never occur in what is coded by these; elsewhere (raw, PNG, screen codecs) they are usual.
_NO_ZERO_RUNS = {
    "h264",
    "hevc",
    "vp8",
    "vp9",
    "av1",
    "mpeg4",
    "mpeg2video",
    "mpeg1video",
    "h263",
    "msmpeg4v3",
}
_RUN = bytes(32)
_START = re.compile(b"\0\0\x01")
# Unit types that hold coded slices: H.264 1 and 5, HEVC 0 to 31.
_IS_SLICE: dict[str, Callable[[int], bool]] = {
    "h264": lambda first: first & 0x1F in (1, 5),
    "hevc": lambda first: first >> 1 & 0x3F < 32,
}
_LEAST_UNIT = {"h264": 1, "hevc": 2}  # bytes of a unit's head

Check = Callable[[bytes], str | None]


def _forbidden(unit: bytes) -> bool:
    """Say whether a unit holds 00 00 followed by 00, 01 or 02; zeros behind its end are allowed."""
    end = len(unit.rstrip(b"\0"))
    at = unit.find(b"\0\0", 0, end)
    while at >= 0 and at + 2 < end:
        if unit[at + 2] < 3:
            return True
        at = unit.find(b"\0\0", at + 2, end)
    return False


def _unit_problem(codec: str, unit: bytes) -> str | None:
    if len(unit) < _LEAST_UNIT[codec]:
        return "it holds an empty unit"
    if unit[0] & 0x80:
        return "a unit's forbidden bit is set"
    if _IS_SLICE[codec](unit[0]) and _forbidden(unit):
        return "a slice holds bytes that no encoder writes"
    return None


def _by_lengths(codec: str, length_bytes: int) -> Check:
    def check(packet: bytes) -> str | None:
        at = 0
        while at < len(packet):
            size = int.from_bytes(packet[at : at + length_bytes], "big")
            at += length_bytes
            if size == 0 or at + size > len(packet):
                return f"a unit of {size} bytes does not fit into its packet of {len(packet)}"
            problem = _unit_problem(codec, packet[at : at + size])
            if problem:
                return problem
            at += size
        return None

    return check


def _by_start_codes(codec: str) -> Check:
    def check(packet: bytes) -> str | None:
        starts = [match.end() for match in _START.finditer(packet)]
        if not starts:
            return "it has no start code"
        for start, stop in zip(starts, [*(start - 3 for start in starts[1:]), len(packet)], strict=True):
            problem = _unit_problem(codec, packet[start:stop])
            if problem:
                return problem
        return None

    return check


def _no_zeros(packet: bytes) -> str | None:
    at = packet.find(_RUN)
    # Zeros that reach to the end, or to a start code, are stuffing.
    while at >= 0:
        rest = packet[at:].lstrip(b"\0")
        if rest and rest[0] != 1:
            return f"{len(packet) - at - len(rest)} zero bytes in the middle of a picture"
        at = packet.find(_RUN, len(packet) - len(rest)) if rest else -1
    return None


def _vp8(packet: bytes) -> str | None:
    if len(packet) >= 10 and not packet[0] & 1 and packet[3:6] != b"\x9d\x01\x2a":
        return "a key frame has no start code"
    return _no_zeros(packet)


def _vp9(packet: bytes) -> str | None:
    return "it has no frame marker" if packet[0] >> 6 != 2 else _no_zeros(packet)


def checker(codec: str, extradata: bytes | None) -> Check | None:
    """Return a function from a packet's bytes to what is wrong with them, or None for codecs not known here.

    `codec` is FFmpeg's name of the codec, `extradata` the stream's (it says how long lengths are).
    """
    if codec in _IS_SLICE:
        place = 4 if codec == "h264" else 21
        if extradata and extradata[0] == 1 and len(extradata) > place:
            return _by_lengths(codec, (extradata[place] & 3) + 1)
        return _by_start_codes(codec)
    if codec == "vp8":
        return _vp8
    if codec == "vp9":
        return _vp9
    return _no_zeros if codec in _NO_ZERO_RUNS else None
