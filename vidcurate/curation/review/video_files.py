"""Video files of the review app: which file a row may show; still pictures."""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vidcurate.curation.report.contact_sheet import inside
from vidcurate.errors import MediaError
from vidcurate.media import decode, encode

POSTER_HEIGHT, MOST_POSTER_WIDTH = 240, 426
_SECONDS = 20.0
_POSTER_BYTES = 64 << 20  # of posters that are kept in memory
# What the common browsers play without help. Others are transcoded.
_SUFFIXES = (".mp4", ".m4v", ".webm", ".mov")
_CODECS = ("h264", "vp8", "vp9", "av1")
_PIXELS = ("yuv420p", "yuvj420p")
_NO_FILE = ("missing_file", "path_outside_root")


def file_of(videos: Path | None, clip: Mapping[str, Any]) -> Path | None:
    """Return the regular file of a clip below `videos`, links resolved; None when there is none inside."""
    name = clip.get("video_path")
    if videos is None or not name or "\0" in name or clip.get("ingest_problem") in _NO_FILE:
        return None
    try:
        path = inside(videos, name)
        return path.resolve() if path is not None and path.is_file() else None
    except (OSError, RuntimeError):  # a loop of links
        return None


def how_played(clip: Mapping[str, Any]) -> str:
    """Return `file` when browsers play the clip's file as it is, else `transcode`; from the table alone."""
    if not str(clip.get("video_path") or "").lower().endswith(_SUFFIXES):
        return "transcode"
    codec, pixels = clip.get("codec"), clip.get("pixel_format")
    is_playable = (codec is None or codec in _CODECS) and (pixels is None or pixels in _PIXELS)
    return "file" if is_playable else "transcode"


def size_of_poster(clip: Mapping[str, Any]) -> tuple[int, int]:
    """Return (height, width) of a clip's poster, even numbers."""
    width, height = clip.get("width") or 16, clip.get("height") or 9
    wide = POSTER_HEIGHT * width / height
    return POSTER_HEIGHT, int(min(max(wide, 64), MOST_POSTER_WIDTH)) // 2 * 2


def poster(path: Path, clip: Mapping[str, Any]) -> bytes:
    """Return the clip's middle frame as JPEG; of a broken file a frame that still decodes.

    Raises MediaError.
    """
    height, width = size_of_poster(clip)
    first = round((clip.get("start_seconds") or 0.0) * (clip.get("fps") or 0.0))
    middle = first + (clip.get("num_frames") or 1) // 2
    for number in (middle, first, 0):
        try:
            frames = decode.read_frames(
                path, [number], height=height, width=width, time_limit_seconds=_SECONDS, accept_corrupt=True
            )
        except MediaError:
            if number == 0:
                raise
            continue
        return encode.encode_image(frames[0])
    raise AssertionError("the last number raises or returns")


class Posters:
    """Posters in memory, the oldest leave when they outgrow 64 MiB."""

    def __init__(self) -> None:
        self._held: OrderedDict[tuple[Path, int, float | None], bytes] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def of(self, path: Path, clip: Mapping[str, Any]) -> bytes:
        """Return the clip's poster as JPEG. Raises MediaError, OSError."""
        key = (path, path.stat().st_mtime_ns, clip.get("start_seconds"))
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key]
        made = poster(path, clip)
        with self._lock:
            if key not in self._held:
                self._held[key] = made
                self._size += len(made)
            while self._size > _POSTER_BYTES:
                self._size -= len(self._held.popitem(last=False)[1])
        return made
