"""JSON lines of a run: append each in one write, so processes can share a file.

Stdlib only: the monitor process writes events too, and starts in a few milliseconds.
`trainer.run_folder.metrics` reads the lines.
"""

import json
import math
import time
from pathlib import Path
from typing import Any

from vidcurate.storage import atomic_file

EVENTS = "events.jsonl"


def to_json_value(value: object) -> object:
    """Return the value with nan and inf as text, because JSON has no such numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): to_json_value(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json_value(inner) for inner in value]
    return value


def append_line(path: Path, line: dict[str, Any]) -> None:
    """Append one line to a JSONL file, in one write. Raises StorageError, also for a link."""
    atomic_file.append(path, (json.dumps(to_json_value(line), ensure_ascii=False) + "\n").encode())


def record_event(run: Path, event: str, step: int, /, **facts: Any) -> None:
    """Append an event to RUN/events.jsonl: kind, step, `time` (seconds since the epoch) and `facts`."""
    append_event(run / EVENTS, event, step, **facts)


def append_event(path: Path, event: str, step: int, /, **facts: Any) -> None:
    """Append an event to the JSONL file `path`. Raises StorageError."""
    append_line(path, {"event": event, "step": step, "time": round(time.time(), 3), **facts})
