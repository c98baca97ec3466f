"""Opening a video: one container at a time, closed by hand, and no threads of the codec's own.

Rules kept here, each for a documented freeze or leak (PyAV 1117, 1962, 2276; hpcaitech/Open-Sora 526): no
codec threads, no log callback, the container closed on the way out whatever happens.
"""

import io
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import av
import av.logging

from vidcurate.errors import MediaError

av.logging.set_level(None)  # an integer level installs a callback that takes the GIL (PyAV 751, 909)

_BUFFER_BYTES = 1 << 20
# FFmpeg looks at a file before it is asked for a frame and decodes up to some tens of pictures: 2 to 18 ms of
# a 720p clip. Who knows the frames' times needs none of that: one packet a stream, and no decoder for the
# look, not even of the sound (none has the name "none"). The one that decodes is opened by PyAV afterwards.
_BRIEF = {"probesize": "32", "codec_whitelist": "none"}


def reason_of(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return " ".join(text.split()).rstrip(".")


@contextmanager
def opened(source: Path | bytes, *, is_brief: bool = False) -> Iterator[tuple[Any, Any]]:
    """Yield (container, first real video stream), without codec threads; close on the way out.

    `is_brief` opens faster and leaves more unknown: pixel format and shape, how far frames are reordered.
    Raises MediaError, kind missing, empty, unreadable, no_video_stream.
    """
    name = source.name if isinstance(source, Path) else f"{len(source)} bytes"
    if isinstance(source, Path):
        try:
            if os.path.getsize(source) == 0:
                raise MediaError(f"{name}: the file is empty.", kind="empty")
        except FileNotFoundError as error:
            raise MediaError(f"{name}: no such file.", kind="missing") from error
        except OSError as error:
            raise MediaError(f"{name}: cannot be read ({error.strerror}).", kind="unreadable") from error
    try:
        container = av.open(
            os.fspath(source) if isinstance(source, Path) else io.BytesIO(source),
            buffer_size=_BUFFER_BYTES,
            options=_BRIEF if is_brief else {},
        )
    except (av.FFmpegError, OSError, ValueError) as error:
        raise MediaError(
            f"{name}: not a video that FFmpeg opens ({reason_of(error)}).", kind="unreadable"
        ) from error
    try:
        streams = [s for s in container.streams.video if s.codec_context is not None and not _is_cover(s)]
        if not streams:
            raise MediaError(f"{name}: holds no video stream.", kind="no_video_stream")
        stream = streams[0]
        stream.codec_context.thread_count = 1
        stream.codec_context.thread_type = "NONE"
        yield container, stream
    finally:
        container.close()


def packets_of(container: Any, *streams: Any) -> Iterator[Any]:
    """Yield the packets of these streams, and an empty one at the end, as PyAV's `demux` does.

    A `demux` that is left before its end loses 150 bytes unless it is closed by hand.
    """
    with closing(container.demux(*streams)) as packets:
        yield from packets


def _is_cover(stream: Any) -> bool:
    return bool(stream.disposition & type(stream.disposition).attached_pic)
