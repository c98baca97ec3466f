"""Hidden pictures of VP8 and VP9: packets that hold only references."""


def _shows_vp9(data: bytes) -> bool:
    """Return whether a VP9 packet, one frame or a superframe, shows a picture.

    Sources: the VP9 bitstream specification, 6.2 (uncompressed header) and annex B (superframes).
    """
    last = data[-1]
    count, width = (last & 7) + 1, (last >> 3 & 3) + 1
    index_bytes = 2 + count * width
    heads = [data[0]]
    if last & 0xE0 == 0xC0 and len(data) > index_bytes and data[-index_bytes] == last:
        sizes = [
            int.from_bytes(data[at : at + width], "little")
            for at in range(len(data) - index_bytes + 1, len(data) - 1, width)
        ]
        starts = [sum(sizes[:number]) for number in range(count) if sizes[number]]
        heads = [data[at] for at in starts if at < len(data)]
    # Marker 2 bits, profile 2 bits (a third follows profile 3), show_existing_frame, frame_type, show_frame.
    return any(head & (0b0101 if head & 0x30 == 0x30 else 0b1010) for head in heads)


def hides_all(codec: str, data: bytes) -> bool:
    """Return whether a packet holds only reference pictures that no player shows (VP8: RFC 6386, 9.1)."""
    if not data or codec not in ("vp8", "vp9"):
        return False
    return not data[0] & 0x10 if codec == "vp8" else not _shows_vp9(data)
