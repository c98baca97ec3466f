"""A codec that is not there: a real video that no PyAV wheel decodes, and a PyAV that encodes no H.264."""

H264, EVC = b"avc1", b"evc1"  # the names of codecs in an MP4; PyAV's wheels are built without libxevd

# The sitecustomize.py of a process: a PyAV that was built without x264 raises this where a stream is added.
WITHOUT_X264 = """
import av

real = av.open


class Output:
    def __init__(self, container):
        self.container = container

    def __getattr__(self, name):
        return getattr(self.container, name)

    def add_stream(self, name, **options):
        return self.container.add_stream(name + "-of-another-build", **options)


def opened(file, mode=None, **options):
    container = real(file, mode, **options)
    return Output(container) if mode == "w" else container


av.open = opened
"""


def without_decoder(mp4: bytes) -> bytes:
    """Return an MP4 of H.264 as a file whose index says EVC: PyAV gives its stream no codec context."""
    at = mp4.rindex(H264)  # behind the brands of the file's head
    return mp4[:at] + EVC + mp4[at + len(H264) :]
