"""Decode worker pool of one rank: timeout, retry and replacement of workers.

One thread of the parent sends tasks, one at a time per worker, and receives the results; only file
descriptors and short lines pass between the processes, the frames lie in shared memory. When a task crashes
its worker or misses its deadline, the pool retries the task once in a fresh worker. The second failure is
final: a MediaError when the worker hung in decoding, a StorageError when the worker hung in reading. A worker
killed or stopped from outside (by hand, or by the out-of-memory killer) does not count against its clip. The
pool replaces old or large workers one at a time, between clips. The sampler alone decides which clips are
read, and in which order.
"""

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vidcurate.errors import MediaError, StorageError, VidcurateError
from vidcurate.executor.child_processes import (
    GROUP_SIGNALS,
    Child,
    ChildSelector,
    ignoring,
    kill,
    start_child,
)
from vidcurate.executor.shared_memory import SharedArray as Buffer
from vidcurate.loader.decode import worker_heartbeat
from vidcurate.loader.decode.decode_clip import DecodeTask
from vidcurate.loader.decode.worker_heartbeat import WorkerState
from vidcurate.loader.decode.worker_process import raise_error, task_line

_TRIES = 2
# By default glibc frees the memory of frames after each clip. The worker frees it every few clips instead.
_MALLOC = {"ARENA_MAX": 2, "MMAP_THRESHOLD_": 32 << 20, "TRIM_THRESHOLD_": 1 << 30}
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", **{f"MALLOC_{name}": str(value) for name, value in _MALLOC.items()}}
_ROOT = str(Path(__file__).resolve().parents[3])
_MOST_KILLS = 10  # kills from outside during one task
_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP)
_START_TRIES = 3
_CLOSE_SECONDS = 2.0  # timeout for idle workers to exit when the pool closes
_EXIT_SECONDS = 5.0  # timeout for a worker that has closed its socket to exit
_KILL_SECONDS = 10.0
# Terminals and schedulers signal the whole process group. Workers ignore these signals; the parent ends them.
_PROGRAM = (
    ignoring(GROUP_SIGNALS) + "import sys; sys.path.insert(0, sys.argv[1]); "
    "from vidcurate.loader.decode.worker_process import main; main(*map(int, sys.argv[2:]))"
)


@dataclass(slots=True, eq=False)
class _Job:
    task: DecodeTask
    buffer: Buffer
    offset: int
    future: "Future[str]"
    tries: int = 0
    kills: int = 0


@dataclass(slots=True, eq=False, kw_only=True)
class _Worker(Child):
    page: int  # descriptor of its heartbeat file
    clips_to_live: int
    private_bytes: int = 0
    job: _Job | None = None
    received: bytearray = field(default_factory=bytearray)


