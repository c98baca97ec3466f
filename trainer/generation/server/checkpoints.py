"""Checkpoints to serve: find runs and their complete checkpoints.

A copy arrives file by file: rsync brings a folder's manifest before its tensors, and takes minutes. A
checkpoint is therefore checked by file sizes first, which costs nothing, then by SHA-256. An incomplete
checkpoint is skipped until one of its files changes.
"""

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from trainer.run_folder import jsonl, metrics
from trainer.run_folder import layout as run_folder_layout
from trainer.run_folder.checkpoint import checkpoint
from vidcurate.errors import CheckpointError, InputError

RESUMES = ("start", "resume", "load", "load_from_scratch", "weights")  # events of a training that starts


def by_number(text: str, folder: Path) -> list[Path]:
    """Return the runs in `folder` with the numbers of `text` (`1,2,3`, or a file with numbers).

    A run's number starts its name: 3, 003 and 003-STDiT3-XL-2 are run 3. Raises InputError.
    """
    if Path(text).is_file():
        text = Path(text).read_text(encoding="utf-8")
    words = [word for word in re.split(r"[\s,]+", text) if word]
    if not words or not all(word.isdecimal() for word in words):
        raise InputError(
            f"--expnums {text.strip()!r}: write numbers with commas, such as 1,2,3, or a file of them."
        )
    if not folder.is_dir():
        raise InputError(f"--runs-dir {folder}: no such folder.")
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    return [folder / _only(int(word), names, folder) for word in words]


def _only(number: int, names: list[str], folder: Path) -> str:
    hits = [name for name in names if (match := re.match(r"^(\d+)(?!\d)", name)) and int(match[1]) == number]
    if len(hits) != 1:
        what = f"{len(hits)} folders have it ({', '.join(hits)})" if hits else "no folder begins with it"
        raise InputError(f"--expnums {number}: {what} in {folder}; name the run by its path.")
    return hits[0]


def weights_digest(path: Path, part: str) -> str:
    """Return the SHA-256 over one part's manifest entries: it identifies the weights.

    Raises CheckpointError.
    """
    listed = checkpoint.listed_files(path, (part,))
    own = {name: facts["sha256"] for name, facts in listed.items() if name.partition("/")[0] == part}
    return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()


def _signature(path: Path) -> str:
    """Return a string that changes when a file of the checkpoint is added, removed or written."""
    facts = []
    for file in sorted(path.rglob("*")):
        try:
            stat = file.stat()
        except OSError:  # deleted since the listing
            continue
        facts.append((str(file.relative_to(path)), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))
    return hashlib.sha256(repr(facts).encode()).hexdigest()


@dataclass(slots=True, kw_only=True)
class Waiting:
    """Checkpoints found incomplete, with their state at that time and the reason that was logged."""

    left: dict[Path, str] = field(default_factory=dict)
    said: dict[Path, str] = field(default_factory=dict)

    def is_left(self, path: Path) -> bool:
        known = self.left.get(path)  # another thread may take it meanwhile
        return known is not None and known == _signature(path)

    def leave(self, path: Path, reason: str) -> bool:
        """Skip `path` until it changes; return whether the reason is new."""
        self.left[path] = _signature(path)
        kind = re.sub(r"\d+ bytes", "", reason)  # a growing file is not reported again
        is_news = self.said.get(path) != kind
        self.said[path] = kind
        return is_news

    def take(self, path: Path) -> None:
        """Stop skipping `path`: it is complete now, or deleted."""
        self.left.pop(path, None)
        self.said.pop(path, None)


def there(run: Path, part: str, waiting: Waiting) -> tuple[list[Path], list[tuple[Path, str]]]:
    """Return a run's checkpoints that look complete, newest first, and the others with reasons.

    A checkpoint deleted or replaced during the check is in neither list.
    """
    whole: list[Path] = []
    wanting: list[tuple[Path, str]] = []
    for path in reversed(run_folder_layout.checkpoints(run)):
        if waiting.is_left(path):
            continue
        try:
            checkpoint.check_sizes(path, (part,))
            whole.append(path)
        except CheckpointError as error:
            if (path / "manifest.json").is_file() and waiting.leave(path, str(error)):
                wanting.append((path, str(error)))
    return whole, wanting


def is_done(run: Path) -> bool:
    """Return whether the training has written its last step and has not restarted since."""
    kinds = [line["event"] for line in metrics.read_metrics(run / jsonl.EVENTS)]
    last = [kind for kind in kinds if kind in RESUMES or kind == "done"]
    return last[-1:] == ["done"]
