"""Packets of a video before its index: first ones, leading and hidden ones."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import av

from vidcurate.media.coded_units.hidden_pictures import hides_all
from vidcurate.media.coded_units.leading_pictures import LeadingPictures
from vidcurate.media.container import codec_of, opened, packets_of

# Containers whose header has an index of every packet; of others all packets must be read.
INDEXED = {"mov", "avi"}
# Containers with a display time per packet; for others FFmpeg derives the times by decoding some frames.
TIMED = {"mov", "matroska"}
_MOST_PACKET_BYTES = 1 << 24


def _packet_offset(container: Any, entry: Any) -> int:
    """Return the offset of the packet's bytes that an entry of the header's index names."""
    # AVI's entries name the chunk, whose head is its four letters and its size.
    return int(entry.pos) + (8 if container.format.name == "avi" else 0)


def _indexed_packet(path: Path, container: Any, entry: Any) -> bytes:
    """Return the bytes of the packet that an entry of the header's index names. Raises OSError."""
    with path.open("rb") as file:
        file.seek(_packet_offset(container, entry))
        return file.read(min(entry.size, _MOST_PACKET_BYTES))


def first_packet_of(path: Path, container: Any, stream: Any) -> bytes:
    """Return the bytes of an opened file's first video packet, b"" for none; the file's place stays.

    Raises OSError.
    """
    if container.format.name.split(",")[0] in INDEXED and len(stream.index_entries):
        return _indexed_packet(path, container, stream.index_entries[0])
    is_brief = container.format.name.split(",")[0] in TIMED
    with suppress(av.FFmpegError), opened(path, is_brief=is_brief) as (again, _):
        for packet in packets_of(again, again.streams[stream.index]):
            return bytes(packet)
    return b""


def hidden_packets_of(path: Path, container: Any, stream: Any) -> set[int]:
    """Return the numbers of the index's packets that hold only hidden pictures.

    Such pictures are VP8's and VP9's. It reads a byte of each packet, and those packets whole that begin
    with a hidden picture. Raises OSError.
    """
    codec = codec_of(stream)
    hidden: set[int] = set()
    if codec not in ("vp8", "vp9"):
        return hidden
    with path.open("rb", buffering=0) as file:
        for number, entry in enumerate(stream.index_entries):
            file.seek(_packet_offset(container, entry))
            first = file.read(1)
            if entry.size and hides_all(codec, first):
                rest = file.read(min(entry.size, _MOST_PACKET_BYTES) - 1)
                if hides_all(codec, first + rest):
                    hidden.add(number)
    return hidden


def may_begin_open(path: Path, container: Any, stream: Any) -> bool:
    """Return whether leading pictures may follow the first packet that the header's index names.

    False where the header has no index. Raises OSError.
    """
    entries = stream.index_entries
    if container.format.name.split(",")[0] not in INDEXED or not len(entries):
        return False
    leading = LeadingPictures(container, stream)
    first = _indexed_packet(path, container, entries[0])
    if len(entries) == 1 or not leading.opens(first):
        return False
    return leading.opens(first, _indexed_packet(path, container, entries[1]))
