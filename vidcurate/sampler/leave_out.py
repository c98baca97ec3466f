"""Clips to leave out: a file of ids, such as the guard's RUN/bad_clips.jsonl.

A line is a clip id, or a JSON object with `clip_id`; other fields, empty lines and repeats do not matter.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from vidcurate.errors import InputError, MissingError

LEFT_OUT = "left_out"
UNMATCHED = "left_out_unmatched"  # the note


def read_clip_ids(path: Path) -> tuple[str, ...]:
    """Return the clip ids of a file, sorted. Raises MissingError, or InputError naming the line."""
    try:
        # Not splitlines: a clip id may hold other line breaks. Some editors begin a file with a mark.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except FileNotFoundError as error:
        raise MissingError(f"{path}: no such file of clip ids (leave_out).") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as a file of clip ids ({error}).") from error
    found: set[str] = set()
    for number, line in enumerate(map(str.strip, lines), 1):
        clip_id: Any = line
        if line.startswith("{"):
            try:
                clip_id = json.loads(line)["clip_id"]
                str(clip_id).encode()  # JSON can escape half a character, which no clip id holds
            except (ValueError, KeyError, RecursionError):
                clip_id = None
        if not isinstance(clip_id, str):
            raise InputError(
                f"{path}:{number}: is neither a clip id nor a JSON object with clip_id ({line[:40]!r}); "
                f"remove the line: sed -i {number}d {path}"
            )
        found |= {clip_id} - {""}
    return tuple(sorted(found))


def mask_of(clip_ids: Any, path: Path) -> tuple[NDArray[np.bool_], list[dict[str, object]]]:
    """Return which of the index's `clip_ids` the file lists, and a note where these are none of its clips.

    Such a file may be that of another stage, or of other shards. Raises what `read_clip_ids` raises.
    """
    listed = pa.array(read_clip_ids(path), pa.string())
    found: NDArray[np.bool_] = pc.is_in(clip_ids.cast(pa.string()), value_set=listed).to_numpy(
        zero_copy_only=False
    )
    is_foreign = len(listed) and not found.any()
    return found, [{"event": UNMATCHED, "file": str(path), "listed": len(listed)}] if is_foreign else []
