"""Which runs, which of their checkpoints are there, and whether one is whole.

A copy arrives file by file: rsync brings a folder's manifest before its tensors, and takes minutes. So a
checkpoint is looked at by sizes first, which costs nothing, then by SHA-256; one that is not whole is left
alone until one of its files changes.
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

RESUMES = ("start", "resume", "load", "load_from_scratch", "weights")  # events of a training that begins


def by_number(text: str, folder: Path) -> list[Path]:
    """Return the runs in `folder` with the numbers of `text` (`1,2,3`, or a file with numbers).

    A run's number stands at the start of its name: 3, 003 and 003-STDiT3-XL-2 are run 3. Raises InputError.
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
    """Return the SHA-256 over the manifest's words of one part: another one means other weights.

    Raises CheckpointError.
    """
    listed = checkpoint.listed_files(path, (part,))
    own = {name: facts["sha256"] for name, facts in listed.items() if name.partition("/")[0] == part}
    return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()


def _signature(path: Path) -> str:
    """Return a word that changes when a file of the checkpoint comes, goes or is written."""
    facts = []
    for file in sorted(path.rglob("*")):
        try:
            stat = file.stat()
        except OSError:  # gone since it was listed
            continue
        facts.append((str(file.relative_to(path)), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))
    return hashlib.sha256(repr(facts).encode()).hexdigest()


@dataclass(slots=True, kw_only=True)
class Waiting:
    """The checkpoints that were found not to be whole, as they were then, and what was said of them."""

    left: dict[Path, str] = field(default_factory=dict)
    said: dict[Path, str] = field(default_factory=dict)

    def is_left(self, path: Path) -> bool:
        return path in self.left and self.left[path] == _signature(path)

    def leave(self, path: Path, reason: str) -> bool:
        """Leave `path` alone until it changes; return whether the reason is one that was not said yet."""
        self.left[path] = _signature(path)
        kind = re.sub(r"\d+ bytes", "", reason)  # a file that grows is no news
        is_news = self.said.get(path) != kind
        self.said[path] = kind
        return is_news

    def take(self, path: Path) -> None:
        """Forget `path`: it is whole now, or gone."""
        self.left.pop(path, None)
        self.said.pop(path, None)


def there(run: Path, part: str, waiting: Waiting) -> tuple[list[Path], list[tuple[Path, str]]]:
    """Return the checkpoints of a run that look whole, newest first, and those found wanting, with reasons.

    What is gone again, deleted or replaced while it was looked at, is in neither.
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


def is_run(folder: Path) -> bool:
    """Say whether a training writes into the folder or has done so, or a copy of it has begun to arrive."""
    return any((folder / name).exists() for name in (jsonl.EVENTS, ".lock")) or any(folder.glob("step-*"))


def is_done(run: Path) -> bool:
    """Say whether the training has written its last step, and has not begun again since."""
    kinds = [line["event"] for line in metrics.read_metrics(run / jsonl.EVENTS)]
    last = [kind for kind in kinds if kind in RESUMES or kind == "done"]
    return last[-1:] == ["done"]
