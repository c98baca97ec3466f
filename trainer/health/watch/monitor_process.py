"""Monitor process beside a rank: detects hangs and lost ranks, and ends its rank.

A thread of the rank would need the GIL, and the rank to detect may hang in C code with the GIL held, or be
stopped. So this is a separate process with only the standard library (12 MB). It reads the rank's heartbeat
in shared memory once a second, so a hanging disk does not look like a stall, and notices at once when the
rank is gone. When a step does not end, or a rank is lost, it takes part in
`trainer.health.watch.end_hung_run` and then ends its rank: by a message with the exit code, or by SIGKILL
where the rank does not respond.

`trainer.health.watch.monitor` starts it some seconds after the rank. The end of stdin means that the rank
ends; stdout carries orders back.
"""

import json
import mmap
import os
import select
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.cli import exit_codes
from trainer.health.watch import end_hung_run, gpu_monitor, heartbeat
from trainer.health.watch.heartbeat import RankState
from trainer.run_folder import process_records
from trainer.run_folder.process_records import ProcessRecord
from vidcurate.errors import StateError

GOODBYE = b"bye\n"
ENDS_SECONDS = 5.0
"""how long a rank may take to exit before SIGKILL"""
SETTLED_SECONDS = 10.0
"""without progress, before ranks of other hosts are looked for in the run's folder, and how often"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Arguments of a monitor process. `page`: the file descriptor of the rank's heartbeat."""

    record: ProcessRecord
    page: int
    look_seconds: float
    apart_seconds: float
    stalls: bool
    on_stall: str
    hardware_seconds: float | None
    on_hardware: str

    def as_text(self) -> str:
        names = (
            "page",
            "look_seconds",
            "apart_seconds",
            "stalls",
            "on_stall",
            "hardware_seconds",
            "on_hardware",
        )
        return json.dumps({name: getattr(self, name) for name in names} | {"record": self.record.to_json()})


def job_from(text: str) -> Job:
    values: dict[str, Any] = json.loads(text)
    return Job(**values | {"record": process_records.from_json(values["record"])})


