"""The decode workers of one rank, kept alive: killed when late, replaced when dead, and never waited for.

One thread of the parent hands tasks out, one at a time per worker, and takes answers; only file descriptors
and short lines pass between the processes, the frames lie in shared memory. A task that crashes its worker,
or is later than its deadline, is given out once more to a fresh worker; the second time it fails: as the
clip's own fault where it hung in decoding, as the storage's where it hung in reading. A worker that was
killed or stopped from outside (by hand, or for want of memory) is not held against its clip. Workers that are
old or large are replaced one at a time, between clips. Nothing here decides what is read or in which order.
"""

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vidcurate.errors import MediaError, StorageError, VidcurateError
from vidcurate.executor.shared_memory import SharedArray as Buffer
from vidcurate.loader.decode import worker_heartbeat
from vidcurate.loader.decode.decode_clip import DecodeTask
from vidcurate.loader.decode.worker_heartbeat import WorkerState
from vidcurate.loader.decode.worker_process import raise_error, task_line

_TRIES = 2
# glibc would give pictures' memory back after each clip and take it anew; the worker does so every few clips.
_MALLOC = {"ARENA_MAX": 2, "MMAP_THRESHOLD_": 32 << 20, "TRIM_THRESHOLD_": 64 << 20}
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", **{f"MALLOC_{name}": str(value) for name, value in _MALLOC.items()}}
_MOST_KILLS = 10  # from outside, while on one task
_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP)
_START_TRIES = 3
_START_SECONDS = 120.0
_GOODBYE_SECONDS = 2.0
_EXIT_SECONDS = 5.0  # of a worker that has hung up
_LOOK_SECONDS = 1.0  # at most, while a worker may become late
_KILL_SECONDS = 10.0  # a process that waits for a dead disk cannot even be killed
# A terminal and a scheduler signal the whole group; the parent decides what becomes of the workers.
_PROGRAM = (
    "import signal as s; [s.signal(number, s.SIG_IGN) for number in (s.SIGINT, s.SIGTERM, s.SIGUSR1)]; "
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from vidcurate.loader.decode.worker_process import main; main(*map(int, sys.argv[2:]))"
)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_SECONDS)


@dataclass(slots=True, eq=False)
class _Job:
    task: DecodeTask
    buffer: Buffer
    offset: int
    future: "Future[str]"
    tries: int = 0
    kills: int = 0


@dataclass(slots=True, eq=False)
class _Worker:
    process: "subprocess.Popen[bytes]"
    channel: socket.socket
    page: int  # the file of its heartbeat
    due: float  # monotonic time at which it is late: with its start, then with its job
    clips_to_live: int
    private_bytes: int = 0
    is_ready: bool = False
    job: _Job | None = None
    received: bytearray = field(default_factory=bytearray)


