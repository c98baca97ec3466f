"""Demo data set on disk: OUT/truth.json, OUT/videos and OUT/captions.csv.

captions.csv has OpenVid-1M's columns. The truth is written first and the table last; the same command resumes
a stopped run and keeps finished videos. The same seed gives the same bytes (encoders run in one thread).
"""

import csv
import io
import json
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vidcurate.curation.demo_data import damage
from vidcurate.curation.demo_data.choose import Clip, plan_clips
from vidcurate.curation.demo_data.scene import MOTIONS, caption, render_clip
from vidcurate.errors import InputError, StageError
from vidcurate.executor.map_clips import Progress, no_progress
from vidcurate.media import encode
from vidcurate.storage import atomic_file, lock

TRUTH, CAPTIONS, VIDEOS = "truth.json", "captions.csv", "videos"
FORMAT = "vidcurate-demo-1"
_MAKING = ".making"
_COLUMNS = (
    "video",
    "caption",
    "aesthetic score",
    "motion score",
    "temporal consistency score",
    "camera motion",
    "frame",
    "fps",
    "seconds",
)
MISSING_NAME = "shapes-9999_0_0to20.mp4"
_TEXT = b"<html><body>404 Not Found</body></html>\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSummary:
    """Counts of a demo data set. `planted`: deliberate defects in files and in the table."""

    metadata: str
    videos: str
    truth: str
    num_files: int
    num_rows: int
    families: dict[str, int]
    planted: dict[str, int]
    size_bytes: int
    up_to_date: bool


def _damaged(data: bytes, what: str, seed: int) -> bytes:
    damages: dict[str, Callable[[], bytes]] = {
        "truncated": lambda: damage.truncate(data, 0.6),
        "zero_bytes": lambda: b"",
        "text_named_mp4": lambda: _TEXT,
        "truncated_faststart": lambda: damage.truncate(damage.faststart(data), 0.6),
        "truncated_webm": lambda: damage.truncate(data, 0.5),
        "truncated_mkv": lambda: damage.truncate(data, 0.5),
        "flipped_bytes": lambda: damage.flip_bytes(data, seed=seed, count=40),
        "zeroed_block": lambda: damage.zero_block(data, size_bytes=2048),
        "garbage_tail": lambda: damage.garbage_tail(data, seed=seed, size_bytes=4096),
    }
    return damages[what]() if what in damages else data


def _write_clip(clip: Clip, target: Path, making: Path, seed: int) -> None:
    frames = render_clip(clip.scene, num_frames=clip.num_frames, height=clip.height, width=clip.width)
    whole = making / f"clip{clip.suffix}"
    is_mpeg4 = clip.codec == "mpeg4"  # MPEG-4 has no constant rate factor
    encode.write_video(whole, frames, fps=clip.fps, codec=clip.codec, gop=12, crf=None if is_mpeg4 else 16)
    data = whole.read_bytes()
    broken = _damaged(data, clip.planted or "", seed)
    if broken != data:
        whole.write_bytes(broken)
    whole.replace(target)


def _row(clip: Clip) -> dict[str, str]:
    mover = clip.scene.things[0]
    travel = mover.reach if MOTIONS[mover.motion] != (0, 0) else 0.0
    number = int.from_bytes(clip.name.encode()[-8:], "big")
    return {
        "video": clip.name,
        "caption": "" if clip.planted == "empty_caption" else caption(clip.scene),
        "aesthetic score": f"{4.0 + number % 151 / 100:.4f}",
        "motion score": f"{100 * travel / clip.num_frames:.4f}",
        "temporal consistency score": f"{0.99 + number % 97 / 10000:.4f}",
        "camera motion": "static",
        "frame": str(clip.num_frames),
        "fps": f"{clip.fps:g}",
        "seconds": f"{clip.num_frames / clip.fps:.3f}",
    }


def _rows(plan: list[Clip]) -> list[dict[str, str]]:
    """Return the table's rows: one per clip, one without a file, and one twice."""
    rows = [_row(clip) for clip in plan if clip.planted != "extra_file"]
    good = next(row for clip, row in zip(plan, map(_row, plan), strict=True) if clip.family == "easy")
    missing = {**good, "video": MISSING_NAME}
    return [*rows[: len(rows) // 2], missing, *rows[len(rows) // 2 :], dict(good)]


def _truth(plan: list[Clip], seed: int) -> str:
    first = next(clip for clip in plan if clip.family == "easy")
    clips = {
        clip.name: {**asdict(clip), "suffix": clip.suffix, "caption": caption(clip.scene)} for clip in plan
    }
    table_faults = {"missing_file": MISSING_NAME, "duplicate_row": first.name}
    document: dict[str, Any] = {
        "format": FORMAT,
        "seed": seed,
        "num_clips": len(plan),
        "table_faults": table_faults,
        "clips": clips,
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _table(plan: list[Clip]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_rows(plan))
    return text.getvalue()


def _is_ours(out: Path, truth: str) -> bool:
    """Say whether `out` holds (a part of) this very data set. Raises InputError for anything else."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    try:
        found = (out / TRUTH).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise InputError(f"{out}: not empty, and holds no demo data. Choose a new folder.") from None
    if found != truth:
        raise InputError(f"{out}: holds demo data of another seed, size or version. Choose a new folder.")
    return True


def write_demo_data(
    out: Path, *, clips: int = 320, seed: int = 0, progress: Progress = no_progress
) -> DemoSummary:
    """Write OUT/captions.csv, OUT/videos/ and OUT/truth.json with `clips` files, and return what they hold.

    truth.json has for each file the scene (see `scene_from`), the caption and the planted defects. Raises
    InputError for fewer than 10 clips or a folder with other content, StageError while another command writes
    the folder, StorageError for a failed write.
    """
    if clips < 10:
        raise InputError(f"clips is {clips}; demo data has at least 10.")
    plan = plan_clips(clips, seed)
    truth = _truth(plan, seed)
    was_there = _is_ours(out, truth) and (out / CAPTIONS).is_file()
    videos, making = out / VIDEOS, out / _MAKING

    def busy(holder: str) -> StageError:
        return StageError(
            f"{out}: another demo-data ({holder}) is writing here. Wait until that command ends."
        )

    with ExitStack() as held, atomic_file.storage_errors(out):
        videos.mkdir(parents=True, exist_ok=True)
        held.enter_context(lock.exclusive(out, wait=False, busy=busy, is_required=False))
        todo = [(number, clip) for number, clip in enumerate(plan) if not (videos / clip.name).is_file()]
        if todo or not was_there:
            making.mkdir(exist_ok=True)
            atomic_file.put(out / TRUTH, truth)
            for done, (number, clip) in enumerate(todo):
                progress(len(plan) - len(todo) + done, len(plan), "clips")
                _write_clip(clip, videos / clip.name, making, seed=int(np.uint32(seed)) + number)
            shutil.rmtree(making)
            atomic_file.put(out / CAPTIONS, _table(plan))
        progress(len(plan), len(plan), "clips")
        size_bytes = sum((videos / clip.name).stat().st_size for clip in plan)
    planted = Counter(clip.planted for clip in plan if clip.planted)
    return DemoSummary(
        metadata=str(out / CAPTIONS),
        videos=str(videos),
        truth=str(out / TRUTH),
        num_files=len(plan),
        num_rows=len(_rows(plan)),
        families=dict(sorted(Counter(clip.family for clip in plan).items())),
        planted={**dict(sorted(planted.items())), "missing_file": 1, "duplicate_row": 1},
        size_bytes=size_bytes,
        up_to_date=was_there and not todo,
    )
