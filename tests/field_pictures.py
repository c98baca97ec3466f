"""H.264 in field pictures (PAFF), which no encoder at hand writes: raw macroblocks (I_PCM), bit by bit.

Source: ITU-T H.264 §7.3.2.1 (SPS), §7.3.2.2 (PPS), §7.3.3 (slice header), §7.3.5 (macroblocks).
"""

import io
from fractions import Fraction
from pathlib import Path
from typing import Any

import av

_WIDTH_MBS, _FIELD_HEIGHT_MBS = 2, 1


class _Bits:
    def __init__(self) -> None:
        self.text = ""

    def u(self, count: int, value: int) -> "_Bits":
        self.text += f"{value:0{count}b}"
        return self

    def ue(self, *values: int) -> "_Bits":
        for value in values:
            digits = f"{value + 1:b}"
            self.text += "0" * (len(digits) - 1) + digits
        return self

    def align(self) -> "_Bits":
        self.text += "0" * (-len(self.text) % 8)
        return self

    def raw(self) -> bytes:
        """Return the bits with the stop bit as bytes."""
        text = self.text + "1"
        text += "0" * (-len(text) % 8)
        return int(text, 2).to_bytes(len(text) // 8, "big")


def _unit(head: int, bits: _Bits) -> bytes:
    body = bits.raw()
    for last in (0, 1, 2, 3):
        body = body.replace(bytes([0, 0, last]), bytes([0, 0, 3, last]))
    return bytes([0, 0, 0, 1, head]) + body


def _headers() -> bytes:
    sps = _Bits().u(8, 77).u(8, 0).u(8, 30).ue(0, 0, 2, 1).u(1, 0)
    sps.ue(_WIDTH_MBS - 1, _FIELD_HEIGHT_MBS - 1).u(1, 0).u(1, 0).u(1, 1).u(1, 0).u(1, 0)
    pps = _Bits().ue(0, 0).u(1, 0).u(1, 0).ue(0, 0, 0).u(1, 0).u(2, 0).ue(0, 0, 0).u(1, 0).u(1, 0).u(1, 0)
    return _unit(0x67, sps) + _unit(0x68, pps)


def _field(frame: int, *, is_bottom: bool, gop: int) -> bytes:
    is_first = frame % gop == 0 and not is_bottom
    bits = _Bits().ue(0, 7, 0).u(4, frame % gop % 16).u(1, 1).u(1, is_bottom)
    if is_first:
        bits.ue(frame // gop % 2).u(2, 0)
    else:
        bits.u(1, 0)
    bits.ue(0)
    level = 40 + 2 * frame % 160
    for _ in range(_WIDTH_MBS * _FIELD_HEIGHT_MBS):
        bits.ue(25).align()
        bits.text += f"{level:08b}" * 256 + f"{128:08b}" * 128
    return _unit(0x65 if is_first else 0x61, bits)


def write_field_pictures(path: Path, num_frames: int = 24, gop: int = 8) -> Path:
    """Write frames of 32 x 32 at 25 per second, each as two fields; the suffix selects the container.

    Each field is a packet of its own.
    """
    fields = [
        (_headers() if number % (2 * gop) == 0 else b"")
        + _field(number // 2, is_bottom=bool(number % 2), gop=gop)
        for number in range(2 * num_frames)
    ]
    with (
        av.open(io.BytesIO(b"".join(fields)), format="h264") as given,
        av.open(str(path), "w", format="mpegts" if path.suffix == ".mts" else None) as output,
    ):
        copy: Any = output.add_stream_from_template(given.streams.video[0])
        for number, data in enumerate(fields):
            packet = av.Packet(data)
            packet.stream, packet.time_base = copy, Fraction(1, 50)
            packet.pts = packet.dts = number
            packet.is_keyframe = number % (2 * gop) == 0
            output.mux(packet)
    return path
