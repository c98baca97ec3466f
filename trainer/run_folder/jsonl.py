"""Lines added to a run's diaries: one write each, so that several processes can add to the same file.

Stdlib only: the watcher writes events too, and starts in a few milliseconds. `trainer.run_folder.metrics`
has the rest.
"""

import json
import math
import os
import time
from pathlib import Path
from typing import Any

from vidcurate.errors import StorageError

EVENTS = "events.jsonl"


def to_json_value(value: object) -> object:
    """Return numbers that JSON has no word for (nan, inf) as text, so that every line is JSON."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): to_json_value(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json_value(inner) for inner in value]
    return value


def append_line(path: Path, line: dict[str, Any]) -> None:
    """Add one line to a diary, in one write. Raises StorageError when the disk refuses."""
    data = (json.dumps(to_json_value(line), ensure_ascii=False) + "\n").encode()
    try:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, data)
        finally:
            os.close(handle)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror}).") from error


def record_event(run: Path, event: str, step: int, /, **facts: Any) -> None:
    """Add a line to RUN/events.jsonl: what happened at which step and when (`time`, seconds of the epoch)."""
    append_event(run / EVENTS, event, step, **facts)


def append_event(path: Path, event: str, step: int, /, **facts: Any) -> None:
    """Add an event's line to the diary at `path`. Raises StorageError."""
    append_line(path, {"event": event, "step": step, "time": round(time.time(), 3), **facts})