class RankMonitor:
    """Monitors one rank until it ends, orderly or not."""

    def __init__(self, job: Job) -> None:
        self.job, self.rank = job, job.record
        self.run = Path(job.record.run)
        self.page = mmap.mmap(job.page, heartbeat.PAGE_BYTES, prot=mmap.PROT_READ)
        self.peers: dict[int, ProcessRecord] = {}
        self.handled: end_hung_run.Claim | None = None
        self.handled_at: tuple[int, str] | None = None  # step and phase of this rank then
        self.has_complained = False
        self.next_look_around = 0.0
        self.is_ending = False
        self.lost_seconds = 0.0  # time in which the machine or job was suspended, so that no rank could move
        self.stands_since = 0.0  # start of the last phase seen, and lost_seconds at that time
        self.lost_by_then = 0.0

    def see(self) -> RankState:
        return heartbeat.read_page(self.page)

    def watch(self) -> None:
        while True:
            began = time.monotonic()
            ready, _, _ = select.select([sys.stdin], [], [], self.job.look_seconds)
            self.slept(time.monotonic() - began)
            if ready:
                said = os.read(0, 64)
                if said != GOODBYE and not self.is_ending:
                    self.lost(self.rank)
                return
            if self.step():
                return

    def slept(self, seconds: float) -> None:
        """Take note of a wait that was to last `look_seconds`: of a longer one, the machine or the job stood
        still (a suspended machine, `scontrol suspend`), and no rank could move.
        """
        self.lost_seconds += max(0.0, seconds - self.job.look_seconds)

    def is_late(self, seen: RankState) -> bool:
        """Return whether the rank made no progress within its limit while this process ran."""
        if seen.since != self.stands_since:
            self.stands_since, self.lost_by_then = seen.since, self.lost_seconds
        return seen.seconds - (self.lost_seconds - self.lost_by_then) > seen.limit_seconds

    def step(self) -> bool:
        """Check once; return whether this process ended the rank."""
        seen = self.see()
        if not self.job.stalls:
            return False
        now = end_hung_run.claimed(self.run, self.rank.start_id)
        if now is not None and now != self.handled:
            return self.handle(now, is_first=False)
        if self.handled_at is not None:
            if (seen.step, seen.phase) == self.handled_at:
                return False  # already reported, and the policy is to wait
            self.handled = self.handled_at = None
            end_hung_run.forget(self.run)
        if self.is_late(seen):
            return self.claim("stall", self.rank, seen)
        try:
            gone = self.gone(seen)
        except (OSError, StateError) as error:
            if not self.has_complained:
                say(f"rank {self.rank.rank}: cannot check for lost ranks now ({error})")
            self.has_complained = True
            return False
        return self.lost(gone) if gone else False

    # ── ranks that are gone ─────────────────────────────────────────────────────────────────────────────────

    def gone(self, seen: RankState) -> ProcessRecord | None:
        """Return a rank that has ended while this one waits for it; none while this one ends itself."""
        if seen.phase in ("start", "end") or self.rank.world_size == 1:
            return None
        if len(self.peers) < self.rank.world_size:
            found = process_records.of_start(self.run, self.rank.start_id)
            self.peers |= {one.rank: one for one in found}
        for one in self.peers.values():
            is_here = one.host == self.rank.host and one.boot_id == self.rank.boot_id
            if (
                is_here
                and not process_records.is_alive(one)
                and process_records.record_path(self.run, one.rank).exists()
            ):
                return one
        if seen.seconds < SETTLED_SECONDS or time.monotonic() < self.next_look_around:
            return None
        self.next_look_around = time.monotonic() + SETTLED_SECONDS
        there = {path.name for path in process_records.record_path(self.run, 0).parent.glob("rank-*.json")}
        for one in self.peers.values():  # the peer ended orderly, as after an error, without notice
            if process_records.record_path(self.run, one.rank).name not in there:
                return one
        return None

    def lost(self, gone: ProcessRecord) -> bool:
        seen = self.see()
        if seen.phase == "end":
            return False
        return self.claim("lost", gone, seen)

    # ── reactions ───────────────────────────────────────────────────────────────────────────────────────────

    def claim(self, kind: str, whom: ProcessRecord, seen: RankState) -> bool:
        why = "the record that another rank wrote is damaged"
        try:
            for _ in range(2):  # a peer's record may be gone again when this process reads it
                mine = end_hung_run.claim(
                    self.run,
                    self.rank.start_id,
                    kind=kind,
                    step=seen.step,
                    phase=seen.phase,
                    rank=whom.rank,
                    host=whom.host,
                    seconds=seen.seconds,
                )
                now = mine or end_hung_run.claimed(self.run, self.rank.start_id)
                if now is not None:
                    return self.handle(now, is_first=mine is not None)
        except OSError as error:
            why = str(error)
        say(
            f"rank {self.rank.rank}: {kind} at step {seen.step}, and the run folder cannot be written ({why})"
        )
        policy, self.handled_at = self.policy(kind), (seen.step, seen.phase)
        return policy != "warn" and self.end(f"{kind} at step {seen.step}", policy)

    def policy(self, kind: str) -> str:
        """Return the policy for a hang; a lost rank always means restart."""
        return self.job.on_stall if kind == "stall" else "restart"

    def handle(self, now: end_hung_run.Claim, *, is_first: bool) -> bool:
        seen, policy = self.see(), self.policy(now.kind)
        self.handled, self.handled_at = now, (seen.step, seen.phase)
        unmonitored: list[ProcessRecord] = []
        try:
            unmonitored = end_hung_run.take_part(
                self.run,
                now,
                self.rank,
                self.see,
                is_first=is_first,
                policy=policy,
                apart_seconds=self.job.apart_seconds,
            )
        except Exception as error:  # noqa: BLE001 - no file of the run folder keeps a hung rank alive
            say(f"rank {self.rank.rank}: {now.kind} at step {now.step}; its stacks are not whole ({error})")
        if policy == "warn":
            return False
        for one in unmonitored:
            kill(one, "has no monitor process")
        what = f"rank {now.rank} on {now.host} is lost" if now.kind == "lost" else now.kind
        return self.end(f"{what} at step {now.step}; see {now.folder}", policy)

    def end(self, why: str, policy: str) -> bool:
        return self.end_with(exit_codes.HALT if policy == "stop" else exit_codes.RESTART, why)

    def end_with(self, code: int, why: str) -> bool:
        """End the rank: send it the exit code, and SIGKILL where it does not respond."""
        self.is_ending = True
        with suppress(OSError):
            os.write(1, (json.dumps({"code": code, "why": why}) + "\n").encode())
        until = time.monotonic() + ENDS_SECONDS
        while process_records.is_alive(self.rank):
            if time.monotonic() > until:
                kill(self.rank, "does not exit")
                return True
            time.sleep(0.05)
        return True


def kill(rank: ProcessRecord, why: str) -> None:
    """Kill a rank of this host, if the process of its record is still alive."""
    if process_records.is_alive(rank):
        say(f"rank {rank.rank} {why}: killed")
        with suppress(ProcessLookupError):
            os.kill(rank.pid, signal.SIGKILL)


def say(text: str) -> None:
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def main(text: str) -> None:
    """Watch the rank of the job `text` (JSON) until it ends."""
    # Signals to the process group are for the rank, which ends this process itself.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    job = job_from(text)
    monitor = RankMonitor(job)
    if job.hardware_seconds is not None:
        gpu_monitor.start(
            monitor.run,
            job.hardware_seconds,
            step=lambda: monitor.see().step,
            end=monitor.end_with if job.on_hardware == "act" else None,
        )
    monitor.watch()
    os._exit(0)  # do not wait for the GPU monitor thread
