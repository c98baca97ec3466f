"""Frames of a clip for a vision-language model, as JPEG.

They are the middles of equal parts of the clip. Worker processes decode them, so that a file that crashes
the decoder costs one clip, not the stage.
"""

import hashlib
from typing import Any

from vidcurate.curation.frame_scores.sample import frame_numbers
from vidcurate.errors import MediaError
from vidcurate.executor.worker_processes import HOW, Loss
from vidcurate.media import decode
from vidcurate.media.container import opened
from vidcurate.media.encode import encode_image
from vidcurate.media.headers import header_of
from vidcurate.storage import download

LONGEST_PX = 4096


def frame_size(width: int, height: int, short_side_px: int) -> tuple[int, int]:
    """Return (height, width) of the whole frame with this shorter side; never larger, at most 4096 px."""
    scale = min(1.0, short_side_px / min(width, height), LONGEST_PX / max(width, height))
    return max(2, round(height * scale)), max(2, round(width * scale))


def positions(num_frames: int) -> list[float]:
    """Return the middles of `num_frames` equal parts, as shares of the clip."""
    return [(place + 0.5) / num_frames for place in range(num_frames)]


def clip_frames(item: dict[str, Any], *, num_frames: int, short_side_px: int) -> dict[str, Any]:
    """Return status, problem, frames (JPEG bytes in order of time; None unless the status is ok) and hash.

    `item` is path (a file or URL), start_seconds and end_seconds. A clip with fewer frames gives each of them
    once. `hash` is 16 hex digits of the SHA-256 of the JPEGs.
    """
    try:
        with download.local(item["path"]) as path:
            with opened(path) as (container, stream):
                header = header_of(path, container, stream)
            numbers = frame_numbers(path, item["start_seconds"], item["end_seconds"], positions(num_frames))
            height, width = frame_size(header.width, header.height, short_side_px)
            images = decode.read_frames(
                path, sorted(set(numbers)), height=height, width=width, accept_corrupt=True
            )
    except MediaError as error:
        return failed(error.kind, str(error))
    frames = [encode_image(image) for image in images]
    digest = hashlib.sha256()
    for frame in frames:
        digest.update(len(frame).to_bytes(8, "big") + frame)
    return {"status": "ok", "problem": None, "frames": frames, "hash": digest.hexdigest()[:16]}


def failed(status: str, problem: str) -> dict[str, Any]:
    """Return what `clip_frames` returns for a clip without frames."""
    return {"status": status, "problem": problem, "frames": None, "hash": None}


def lost(item: dict[str, Any], loss: Loss) -> dict[str, Any]:
    """Return the row of a clip whose decoding crashed two workers or took too long."""
    return failed(loss, f"{item['path']}: decoding {HOW[loss]}.")
