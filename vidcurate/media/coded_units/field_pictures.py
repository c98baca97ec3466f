"""Field pictures of H.264: packets that hold the second field of a frame.

Transport streams and Matroska carry the two fields of a frame in two packets; a player shows one frame.
Nothing of it shows without the bits: the sequence parameters say whether fields may occur, and each slice
says whether it is a field and of which parity. Source: ITU-T H.264 §7.3.2.1.1, §7.3.3, §7.4.1.2.4.
"""

from dataclasses import dataclass
from typing import Any

from vidcurate.media.coded_units.units import Bits, length_bytes_of, unescaped, units_of
from vidcurate.media.container import codec_of

_SLICES, _PARAMETERS = (1, 5), 7
_HEAD_BYTES = 64  # of a slice; its header's first fields take far less
# Profiles whose parameters have a chroma format (§7.3.2.1.1).
_HIGH = {100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135}


@dataclass(frozen=True, slots=True)
class _Parameters:
    has_fields: bool
    has_planes: bool
    frame_number_bits: int


def _skip_scaling_list(bits: Bits, size: int) -> None:
    last = following = 8
    for _ in range(size):
        if following:
            following = (last + bits.se()) % 256
        last = following or last


def _parameters(unit: bytes) -> _Parameters:
    bits = Bits(unescaped(unit[1:]))
    profile = bits.u(8)
    bits.u(16)
    bits.ue()
    has_planes = False
    if profile in _HIGH:
        chroma = bits.ue()
        has_planes = chroma == 3 and bool(bits.u(1))
        bits.ue(), bits.ue(), bits.u(1)
        if bits.u(1):
            for number in range(12 if chroma == 3 else 8):
                if bits.u(1):
                    _skip_scaling_list(bits, 16 if number < 6 else 64)
    frame_number_bits = bits.ue() + 4
    order = bits.ue()
    if order == 0:
        bits.ue()
    elif order == 1:
        bits.u(1), bits.se(), bits.se()
        for _ in range(bits.ue()):
            bits.se()
    bits.ue(), bits.u(1), bits.ue(), bits.ue()
    return _Parameters(not bits.u(1), has_planes, frame_number_bits)


class FieldPairs:
    """Tell, packet by packet in decoding order, which one is the second field of a frame."""

    def __init__(self, stream: Any) -> None:
        self._is_h264 = codec_of(stream) == "h264"
        record = bytes(stream.codec_context.extradata or b"") if self._is_h264 else b""
        self._length_bytes = length_bytes_of(stream) if self._is_h264 else 0
        self._parameters: _Parameters | None = None
        self._open: tuple[int, int] | None = None  # frame number and parity of a first field
        if self._length_bytes:
            size = int.from_bytes(record[6:8], "big")
            self._learn(record[8 : 8 + size])
        else:
            for unit in units_of(record, 0):
                self._learn(unit)

    @property
    def may_occur(self) -> bool:
        """Return whether packets may be fields, as far as the header or the packets so far say."""
        return self._parameters is not None and self._parameters.has_fields

    def _learn(self, unit: bytes) -> None:
        if unit and unit[0] & 0x1F == _PARAMETERS:
            try:
                self._parameters = _parameters(unit)
            except ValueError:
                self._parameters = None

    def _field(self, unit: bytes) -> tuple[int, int] | None:
        """Return frame number and parity of a field's slice; None for a frame's or a damaged one."""
        if self._parameters is None:
            return None
        bits = Bits(unescaped(unit[1:_HEAD_BYTES]))
        try:
            bits.ue(), bits.ue(), bits.ue()
            if self._parameters.has_planes:
                bits.u(2)
            number = bits.u(self._parameters.frame_number_bits)
            return (number, bits.u(1)) if bits.u(1) else None
        except ValueError:
            return None

    def is_second(self, packet: Any) -> bool:
        """Return whether a packet holds only the second field of the frame that an earlier one began."""
        if not self._is_h264 or not packet.size or (self._parameters is not None and not self.may_occur):
            return False
        data = bytes(packet)
        fields: set[tuple[int, int] | None] = set()
        for unit in units_of(data, self._length_bytes):
            self._learn(unit)
            if unit and unit[0] & 0x1F in _SLICES and self.may_occur:
                fields.add(self._field(unit))
        alone = fields.pop() if len(fields) == 1 else None
        if alone is not None and self._open == (alone[0], 1 - alone[1]):
            self._open = None
            return True
        self._open = alone
        return False
