"""cosmos-curate: `clips/UUID.mp4` with `metas/v0/UUID.json` or `metas/*.txt`.

NeMo Curator writes the same folders.

A JSON has one entry in `windows` for each stretch of frames that was captioned (metadata_writer_stage.py; the
end frame belongs to it, windowing_utils.py). A clip of one window is one row. Of several windows each is a
row with its interval, as no caption is true of the others.
"""

import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from vidcurate.errors import InputError
from vidcurate.storage import regular_file

Row = dict[str, Any]
_KEPT_APART = ("windows", "clip_location", "span_uuid", "source_video", "motion_score")


def files_of(folder: Path) -> list[Path]:
    """Return the sorted metas/v0/*.json, or metas/*.txt beside videos/, of a folder; [] without them."""
    found = sorted((folder / "metas" / "v0").glob("*.json"))
    if not found and (folder / "videos").is_dir():
        found = sorted((folder / "metas").glob("*.txt"))
    return found


def rows(folder: Path, files: list[Path]) -> Iterator[Row]:
    """Yield the rows of `files_of`. Raises InputError for a file that is not what its name says."""
    for path in files:
        try:
            text = regular_file.read_text(path)
            if path.suffix == ".txt":
                yield {"video": f"videos/{path.stem}.mp4", "caption": text.strip()}
            else:
                yield from _of_clip(path, json.loads(text))
        except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
            raise InputError(f"{path}: is no metadata of cosmos-curate ({error}).") from error


def _of_clip(path: Path, facts: Row) -> Iterator[Row]:
    place = PurePosixPath(facts.get("clip_location") or f"clips/{path.stem}.mp4")
    motion = facts.get("motion_score")
    motions = motion if isinstance(motion, dict) else {}
    shared = {
        "video": "/".join(place.parts[-2:]),
        "source_id": facts.get("source_video"),
        **{key: value for key, value in facts.items() if key not in _KEPT_APART},
        **{f"motion_score_{key}": value for key, value in motions.items()},
    }
    uuid = facts.get("span_uuid") or path.stem
    windows = facts.get("windows") or [{}]
    for window in windows:
        first, last = window.get("start_frame"), window.get("end_frame")
        captions = {
            key.removesuffix("_caption"): text
            for key, text in window.items()
            if key.endswith("_caption") and isinstance(text, str) and text.strip()
        }
        others = {key: value for key, value in window.items() if not key.endswith("_caption")}
        row = {"clip_id": uuid, **shared, **others, "captions": captions or None}
        if len(windows) > 1:
            fps = facts.get("framerate_source")
            known = isinstance(fps, int | float) and fps > 0
            row |= {
                "clip_id": f"{uuid}_{first}_{last}",
                # Text that is no time makes the row a bad_value that names it.
                "start_seconds": first / fps if known else f"frame {first} of an unknown rate",
                "end_seconds": (last + 1) / fps if known else f"frame {last} of an unknown rate",
            }
        yield row
