"""Monitoring of a rank during training: record, heartbeat, clock, monitor process.

`watching` surrounds a rank's training with a process record, a page of shared memory with its heartbeat, a
thread that copies the heartbeat to the run folder and checks the clock, and, some seconds later, a monitor
process beside the rank (`trainer.health.watch.monitor_process`). A run that ends earlier never starts one.
`trainer.health.watch.step_monitor` checks the metrics of every step. Nothing here changes a number of the
training.
"""

import faulthandler
import json
import mmap
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from trainer.cli import exit_codes
from trainer.distributed.mesh import World, run_on_first_rank
from trainer.health import timed_command
from trainer.health.clock_steps import ADVICE, ClockStep, ClockWatch
from trainer.health.watch import end_hung_run, flight_recorder, heartbeat
from trainer.health.watch import spec as watch_spec
from trainer.health.watch.flight_recorder import Collective
from trainer.health.watch.heartbeat import Pulse
from trainer.health.watch.monitor_process import GOODBYE, Job
from trainer.health.watch.spec import LostRankError, WatchSpec
from trainer.health.watch.step_monitor import StepWatch
from trainer.health.watch.stop_requests import Stop
from trainer.run_folder import jsonl, process_records
from trainer.run_folder.process_records import ProcessRecord
from vidcurate.errors import StateError, StorageError
from vidcurate.executor.shared_memory import anonymous_file

TICK_SECONDS = 1.0
BEAT_SECONDS = 5.0
IDLE_SECONDS = 10.0
"""time in one phase after which the heartbeat names the collective that the rank waits in"""
MONITOR_START_SECONDS = 10.0
"""from the start of the rank to that of its monitor process: short runs need none"""
APART_SECONDS = 5.0
"""between the two stack dumps of a stall"""
GONE_SECONDS = 12.0
"""how long a rank with a broken collective waits for the monitor processes to name the lost rank"""
LAST_WORDS_SECONDS = 0.3


# ── the thread of a rank ────────────────────────────────────────────────────────────────────────────────────


