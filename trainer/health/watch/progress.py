"""Progress of a run, read from its folder, for the launch supervisor.

The steps are those of the newest complete checkpoint and of the last line of metrics.jsonl. Between steps the
ranks' heartbeats (RUN/heartbeats/rank-00000.json: {time, step, phase}) show that the run still moves.
"""

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from trainer.health.watch import heartbeat
from trainer.run_folder import layout as run_folder_layout
from trainer.run_folder import metrics
from vidcurate.storage import lock, regular_file

TAIL_BYTES = 1 << 18  # more than a line of metrics.jsonl
OFTEN_SECONDS = 1.0  # at most, between two looks at the heartbeats, where nothing holds up who looks


def highest_step(run: Path) -> int:
    """Return the highest step that the run's newest complete checkpoint or its metrics name; 0 for none."""
    there = run_folder_layout.checkpoints(run)
    return max(run_folder_layout.step_of(there[-1]) if there else 0, _last_step(run / metrics.METRICS))


def _last_step(path: Path) -> int:
    """Return the step of the last complete line of a JSONL file, reading its end only; 0 without one.

    A power loss can leave zeros where lines were.
    """
    if not path.exists():
        return 0
    with regular_file.opened(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        lines = file.read().rpartition(b"\n")[0].splitlines()
    for line in reversed(lines):
        with suppress(ValueError, KeyError, TypeError, OverflowError):
            return int(json.loads(line)["step"])
    return 0


class Heartbeats:
    """The heartbeats of one attempt; those that an earlier one has left say nothing."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self._seen = self._read()
        self._moved: float | None = None  # when one was last seen to move, by the monotonic clock
        self._looked = time.monotonic()

    def _read(self) -> dict[int, tuple[object, object]]:
        return {
            rank: (beat.get("step"), beat.get("phase"))
            for rank, beat in heartbeat.read_heartbeat(self.run).items()
        }

    def quiet_seconds(self) -> float | None:
        """Return for how long no rank has come to another step or phase; None before the first has.

        Not counted is the time in which nobody asked: then the job stood still, and this process with it.
        """
        looked, self._looked = self._looked, time.monotonic()
        now = self._read()
        if self._moved is not None:
            self._moved += max(0.0, self._looked - looked - OFTEN_SECONDS)
        if any(self._seen.get(rank) != beat for rank, beat in now.items()):
            self._moved = self._looked
        self._seen |= now
        return None if self._moved is None else self._looked - self._moved

    def to_text(self) -> str:
        """Return where the ranks stand: rank 0 step 7 (data), rank 1 step 7 (step)."""
        ranks = [f"rank {rank} step {step} ({phase})" for rank, (step, phase) in sorted(self._seen.items())]
        return ", ".join(ranks)


def is_free(run: Path, seconds: float, is_asked: Callable[[], bool] = lambda: False) -> bool:
    """Return whether no process trains into the run's folder, after waiting at most `seconds` for that.

    It returns early, with what it knows, when `is_asked` says that somebody asks for an end.
    """
    path = run / ".lock"
    until = time.monotonic() + seconds
    while path.exists():
        if lock.is_free(path):
            return True
        if time.monotonic() > until or is_asked():
            return False
        time.sleep(0.1)
    return True
