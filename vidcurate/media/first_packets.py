"""First packets of a video: their bytes, and whether pictures may lead."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import av

from vidcurate.media.coded_units.leading_pictures import LeadingPictures
from vidcurate.media.container import opened, packets_of

# Containers whose header has an index of every packet; of others all packets must be read.
INDEXED = {"mov", "avi"}
# Containers with a display time per packet; for others FFmpeg derives the times by decoding some frames.
TIMED = {"mov", "matroska"}
_MOST_PACKET_BYTES = 1 << 24


def _indexed_packet(path: Path, container: Any, entry: Any) -> bytes:
    """Return the bytes of the packet that an entry of the header's index names. Raises OSError."""
    # AVI's entries name the chunk, whose head is its four letters and its size.
    head_bytes = 8 if container.format.name == "avi" else 0
    with path.open("rb") as file:
        file.seek(entry.pos + head_bytes)
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