class _RankThread:
    """A rank's thread: writes the heartbeat, checks the clock, runs the monitor process."""

    def __init__(self, spec: WatchSpec, run: Path, record: ProcessRecord, page: int, stop: Stop) -> None:
        self.spec, self.run, self.record, self.stop = spec, run, record, stop
        self.page = page
        self.memory = mmap.mmap(page, heartbeat.PAGE_BYTES)
        self.pulse = Pulse(
            self.memory,
            stall_seconds=spec.stall_seconds or float("inf"),
            slow_seconds=watch_spec.SLOW_PHASE_SECONDS if spec.stall_seconds else float("inf"),
        )
        self._monitor_process: subprocess.Popen[bytes] | None = None
        self._stop_pipe = os.pipe()
        self._has_reported = False
        self._recorder = flight_recorder.Recorder() if record.world_size > 1 else None
        self._collectives: tuple[Collective, ...] = ()
        self._idle_seconds = min(IDLE_SECONDS, (spec.stall_seconds or IDLE_SECONDS) / 4)
        self._clock = ClockWatch(watch_spec.CLOCK_STEP_SECONDS) if record.local_rank == 0 else None
        self._needs_monitor_process = record.local_rank == 0 or spec.stall_seconds is not None
        self._thread = threading.Thread(target=self._live, name="trainer-watch", daemon=True)
        self._thread.start()

    def _live(self) -> None:
        first = min(MONITOR_START_SECONDS, (self.spec.stall_seconds or MONITOR_START_SECONDS) / 4)
        began, next_beat = time.monotonic(), 0.0
        while True:
            now = time.monotonic()
            if self._collectives_changed(now) or now >= next_beat:
                self._beat()
                next_beat = now + BEAT_SECONDS
            if self._monitor_process is None and now - began >= first and self._needs_monitor_process:
                self._start_monitor_process()
            if self._clock and (step := self._clock.look()):
                self._report_clock_step(step)
            heard = select.poll()  # not select: a rank that talks to thousands has descriptors above 1023
            heard.register(self._stop_pipe[0], select.POLLIN)
            if self._monitor_process is not None and self._monitor_process.stdout is not None:
                heard.register(self._monitor_process.stdout, select.POLLIN)
            wait = (
                TICK_SECONDS if self._monitor_process else min(TICK_SECONDS, max(0.01, first - (now - began)))
            )
            ready = [descriptor for descriptor, _ in heard.poll(1000 * wait)]
            if self._stop_pipe[0] in ready:
                return
            if ready:
                self._follow_order()

    def _collectives_changed(self, now: float) -> bool:
        """Read the flight recorder of a rank without progress; return whether it changed."""
        if self._recorder is None:
            return False
        before, self._collectives = self._collectives, ()
        if now - heartbeat.read_page(self.memory).phase_since >= self._idle_seconds:
            try:
                self._collectives = self._recorder.look()
            except (StateError, RuntimeError, ValueError) as error:
                self._recorder = None
                text = f"rank {self.record.rank}: cannot read the flight recorder: {error}"
                print(text, file=sys.stderr, flush=True)
        return self._collectives != before

    def _beat(self) -> None:
        reported = flight_recorder.to_json(self._collectives)
        try:
            heartbeat.write_heartbeat(self.run, self.record.rank, heartbeat.read_page(self.memory), reported)
        except OSError as error:
            self._say_once(f"heartbeats cannot be written ({error.strerror}); the run continues without them")

    def _say_once(self, text: str) -> None:
        if not self._has_reported:
            self._has_reported = True
            print(f"rank {self.record.rank}: {text}", file=sys.stderr, flush=True)

    def _start_monitor_process(self) -> None:
        spec, is_first_here = self.spec, self.record.local_rank == 0
        job = Job(
            record=self.record,
            page=self.page,
            look_seconds=min(TICK_SECONDS, (spec.stall_seconds or 10.0) / 10),
            apart_seconds=min(APART_SECONDS, (spec.stall_seconds or APART_SECONDS) / 8),
            stalls=spec.stall_seconds is not None,
            on_stall=spec.on_stall,
            hardware_seconds=watch_spec.HARDWARE_SECONDS if is_first_here else None,
            on_hardware=spec.on_hardware,
        )
        module = "trainer.health.watch.monitor_process"
        program = f"import sys; sys.path.insert(0, sys.argv[1]); from {module} import main; main(sys.argv[2])"
        root = str(Path(__file__).resolve().parents[3])
        try:
            # -S: it needs no installed package, and starts in half the time.
            self._monitor_process = subprocess.Popen(
                [sys.executable, "-S", "-P", "-c", program, root, job.as_text()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(self.page,),
            )
        except OSError as error:
            self._say_once(f"its monitor process cannot be started ({error.strerror}); the run continues")
            self._needs_monitor_process = False
            return
        _allow_ptrace(self._monitor_process.pid)

    def _follow_order(self) -> None:
        """Exit when the monitor process orders it: the main thread hangs."""
        assert self._monitor_process is not None
        assert self._monitor_process.stdout is not None
        said = self._monitor_process.stdout.readline()
        if not said:  # the monitor process itself is gone: the run continues without it
            self._say_once("its monitor process has ended; nothing monitors this rank any more")
            self._monitor_process.stdout.close()
            self._monitor_process.stdout = None
            return
        order = json.loads(said)
        print(f"error: rank {self.record.rank} ends: {order['why']}.", file=sys.stderr, flush=True)
        time.sleep(LAST_WORDS_SECONDS)  # the first rank's log is copied to the console ten times a second
        os._exit(order["code"])

    def _report_clock_step(self, step: ClockStep) -> None:
        facts = {"host": self.record.host, "seconds": step.seconds, "within_seconds": step.within_seconds}
        with suppress(StorageError):
            seen = heartbeat.read_page(self.memory)
            jsonl.record_event(self.run, "clock_step", seen.step, **facts, advice=ADVICE)
        print(step.to_text(self.record.host), file=sys.stderr, flush=True)

    def close(self) -> None:
        os.write(self._stop_pipe[1], b"x")
        self._thread.join()
        for end in self._stop_pipe:
            os.close(end)
        if self._monitor_process is not None:
            _end_monitor_process(self._monitor_process)
        with suppress(OSError):  # after a crash the last heartbeat stays
            heartbeat.path(self.run, self.record.rank).unlink(missing_ok=True)


def _allow_ptrace(process: int) -> None:
    """Allow the monitor process and its children to ptrace this process, for Yama."""
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(0x59616D61, process, 0, 0, 0)  # PR_SET_PTRACER


def _end_monitor_process(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.write(GOODBYE)
        process.stdin.close()
    try:
        process.wait(2.0)
    except subprocess.TimeoutExpired:
        timed_command.kill(process)
    if process.stdout is not None:
        process.stdout.close()


@dataclass(frozen=True, slots=True)
class Watched:
    """For the training loop: `pulse` takes the phase, `steps` the metrics of each step."""

    pulse: Pulse
    steps: StepWatch


@contextmanager
def watching(spec: WatchSpec, run: Path, world: World, stop: Stop) -> Iterator[Watched]:
    """Monitor this rank while the block runs.

    A collective that breaks because another rank is gone is raised as LostRankError (exit code 76). Raises
    StorageError when the run's folder cannot be written.
    """
    file = anonymous_file(0)
    faulthandler.register(signal.SIGUSR2, file=file, all_threads=True)
    page = anonymous_file(heartbeat.PAGE_BYTES)
    local = os.environ.get("LOCAL_RANK", "0")
    record = process_records.record_of_this_process(
        run,
        rank=world.rank,
        local_rank=int(local) if local.isdigit() else 0,
        world_size=world.size,
        stack_descriptor=file,
        start_id=run_on_first_rank(lambda: uuid.uuid4().hex, world),
    )
    if world.is_first:
        end_hung_run.forget(run)
    try:
        with process_records.registered(run, record):
            body = _RankThread(spec, run, record, page, stop)
            try:
                yield Watched(body.pulse, StepWatch(spec, run, world, stop))
            except RuntimeError as error:
                if world.size == 1 or not _is_broken_collective(error):
                    raise
                _exit_within_limit()
                raise LostRankError(_describe_lost_rank(run, record, body, error)) from error
            finally:
                body.pulse.phase("end")
                body.close()
    finally:
        faulthandler.unregister(signal.SIGUSR2)
        os.close(file)
        os.close(page)


# ── a collective that breaks ────────────────────────────────────────────────────────────────────────────────

LEAVE_SECONDS = 30.0


def _exit_within_limit() -> None:
    """Exit within LEAVE_SECONDS: to destroy process groups with lost ranks can hang."""
    timer = threading.Timer(LEAVE_SECONDS, os._exit, [exit_codes.RESTART])
    timer.daemon = True
    timer.start()


_BROKEN = re.compile(r"gloo|connection (closed|reset|refused)|broken pipe|nccl|socket timeout|tcpstore", re.I)


def _is_broken_collective(error: RuntimeError) -> bool:
    return "Dist" in type(error).__name__ or _BROKEN.search(str(error)) is not None


def _describe_lost_rank(run: Path, record: ProcessRecord, body: _RankThread, error: RuntimeError) -> str:
    """Return the text for a broken collective, after the monitor processes (or this rank) reported it."""
    began = time.monotonic()
    seen = heartbeat.read_page(body.memory)
    first = str(error).strip().splitlines()[0][:200]
    while time.monotonic() < began + GONE_SECONDS:
        now = end_hung_run.claimed(run, record.start_id)
        if now is not None and (run / "stacks" / now.folder / "summary.json").exists():
            return f"rank {now.rank} on {now.host} is gone, at step {seen.step + 1} ({first})"
        if now is None and time.monotonic() > began + GONE_SECONDS / 6:
            break  # no monitor process saw it
        time.sleep(0.1)
    gone = [
        one
        for one in process_records.of_start(run, record.start_id)
        if one.host == record.host and not process_records.is_alive(one)
    ]
    with suppress(OSError):
        rank, host = (gone[0].rank, gone[0].host) if gone else (record.rank, record.host)
        now = end_hung_run.claim(
            run,
            record.start_id,
            kind="lost",
            step=seen.step,
            phase=seen.phase,
            rank=rank,
            host=host,
            seconds=seen.seconds,
        )
        if now is not None:
            facts = {"kind": "lost", "phase": seen.phase, "seconds": now.seconds, "said": first}
            facts |= (
                {"rank": rank, "host": host, "why": "has ended"} if gone else {"rank": None, "host": None}
            )
            jsonl.record_event(run, "stall", seen.step, **facts)
    who = f"rank {gone[0].rank} on {gone[0].host}" if gone else "a rank"
    return f"{who} is gone, at step {seen.step + 1} ({first})"


def exit_code(spec: WatchSpec, stopped_by: str | None) -> int:
    """Return how a run ends: done (None), or saved and stopped by a signal or by what was seen of it.

    A signal asks for a turn later (75), a policy `restart` for one at once (76), `stop` for a person (78).
    """
    if stopped_by is None:
        return exit_codes.DONE
    policies = {"slow_rank": spec.on_slow_rank}
    ends = {"restart": exit_codes.RESTART, "stop": exit_codes.HALT}
    return ends.get(policies.get(stopped_by, ""), exit_codes.REQUEUE)