class DecodePool:
    """Pool of `num_workers` decode processes. Use as a context manager, or call `close`.

    The pool replaces a worker after about `max_worker_clips` clips, and as soon as the worker holds more
    than `max_worker_bytes`.
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
        self._failed_starts = 0
        self._is_closing = False
        self._error: BaseException | None = None
        self._wakeup, self._listener = socket.socketpair()
        self._selector: ChildSelector[_Worker] = ChildSelector()
        self._selector.add_wakeup(self._listener)
        self._workers = self._selector.children
        # PR_SET_PDEATHSIG applies to the thread that started a process. So this thread starts all workers.
        self._thread = threading.Thread(target=self._serve, name="vidcurate-decode-pool", daemon=True)
        self._thread.start()

    def submit(
        self, task: DecodeTask, buffer: Buffer, offset: int, *, is_urgent: bool = False
    ) -> "Future[str]":
        """Queue a task whose frames a worker writes at `offset` of `buffer`; the result is the caption.

        The future raises MediaError for a clip that does not decode (also kind deadline and worker_died,
        after the retry), and the errors of `decode_clip.decode`.
        """
        job = _Job(task, buffer, offset, Future())
        with self._lock:
            if self._error is not None or self._is_closing:
                raise VidcurateError("the decode workers have stopped.") from self._error
            (self._waiting.appendleft if is_urgent else self._waiting.append)(job)
        self._wake()
        return job.future

    def take_events(self) -> list[dict[str, Any]]:
        """Return the events of workers (replaced, and why) since the last call."""
        with self._lock:
            found = list(self._events)
            self._events.clear()
        return found

    def process_ids(self) -> list[int]:
        """Return the process ids of the living workers."""
        return [worker.process.pid for worker in list(self._workers)]

    def close(self) -> None:
        """End the workers, and cancel unfinished tasks."""
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
        self._wake()
        self._thread.join()
        self._wakeup.close()
        self._listener.close()
        self._selector.close()

    def __enter__(self) -> "DecodePool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ── the thread ──────────────────────────────────────────────────────────────────────────────────────────

    def _wake(self) -> None:
        self._wakeup.send(b"\0")

    def _serve(self) -> None:
        try:
            while not self._is_closing:
                self._recycle()
                self._start_missing()
                self._send_tasks()
                # No wait when `_send_tasks` found a dead worker.
                is_full = len(self._workers) == self._num_workers
                for ready in self._selector.wait(self._selector.seconds_to_deadline() if is_full else 0.0):
                    if ready is None:
                        self._listener.recv(1 << 12)
                    else:
                        self._receive(ready)
                for worker in [*filter(self._selector.is_late, self._workers)]:
                    last = worker_heartbeat.read_heartbeat(worker.page, worker.process.pid, ask=True)
                    self._drop(worker, "deadline", last)
        except BaseException as error:  # noqa: BLE001 - `_end` raises it in the threads that wait for clips
            with self._lock:
                self._error = error
        finally:
            self._end()

    def _start_missing(self) -> None:
        while len(self._workers) < self._num_workers:
            page = worker_heartbeat.new_page()
            numbers = [str(page), str(os.getpid())]
            child = start_child(
                lambda theirs, numbers=numbers: ["-P", "-c", _PROGRAM, _ROOT, str(theirs), *numbers],  # type: ignore[misc]
                pass_fds=[page],
                env={**os.environ, **_ENVIRONMENT},
            )
            self._num_started += 1
            # Stagger the lifetimes of the first workers, so that they are not replaced all at once.
            share = min(self._num_started / self._num_workers, 1.0)
            clips_to_live = max(1, round(share * self._max_worker_clips))
            self._selector.add(_Worker(**child, page=page, clips_to_live=clips_to_live))

    def _recycle(self) -> None:
        """Kill one worker that is idle and old or large, once all workers are ready."""
        if not all(worker.is_ready for worker in self._workers):
            return
        for worker in self._workers:
            is_large = worker.private_bytes > self._max_worker_bytes
            if worker.job is None and (is_large or worker.clips_to_live <= 0):
                self._kill(worker)
                if is_large:
                    event = {"reason": "memory", "clip_id": None, "private_bytes": worker.private_bytes}
                    self._events.append({"event": "worker_replaced", **event})
                return

    def _send_tasks(self) -> None:
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
                worker.set_deadline(self._deadline_seconds)
                try:
                    line = task_line(job.task, job.offset)
                    socket.send_fds(worker.channel, [line], [job.buffer.descriptor])
                except OSError:  # the worker died between two tasks
                    worker.job = None
                    job.tries -= 1
                    with self._lock:
                        self._waiting.appendleft(job)
                    self._drop(worker, "worker_died")
                    break

    def _receive(self, worker: _Worker) -> None:
        if worker not in self._workers:  # killed earlier in this round
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
                raise VidcurateError("a decode worker sent a result without a task.")
            try:
                raise_error(message)
                job.future.set_result(message["caption"])
            except VidcurateError as error:
                job.future.set_exception(error)

    def _kill(self, worker: _Worker) -> None:
        self._selector.kill(worker, _KILL_SECONDS)
        os.close(worker.page)

    def _drop(self, worker: _Worker, reason: str, state: WorkerState | None = None) -> None:
        """Kill the worker; queue its job again, or fail the job after the retry."""
        if state is None:
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(_EXIT_SECONDS)  # the exit status tells a crash from a kill
            state = worker_heartbeat.read_heartbeat(worker.page, worker.process.pid, ask=False)
        self._kill(worker)
        status, job = worker.process.returncode, worker.job
        event = {"event": "worker_replaced", "reason": reason, "clip_id": job.task.clip_id if job else None}
        with self._lock:
            self._events.append({**event, "exit_status": status, **state.as_event()})
        is_outside = (
            status in _OUTSIDE if reason == "worker_died" else state.state == worker_heartbeat.STOPPED
        )
        if not worker.is_ready:
            self._failed_starts += 1
            if self._failed_starts >= (_MOST_KILLS if is_outside else _START_TRIES):
                raise VidcurateError(
                    f"a decode worker failed to start, {self._failed_starts} times in a row (exit status "
                    f"{status}). See its error above, or set num_workers: 0."
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
            job.future.set_exception(self._final_error(job, reason, status, state))

    def _final_error(self, job: _Job, reason: str, status: int | None, state: WorkerState) -> VidcurateError:
        """Return the error of a job's last failure; for a MediaError the loader uses a fallback clip."""
        clip = f"clip {job.task.clip_id!r}"
        limit = f"in {self._deadline_seconds:g} s, {job.tries} times"
        if job.kills > _MOST_KILLS:
            return VidcurateError(
                f"{clip}: its decode worker was killed or stopped {job.kills} times from outside (exit "
                f"status {status}; out of memory?). Lower num_workers or prefetch_bytes."
            )
        if reason == "worker_died":
            text = f"{clip}: its worker crashed (exit status {status}), {job.tries} times"
        elif state.phase == "read":
            return StorageError(
                f"{job.task.shard}: {clip} was not read {limit}. Check the storage, or raise "
                "deadline_seconds."
            )
        else:
            text = f"{clip}: not decoded {limit}"
        return MediaError(f"{text}; last in {state.phase}, {state.innermost}.", kind=reason)

    def _end(self) -> None:
        with self._lock:
            workers = list(self._workers)
            jobs = [*self._waiting, *(worker.job for worker in workers if worker.job)]
            self._waiting.clear()
            self._workers.clear()
        for worker in workers:
            worker.channel.close()  # an idle worker then exits
            os.close(worker.page)
        until = time.monotonic() + (_CLOSE_SECONDS if self._error is None else 0.0)
        for worker in workers:
            try:
                worker.process.wait(0.0 if worker.job else max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                kill(worker.process, _KILL_SECONDS)
        for job in jobs:
            if self._error is None and job.future.cancel():
                continue
            if job.future.running() or job.future.set_running_or_notify_cancel():
                job.future.set_exception(self._error or CancelledError())
