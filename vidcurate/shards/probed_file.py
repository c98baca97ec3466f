"""Probed file: whether a clip's video file still is the one that probe read."""

import os
from pathlib import Path, PurePosixPath

from vidcurate.errors import MediaError
from vidcurate.storage import regular_file
from vidcurate.storage.checksum import sha256_file


def problem_of(videos: Path, video_path: str | None, size_bytes: int | None) -> tuple[str, str] | None:
    """Return (kind, reason) when the file differs from the table, else None; a size of None is any."""
    if not video_path:
        return "missing", "the table names no file"
    inside = PurePosixPath(video_path)
    if inside.is_absolute() or ".." in inside.parts:
        return "path_outside_root", f"{video_path} is outside the video folder"
    try:
        with regular_file.opened(videos / inside) as file:
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return "missing", f"{video_path}: no such file"
    except OSError as error:
        return "unreadable", f"{video_path}: cannot be read ({error.strerror})"
    if size_bytes is not None and size != size_bytes:
        return "size_changed", f"{video_path} has {size} bytes; it had {size_bytes} when it was probed"
    if not size:
        return "empty", f"{video_path}: the file is empty"
    return None


def check_content(videos: Path, video_path: str, sha256: str | None) -> None:
    """Raise MediaError for a file of another SHA-256; None: probe did not read the file whole."""
    path = videos / video_path
    try:
        is_other = sha256 is not None and sha256_file(path) != sha256
    except OSError as error:
        raise MediaError(f"{path.name}: reading failed ({error.strerror})", kind="unreadable") from error
    if is_other:
        raise MediaError(
            f"{video_path} has other bytes than the file that was probed; run `vidcurate probe` on "
            "this folder",
            kind="content_changed",
        )
