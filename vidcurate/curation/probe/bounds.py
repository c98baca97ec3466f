"""Container structure: where a file must end, and where its structure is broken.

Nothing is decoded. What each container declares: MP4 the size of every box and an index of every packet;
Matroska and WebM the size of Segment, clusters and blocks (a live stream only of blocks), and often a CRC-32
of each cluster; AVI the size of its RIFF chunks; FLV the size of every tag, twice; a transport stream has
packets of 188 bytes with four-bit counters; its clock, and a program stream's, begins again where another
movie follows. MPEG program and elementary streams declare no sizes. A transport
stream cut between two packets, or a fragmented MP4 cut between two fragments, cannot be detected.

Sources: ISO/IEC 14496-12, RFC 8794 and RFC 9559, the AVI RIFF reference, Adobe's FLV specification 10.1,
ISO/IEC 13818-1 §2.4.3, §2.5.3 and ISO/IEC 11172-1 §2.4.3.
"""

import re
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vidcurate.errors import counted
from vidcurate.media import matroska, mp4_boxes
from vidcurate.storage.file_window import FileBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds of a container. `cut` and `broken` are reasons as text, or None.

    `cut` proves that the file was longer; `short`: a box declares more bytes than the file has, which some
    writers do wrongly. `trailing_bytes` follow the end of the container. `movie_seconds` is the duration in
    an MP4's movie header, `second_movie_at` the offset at which another movie begins; in MPEG streams, of
    its first clock value.
    """

    cut: str | None = None
    short: str | None = None
    broken: str | None = None
    trailing_bytes: int = 0
    movie_seconds: float | None = None
    second_movie_at: int | None = None


def _mp4(data: FileBytes, check_sums: bool) -> Bounds:
    size = data.size
    position, kind = 0, b""
    fragmented, movies = False, 0
    second: int | None = None
    while position < size:
        if size - position < 8:
            return Bounds(
                trailing_bytes=size - position, movie_seconds=mp4_boxes.movie_seconds(data.file, size)
            )
        length, kind = struct.unpack(">I4s", data[position : position + 8])
        if length == 1 and size - position >= 16:
            length = struct.unpack(">Q", data[position + 8 : position + 16])[0]
        elif length == 0 and kind != bytes(4):
            length = size - position
        if length < 8 or not all(32 <= letter < 127 or letter == 0xA9 for letter in kind):
            break
        fragmented = fragmented or kind == b"moof"
        movies += kind == b"moov"
        if movies == 2 and second is None:
            second = position
        if position + length > size:
            word = (
                f"the box {kind.decode('latin-1')} ends at byte {position + length}, the file at byte {size}"
            )
            # An mdat may promise too much in a file that is whole; the index then decides.
            if kind == b"mdat" and not fragmented:
                return Bounds(short=word, movie_seconds=mp4_boxes.movie_seconds(data.file, size))
            # Some tag or padding behind everything else is no loss, but nobody writes half an index.
            return Bounds(cut=word) if kind in mp4_boxes.NEEDED else Bounds(trailing_bytes=size - position)
        position += length
    if kind == b"moof" and position >= size:
        return Bounds(cut=f"the file ends at byte {size}, before the pictures of its last fragment")
    return Bounds(
        trailing_bytes=size - position,
        movie_seconds=mp4_boxes.movie_seconds(data.file, size),
        second_movie_at=second,
    )


_EBML = b"\x1aE\xdf\xa3"


def _matroska(data: FileBytes, check_sums: bool) -> Bounds:
    walk = matroska.check_structure(data, check_sums=check_sums)
    rest = data.size - walk.trailing_bytes
    if walk.trailing_bytes > 4 and data[rest : rest + 4] == _EBML:
        return Bounds(cut=walk.cut, broken=walk.broken, second_movie_at=rest)
    return Bounds(cut=walk.cut, broken=walk.broken, trailing_bytes=walk.trailing_bytes)


def _avi(data: FileBytes, check_sums: bool) -> Bounds:
    size = data.size
    position = 0
    second: int | None = None
    while size - position >= 12 and data[position : position + 4] == b"RIFF":
        if position and second is None and data[position + 8 : position + 12] == b"AVI ":
            second = position
        length = struct.unpack("<I", data[position + 4 : position + 8])[0]
        if not length:  # a writer that was never closed
            return Bounds()
        end = position + 8 + length
        if end > size:
            return Bounds(cut=f"the RIFF chunk ends at byte {end}, the file at byte {size}")
        position = end + length % 2
    return Bounds(trailing_bytes=max(0, size - position), second_movie_at=second)


_FLV_TAGS = (8, 9, 18)


def _flv(data: FileBytes, check_sums: bool) -> Bounds:
    size = data.size
    position = struct.unpack(">I", data[5:9])[0] + 4 if size > 13 else size
    while position < size:
        if size - position < 11:
            return Bounds(cut=f"the last tag has {size - position} of 11 bytes of its head")
        if data[position : position + 3] == b"FLV":
            return Bounds(second_movie_at=position)
        if data[position] & 0x1F not in _FLV_TAGS:
            return Bounds(trailing_bytes=size - position)
        length = 11 + int.from_bytes(data[position + 1 : position + 4], "big")
        if position + length > size:
            return Bounds(cut=f"the last tag ends at byte {position + length}, the file at byte {size}")
        reported = data[position + length : position + length + 4]
        # Writers that stop early leave out the last size; a size of 0 is written by some.
        if len(reported) == 4 and int.from_bytes(reported, "big") not in (length, 0):
            return Bounds(broken=f"the tag at byte {position} is not as long as the size behind it says")
        position += length + 4
    return Bounds()


def _stride(data: FileBytes) -> tuple[int, int] | None:
    """Return (packet size, offset of the sync byte) of a transport stream."""
    for stride, sync in ((188, 0), (192, 4), (204, 0)):
        if data.size >= 2 * stride and data[sync] == data[sync + stride] == 0x47:
            return stride, sync
    return None


_CLOCK_SLACK = 2250  # ticks of 45 kHz: a clock that goes back by less than 1/20 s does not begin again


def _restarts(clocks: NDArray[np.int64], *, width: int) -> list[int]:
    """Return the offsets at which a clock begins again, from rows of (clock's name, offset, value).

    Values are 32 bits at 45 kHz, and may wrap. The median of `width` values counts (3: no damaged one).
    """
    found: list[int] = []
    for name in np.unique(clocks[:, 0]):
        _, offsets, values = clocks[clocks[:, 0] == name].T
        if len(values) >= width:
            steps = np.diff(values.astype(np.uint32), prepend=np.uint32(values[0])).view(np.int32)
            windows = np.lib.stride_tricks.sliding_window_view(np.cumsum(steps, dtype=np.int64), width)
            places = np.flatnonzero(np.diff(np.median(windows, axis=1)) < -_CLOCK_SLACK) + (width + 1) // 2
            found += offsets[places].tolist()
    return sorted(found)


def _names(packets: NDArray[np.uint8]) -> NDArray[np.int64]:
    return (packets[:, 1].astype(np.int64) & 0x1F) << 8 | packets[:, 2]


def _clock_values(packets: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return rows of (stream, offset, value) of the packets of a transport stream that hold its clock."""
    has_clock = (packets[:, 3] & 0x20 > 0) & (packets[:, 4] > 6) & (packets[:, 5] & 0x10 > 0)
    values = packets[has_clock, 6:10].astype(np.int64) @ (1 << np.array([24, 16, 8, 0]))
    return np.stack([_names(packets)[has_clock], offsets[has_clock], values], axis=1)


def _count_jumps(packets: NDArray[np.uint8], last: dict[int, int], jumps: Counter[int]) -> None:
    """Count in `jumps`, by stream, how often the four-bit counters of a transport stream jump.

    `last` goes from piece to piece.
    """
    names = _names(packets)
    control = packets[:, 3] >> 4 & 3
    # An adaptation field may announce the jump (discontinuity_indicator).
    announced = (control & 2 > 0) & (packets[:, 4] > 0) & (packets[:, 5] & 0x80 > 0)
    for name in np.unique(names).tolist():
        mine = (names == name) & (control & 1 > 0) & (name != 0x1FFF)
        counters = (packets[mine, 3] & 15).astype(np.int64)
        if len(counters):
            steps = np.diff(counters, prepend=last.get(name, counters[0])) % 16
            jumps[name] += int(((steps > 1) & ~announced[mine]).sum())  # a packet may be sent twice: 0
            last[name] = int(counters[-1])


def _transport(data: FileBytes, check_sums: bool) -> Bounds:
    form = _stride(data)
    if form is None:
        return Bounds(cut="there are not two packets of a transport stream") if data.size < 408 else Bounds()
    stride, sync = form
    count, rest = divmod(data.size, stride)
    last: dict[int, int] = {}
    jumps: Counter[int] = Counter()
    clocks = [np.empty((0, 3), dtype=np.int64)]
    unsynced = flawed = tail = at = 0
    for piece in data.pieces(0, count * stride, stride):
        packets = np.frombuffer(piece, dtype=np.uint8).reshape(-1, stride)[:, sync:]
        wrong = np.flatnonzero(packets[:, 0] != 0x47)
        unsynced += len(wrong)
        # How many packets at the end begin with no sync byte: what was appended is no loss.
        right = np.flatnonzero(packets[:, 0] == 0x47)
        tail = len(packets) - 1 - int(right[-1]) if len(right) else tail + len(packets)
        packets = np.delete(packets, wrong, axis=0)
        flawed += int((packets[:, 1] & 0x80 > 0).sum())
        _count_jumps(packets, last, jumps)
        clocks.append(_clock_values(packets, at + stride * right))
        at += len(piece)
    restarts = _restarts(np.concatenate(clocks), width=3)
    # Every counter may jump where another movie begins.
    lost = sum(max(0, count - len(restarts)) for count in jumps.values())
    partial = data[count * stride + sync : count * stride + sync + 1] if rest else b""
    is_cut = rest > 0 and tail == 0 and partial in (b"", b"\x47")
    broken = None
    if unsynced > tail:
        broken = f"{unsynced} of {count} transport packets do not begin with the sync byte"
    elif flawed:
        broken = f"{flawed} transport packets carry the error flag"
    elif lost:
        broken = f"the counters of the transport packets jump {counted(lost, 'time')}: packets are lost"
    return Bounds(
        cut=f"the last transport packet has {rest} of {stride} bytes" if is_cut else None,
        broken=broken,
        trailing_bytes=0 if is_cut else tail * stride + rest,
        second_movie_at=min(restarts, default=None),
    )


# Head of a pack of a program stream with its clock, and the bits in it that are always 1.
_PACK = re.compile(rb"\0\0\x01\xba(.{5})", re.DOTALL)
_MARKERS = 1 << 32 | 1 << 16 | 1


def _program(data: FileBytes, check_sums: bool) -> Bounds:
    clocks: list[tuple[int, int, int]] = []
    at = 0
    for piece in data.pieces(0, data.size):
        for pack in _PACK.finditer(piece):
            bits = int.from_bytes(pack[1], "big")
            bits >>= 2 * (bits >> 38 == 1)  # MPEG-2 has two bits of its finer clock behind
            if bits & _MARKERS == _MARKERS:
                value = (bits >> 33 & 7) << 29 | (bits >> 17 & 0x7FFF) << 14 | (bits >> 2 & 0x3FFF)
                clocks.append((0, at + pack.start(), value))
        at += len(piece)
    restarts = _restarts(np.array(clocks, dtype=np.int64).reshape(-1, 3), width=1)  # few packs
    return Bounds(second_movie_at=min(restarts, default=None))


_OF_FAMILY: dict[str, Callable[[FileBytes, bool], Bounds]] = {
    "mov": _mp4,
    "matroska": _matroska,
    "avi": _avi,
    "flv": _flv,
    "mpegts": _transport,
    "mpeg": _program,
}


def family_of(path: Path) -> str:
    """Return FFmpeg's short name of a file's container by its first bytes, "" for an unknown one."""
    with path.open("rb") as file:
        head = file.read(12)
    if head[4:8] in (b"ftyp", b"moov", b"mdat", b"free", b"wide", b"skip"):
        return "mov"
    for start, family in (
        (_EBML, "matroska"),
        (b"RIFF", "avi"),
        (b"FLV", "flv"),
        (b"G", "mpegts"),
    ):
        if head.startswith(start):
            return family
    return ""


def read_bounds(path: Path, family: str, *, check_sums: bool = False) -> Bounds:
    """Check the structure of a file; `family` is FFmpeg's short name of its container.

    With `check_sums` the CRC-32 of a Matroska file's clusters are checked, which reads the whole file. A
    container that declares no sizes gives empty bounds. Raises OSError.
    """
    walk = _OF_FAMILY.get(family)
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if walk is None or size == 0:
            return Bounds()
        try:
            return walk(FileBytes(file, size), check_sums)
        except (struct.error, IndexError):
            return Bounds(broken="its structure ends in the middle of a number")
