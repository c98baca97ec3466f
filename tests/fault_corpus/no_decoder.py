"""A real video in a codec that no FFmpeg of a PyAV wheel decodes."""

H264, EVC = b"avc1", b"evc1"  # the names of codecs in an MP4; PyAV's wheels are built without libxevd


def without_decoder(mp4: bytes) -> bytes:
    """Return an MP4 of H.264 as a file whose index says EVC: PyAV gives its stream no codec context."""
    at = mp4.rindex(H264)  # behind the brands of the file's head
    return mp4[:at] + EVC + mp4[at + len(H264) :]
