"""A small run of real clips that need every kind of change, and its export."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests import shard_runs
from vidcurate.curation.clip_table import schema
from vidcurate.media import encode

# name, frames, height x width, frames/s, options of the encoder, changes of the row
CLIPS: list[tuple[str, int, tuple[int, int], float, dict[str, Any], dict[str, Any]]] = [
    ("exact.mp4", 33, (64, 96), 16.0, {}, {}),
    ("faster.mp4", 60, (64, 96), 30000 / 1001, {}, {"fold": "validation"}),
    ("slower.mkv", 25, (66, 98), 12.0, {}, {}),
    ("turned.mp4", 40, (64, 112), 24.0, {"rotation_degrees": 90}, {"width": 64, "height": 112}),
    ("other.webm", 34, (64, 64), 25.0, {"codec": "libvpx-vp9", "crf": 30}, {}),
    ("inside.mp4", 60, (64, 96), 30.0, {}, {"start_seconds": 0.5, "end_seconds": 1.5, "num_frames": 30}),
    ("captions.mp4", 48, (64, 96), 24.0, {}, {"clip_id": "captions", "caption": "two\nlines, “quoted” \\ ☂"}),
    ("dots.mp4", 48, (64, 96), 24.0, {}, {"clip_id": "12.1", "caption": "'a' \"b\" $HOME `ls` #c, d: e"}),
    ("short.mp4", 3, (64, 96), 24.0, {}, {}),
    ("still.mp4", 1, (64, 96), 16.0, {}, {}),
    ("silent.mp4", 33, (64, 96), 16.0, {}, {"caption": " "}),
    ("rejected.mp4", 33, (64, 96), 16.0, {}, {"is_kept": False, "fold": None}),
]
LEFT_OUT = {"no_caption": 1, "still_image": 1, "too_short": 1}


def frames_of(number: int, num_frames: int, height: int, width: int) -> np.ndarray:
    """Return noise-free frames (T, H, W, 3), different for each clip and frame."""
    ramp = np.linspace(0, 200, width, dtype=np.uint8)[None, None, :, None]
    frames = np.broadcast_to(ramp, (num_frames, height, width, 3)).copy()
    frames[..., 0] = (7 * number) % 256
    for frame in range(num_frames):
        frames[frame, 8:24, 8:24] = (5 * frame) % 256
    return frames


def make_run(folder: Path, only: Callable[[str], bool] = lambda name: True) -> Path:
    """Write the videos and the table of the newest stage into `folder`; return the run."""
    (folder / "videos").mkdir(parents=True, exist_ok=True)
    rows = []
    for number, (name, num_frames, (height, width), fps, options, changes) in enumerate(CLIPS):
        if not only(name):
            continue
        path = folder / "videos" / name
        if not path.exists():
            encode.write_video(path, frames_of(number, num_frames, height, width), fps=fps, **options)
        row: dict[str, Any] = {
            "clip_id": name.partition(".")[0],
            "source_id": name,
            "video_path": name,
            "caption": f"clip {number}, {name}",
            "start_seconds": None,
            "end_seconds": None,
            "width": width,
            "height": height,
            "fps": fps,
            "num_frames": num_frames,
            "probe_status": "ok",
            "integrity_level": "full",
            "is_variable_fps": False,
            "is_kept": True,
            "level": 1,
            "fold": "train",
        } | changes
        row["sample_key"] = schema.sample_key(row["clip_id"])
        row["duration_seconds"] = row["num_frames"] / fps
        rows.append(row)
    return shard_runs.write_table(folder / "run", rows)
