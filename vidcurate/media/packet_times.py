"""Packet times: those that a file's coded packets get in another container."""

from fractions import Fraction
from typing import Any

_LEAST_TICKS_PER_SECOND = 10_000
_MOST_TICKS_PER_SECOND = 1_000_000


def decoding_times(packets: list[Any]) -> list[int]:
    """Return the decoding times: the packets' own or, when one is missing, rising ones made from pts.

    Matroska files have no decoding times, and after a seek FFmpeg cannot derive the first ones.
    """
    own = [packet.dts for packet in packets]
    if None not in own:
        return own
    shown = [packet.pts for packet in packets]
    rising = sorted(shown)
    delay = max(time - pts for time, pts in zip(rising, shown, strict=True))
    return [time - delay for time in rising]


def set_times(packets: list[Any], time_base: Fraction, rate: Fraction | None) -> Fraction:
    """Give packets (in decoding order, with pts) decoding times, and exact times; return their time base.

    Matroska rounds times to ms: an MP4 of those would have a rate that depends on its length (24.024 for one
    second of 24 frames/s). Where all packets lie within a tick of one frame after another at `rate`, they get
    the times of that rate; all others keep theirs, as do those of an unknown rate.
    """
    if rate:
        time_base = _set_exact_times(packets, time_base, rate)
    for packet, dts in zip(packets, decoding_times(packets), strict=True):
        packet.dts = dts
    return time_base


def _set_exact_times(packets: list[Any], time_base: Fraction, rate: Fraction) -> Fraction:
    first = min(packet.pts for packet in packets)
    numbers = [round((packet.pts - first) * time_base * rate) for packet in packets]
    off = max(
        abs((packet.pts - first) * time_base - number / rate)
        for packet, number in zip(packets, numbers, strict=True)
    )
    multiple = -(-_LEAST_TICKS_PER_SECOND // rate.numerator)
    ticks_per_second, ticks = multiple * rate.numerator, multiple * rate.denominator
    is_rounded = 0 < off <= time_base and sorted(numbers) == list(range(len(numbers)))
    if is_rounded and ticks_per_second <= _MOST_TICKS_PER_SECOND:
        start = round(first * time_base * ticks_per_second)
        for packet, number in zip(packets, numbers, strict=True):
            packet.pts, packet.dts, packet.duration = start + number * ticks, None, ticks
            packet.time_base = Fraction(1, ticks_per_second)
        return Fraction(1, ticks_per_second)
    return time_base
