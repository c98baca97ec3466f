"""Heartbeat of a rank: step, phase and time since, in shared memory and a file.

The training loop writes a few bytes of shared memory (`Pulse.phase`, under a microsecond, no disk and no
device); they outlive the rank as long as its monitor process has them mapped. Every few seconds a thread
copies them to RUN/heartbeats/rank-00000.json, for readers that only see the folder. Stdlib only.

The reader is another process and may read in the middle of a write, or the writer may be stopped there. So
there are two slots, written in turn, each with a number and a checksum: the newest valid slot counts.
"""

import json
import mmap
import struct
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.run_folder import line_forms
from vidcurate.errors import StateError
from vidcurate.storage import atomic_file, regular_file

HEARTBEATS = "heartbeats"
PAGE_BYTES = mmap.PAGESIZE
_FORM = struct.Struct("<qqddd16s")
_SUM = struct.Struct("<I")
_PLACE_BYTES = _FORM.size + _SUM.size
_MOST_LOOKS = 1000
PHASES = (
    "start",
    "data",
    "forward_backward",
    "update",
    "rerun",
    "rollback",
    "save",
    "sample",
    "validate",
    "end",
)
SLOW = ("start", "rerun", "rollback", "save", "sample", "validate", "end")
"""phases that may take longer than a step; each begins its time anew"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """What a page says: finished steps, the phase, and two times of the machine's monotonic clock.

    `since`: the last progress (a step's end, the begin of a slow phase). `limit_seconds`: from there on.
    """

    step: int
    phase: str
    since: float
    phase_since: float
    limit_seconds: float

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.since


class Pulse:
    """The page, as the loop writes it. Without one (`SILENT`) everything here does nothing."""

    __slots__ = (
        "_is_new",
        "_limit",
        "_page",
        "_phase",
        "_since",
        "_slow_limit",
        "_stall_limit",
        "_step",
        "_writes",
    )

    def __init__(
        self, page: mmap.mmap | None = None, *, stall_seconds: float = 0.0, slow_seconds: float = 0.0
    ) -> None:
        self._page = page
        self._stall_limit, self._slow_limit = stall_seconds, slow_seconds
        self._step, self._phase, self._is_new = 0, "start", True
        self._since, self._limit = time.monotonic(), slow_seconds
        self._writes = 0
        self.phase("start")

    def phase(self, name: str) -> None:
        """Say what begins now, one of PHASES. A slow one begins its time anew, with the limit for such."""
        if self._page is None:
            return
        now = time.monotonic()
        if name in SLOW:
            self._since, self._limit = now, self._slow_limit
        self._is_new = self._is_new or name == "start"
        self._phase = name
        self._write(now)

    def step(self, number: int) -> None:
        """Say that `number` steps are done and the next begins; the first after a start may compile."""
        if self._page is None:
            return
        now = time.monotonic()
        is_first = self._is_new
        self._step, self._since, self._is_new = number, now, False
        self._limit = self._slow_limit if is_first else self._stall_limit
        self._phase = "data"
        self._write(now)

    def _write(self, now: float) -> None:
        assert self._page is not None
        self._writes += 1
        name = self._phase.encode()
        whole = _FORM.pack(self._writes, self._step, self._since, now, self._limit, name)
        at = self._writes % 2 * _PLACE_BYTES
        self._page[at : at + _PLACE_BYTES] = whole + _SUM.pack(zlib.crc32(whole))


SILENT = Pulse()


def read_page(page: mmap.mmap) -> RankState:
    """Return what a rank's page says. Raises StateError for one that nothing was written to."""
    for _ in range(_MOST_LOOKS):  # the second is for two writes during one look
        seen = page[: 2 * _PLACE_BYTES]
        places = (seen[:_PLACE_BYTES], seen[_PLACE_BYTES:])
        found = [
            _FORM.unpack(place[: _FORM.size])
            for place in places
            if _SUM.pack(zlib.crc32(place[: _FORM.size])) == place[_FORM.size :]
        ]
        if found:
            _, step, since, phase_since, limit, name = max(found)
            phase = name.rstrip(b"\0").decode(errors="replace")
            return RankState(
                step=step, phase=phase, since=since, phase_since=phase_since, limit_seconds=limit
            )
    raise StateError("a heartbeat's page holds nothing whole; a Pulse has to write it before it is read.")


# ── the run's folder ────────────────────────────────────────────────────────────────────────────────────────


def path(run: Path, rank: int) -> Path:
    return run / HEARTBEATS / f"rank-{rank:05d}.json"


def write_heartbeat(
    run: Path, rank: int, seen: RankState, collectives: Sequence[dict[str, Any]] = ()
) -> None:
    """Write RUN/heartbeats/rank-….json, whole or not at all. Raises OSError when the disk refuses.

    `time` is of the epoch; `seconds_in_phase` and `seconds_since_progress` are up to then. `collectives`,
    of a rank that stands: `trainer.health.watch.flight_recorder.to_json`.
    """
    now = time.monotonic()
    facts: dict[str, Any] = {
        "time": round(time.time(), 3),
        "step": seen.step,
        "phase": seen.phase,
        "seconds_in_phase": round(now - seen.phase_since, 3),
        "seconds_since_progress": round(now - seen.since, 3),
    }
    if collectives:
        facts["collectives"] = list(collectives)
    wanted = path(run, rank)
    wanted.parent.mkdir(parents=True, exist_ok=True)
    atomic_file.put(wanted, json.dumps(facts) + "\n", is_flushed=False)


def read_heartbeat(run: Path) -> dict[int, dict[str, Any]]:
    """Return {rank: its newest heartbeat} of a run; a file that cannot be read or is forged is left out."""
    found: dict[int, dict[str, Any]] = {}
    for file in sorted((run / HEARTBEATS).glob("rank-*.json")):
        try:
            rank, beat = int(file.stem.removeprefix("rank-")), json.loads(regular_file.read_bytes(file))
        except (OSError, ValueError, RecursionError):
            continue
        if line_forms.is_heartbeat(beat):
            found[rank] = beat
    return found