class DecodePool:
    """`num_workers` decode processes. Use as a context manager, or call `close`.

    A worker is replaced after about `max_worker_clips`, and as soon as it holds more than `max_worker_bytes`.
    """

    def __init__(
        self,
        num_workers: int,
        *,
        deadline_seconds: float,
        max_worker_clips: int = 20_000,
        max_worker_bytes: int = 4 << 30,
    ) -> None:
        self._num_workers = num_workers
        self._deadline_seconds = deadline_seconds
        self._max_worker_clips, self._max_worker_bytes = max_worker_clips, max_worker_bytes
        self._num_started = 0
        self._lock = threading.Lock()
        self._waiting: deque[_Job] = deque()
        self._events: deque[dict[str, Any]] = deque()
        self._workers: list[_Worker] = []
        self._failed_starts = 0
        self._is_closing = False
        self._error: BaseException | None = None
        self._bell, self._listener = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        # The workers die with the thread that started them (PR_SET_PDEATHSIG goes by thread): so this one.
        self._thread = threading.Thread(target=self._serve, name="vidcurate-decode-pool", daemon=True)
        self._thread.start()

    def submit(
        self, task: DecodeTask, buffer: Buffer, offset: int, *, is_urgent: bool = False
    ) -> "Future[str]":
        """Have the frames of `task` written to `offset` of the slab; the result is the caption.

        The future raises MediaError for a clip that cannot be decoded (also kind deadline and worker_died,
        after the second try), and the errors of `decode_worker.decode`.
        """
        job = _Job(task, buffer, offset, Future())
        with self._lock:
            if self._error is not None or self._is_closing:
                raise VidcurateError("the decode workers have stopped.") from self._error
            (self._waiting.appendleft if is_urgent else self._waiting.append)(job)
        self._ring()
        return job.future

    def take_events(self) -> list[dict[str, Any]]:
        """Return what happened to workers since the last call."""
        with self._lock:
            found = list(self._events)
            self._events.clear()
        return found

    def process_ids(self) -> list[int]:
        """Return the ids of the living workers."""
        with self._lock:
            return [worker.process.pid for worker in self._workers]

    def close(self) -> None:
        """End the workers. Tasks that are not finished are cancelled."""
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
        self._ring()
        self._thread.join()
        self._bell.close()
        self._listener.close()
        self._selector.close()

    def __enter__(self) -> "DecodePool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ── the thread ──────────────────────────────────────────────────────────────────────────────────────────

    def _ring(self) -> None:
        self._bell.send(b"\0")

    def _serve(self) -> None:
        try:
            while not self._is_closing:
                self._recycle()
                self._fill()
                self._hand_out()
                wait, began = self._seconds_to_wait(), time.monotonic()
                found = self._selector.select(wait)
                if wait is not None:
                    self._slept(time.monotonic() - began - wait)
                for ready, _ in found:
                    if ready.data is None:
                        self._listener.recv(1 << 12)
                    else:
                        self._receive(ready.data)
                now = time.monotonic()
                for worker in [worker for worker in self._workers if worker.due <= now]:
                    self._stop_late(worker)
        except BaseException as error:  # noqa: BLE001 - whoever waits for a clip must learn of it
            with self._lock:
                self._error = error
        finally:
            self._end()

    def _seconds_to_wait(self) -> float | None:
        """Return how long nothing has to be done if nothing happens; None: for ever."""
        if len(self._workers) < self._num_workers:  # one was found dead when it was to be given a task
            return 0.0
        due = min(worker.due for worker in self._workers)
        return None if due == float("inf") else min(max(0.0, due - time.monotonic()), _LOOK_SECONDS)

    def _slept(self, too_long_seconds: float) -> None:
        """Put off all deadlines by what a wait took too long: the machine or the job stood still meanwhile
        (suspended), and the workers with it.
        """
        for worker in self._workers:
            worker.due += max(0.0, too_long_seconds)

    def _fill(self) -> None:
        while len(self._workers) < self._num_workers:
            ours, theirs = socket.socketpair()
            page = worker_heartbeat.new_page()
            with theirs:
                root = str(Path(__file__).resolve().parents[3])
                numbers = [str(number) for number in (theirs.fileno(), page, os.getpid())]
                process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _PROGRAM, root, *numbers],
                    pass_fds=[theirs.fileno(), page],
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, **_ENVIRONMENT},
                )
            self._num_started += 1
            share = min(self._num_started / self._num_workers, 1.0)  # the first ones do not age all at once
            worker = _Worker(
                process,
                ours,
                page,
                due=time.monotonic() + _START_SECONDS,
                clips_to_live=max(1, round(share * self._max_worker_clips)),
            )
            self._selector.register(ours, selectors.EVENT_READ, worker)
            with self._lock:
                self._workers.append(worker)

    def _recycle(self) -> None:
        """Replace one worker that is idle and old or large, if all others are there to go on."""
        if not all(worker.is_ready for worker in self._workers):
            return
        for worker in self._workers:
            is_large = worker.private_bytes > self._max_worker_bytes
            if worker.job is None and (is_large or worker.clips_to_live <= 0):
                self._end_worker(worker)
                if is_large:
                    event = {"reason": "memory", "clip_id": None, "private_bytes": worker.private_bytes}
                    self._events.append({"event": "worker_replaced", **event})
                return

    def _hand_out(self) -> None:
        for worker in list(self._workers):
            while worker.is_ready and worker.job is None:
                with self._lock:
                    if not self._waiting:
                        return
                    job = self._waiting.popleft()
                if not job.future.running() and not job.future.set_running_or_notify_cancel():
                    continue
                worker.job = job
                job.tries += 1
                worker.due = time.monotonic() + self._deadline_seconds
                try:
                    line = task_line(job.task, job.offset)
                    socket.send_fds(worker.channel, [line], [job.buffer.descriptor])
                except OSError:  # it died between two tasks
                    worker.job = None
                    job.tries -= 1
                    with self._lock:
                        self._waiting.appendleft(job)
                    self._drop(worker, "worker_died")
                    break

    def _receive(self, worker: _Worker) -> None:
        if worker not in self._workers:  # dropped earlier in this round
            return
        try:
            data = worker.channel.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._drop(worker, "worker_died")
            return
        worker.received += data
        while b"\n" in worker.received:
            line, _, rest = worker.received.partition(b"\n")
            worker.received = bytearray(rest)
            worker.due = float("inf")
            message = json.loads(line)
            if "ready" in message:
                worker.is_ready = True
                self._failed_starts = 0
                continue
            job, worker.job = worker.job, None
            worker.clips_to_live -= 1
            worker.private_bytes = message["private_bytes"]
            if job is None:
                raise VidcurateError("a decode worker answered a task that it was not given.")
            try:
                raise_error(message)
                job.future.set_result(message["caption"])
            except VidcurateError as error:
                job.future.set_exception(error)

    def _stop_late(self, worker: _Worker) -> None:
        self._drop(
            worker, "deadline", worker_heartbeat.read_heartbeat(worker.page, worker.process.pid, ask=True)
        )

    def _end_worker(self, worker: _Worker) -> None:
        _kill(worker.process)
        self._selector.unregister(worker.channel)
        worker.channel.close()
        os.close(worker.page)
        with self._lock:
            self._workers.remove(worker)

    def _drop(self, worker: _Worker, reason: str, seen: WorkerState | None = None) -> None:
        """End the worker; give its job out again, or fail it the second time."""
        if seen is None:
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(_EXIT_SECONDS)  # its exit status says whose fault it was
            seen = worker_heartbeat.read_heartbeat(worker.page, worker.process.pid, ask=False)
        self._end_worker(worker)
        status, job = worker.process.returncode, worker.job
        event = {"event": "worker_replaced", "reason": reason, "clip_id": job.task.clip_id if job else None}
        with self._lock:
            self._events.append({**event, "exit_status": status, **seen.as_event()})
        is_outside = status in _OUTSIDE if reason == "worker_died" else seen.state == worker_heartbeat.STOPPED
        if not worker.is_ready:
            self._failed_starts += 1
            if self._failed_starts >= (_MOST_KILLS if is_outside else _START_TRIES):
                raise VidcurateError(
                    f"a decode worker could not start, {self._failed_starts} times in a row (exit status "
                    f"{status}); its error stands above. Try num_workers: 0."
                )
        if job is None:
            return
        if is_outside:
            job.kills += 1
            job.tries -= 1
        if job.kills <= _MOST_KILLS and job.tries < _TRIES:
            with self._lock:
                self._waiting.appendleft(job)
        else:
            job.future.set_exception(self._verdict(job, reason, status, seen))

    def _verdict(self, job: _Job, reason: str, status: int | None, seen: WorkerState) -> VidcurateError:
        """Return what a clip's last failure means: MediaError where a spare may take its place."""
        clip = f"clip {job.task.clip_id!r}"
        limit = f"in {self._deadline_seconds:g} s, {job.tries} times"
        if job.kills > _MOST_KILLS:
            return VidcurateError(
                f"{clip}: its decode worker was killed or stopped {job.kills} times from outside (exit "
                f"status {status}; out of memory?). Lower num_workers or prefetch_bytes."
            )
        if reason == "worker_died":
            text = f"{clip}: its worker crashed (exit status {status}), {job.tries} times"
        elif seen.phase == "read":
            return StorageError(
                f"{job.task.shard}: {clip} could not be read {limit}. Look at the storage, or raise "
                "deadline_seconds."
            )
        else:
            text = f"{clip}: not decoded {limit}"
        return MediaError(f"{text}; last in {seen.phase}, {seen.innermost}.", kind=reason)

    def _end(self) -> None:
        with self._lock:
            jobs = [*self._waiting, *(worker.job for worker in self._workers if worker.job)]
            self._waiting.clear()
            workers, self._workers = self._workers, []
        for worker in workers:
            worker.channel.close()  # an idle worker ends by itself
            os.close(worker.page)
        until = time.monotonic() + (_GOODBYE_SECONDS if self._error is None else 0.0)
        for worker in workers:
            try:
                worker.process.wait(0.0 if worker.job else max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                _kill(worker.process)
        for job in jobs:
            if self._error is None and job.future.cancel():
                continue
            if job.future.running() or job.future.set_running_or_notify_cancel():
                job.future.set_exception(self._error or CancelledError())
