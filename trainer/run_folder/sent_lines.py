"""Sent lines of a tracker: record of its log lines, beside its output."""

import dataclasses
import json
import secrets
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from vidcurate.errors import InputError
from vidcurate.storage import atomic_file, json_shape, regular_file

NAME = "mirrored.json"


@dataclass
class Sent:
    """Lines sent over all starts: up to a step, or a number of lines, by log file; `id` names the W&B run."""

    id: str = field(default_factory=partial(secrets.token_hex, 4))
    steps: dict[str, int] = field(default_factory=dict)
    lines: dict[str, json_shape.Count] = field(default_factory=dict)


def begin(path: Path) -> Sent:
    """Return the record of a tracker, stored anew at its first start. Raises InputError, StorageError."""
    try:
        sent = json_shape.parse(regular_file.read_bytes(path), Sent)
    except FileNotFoundError:
        sent = Sent()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        hint = "Delete it; the tracker then sends every line again."
        raise InputError(f"{path}: not a record of sent lines ({reason}). {hint}") from error
    write(path, sent)
    return sent


def write(path: Path, sent: Sent) -> None:
    """Store the record, and make its folder. Raises StorageError."""
    atomic_file.write_bytes(path, json.dumps(dataclasses.asdict(sent)), is_flushed=False)
