"""Worker processes that may hang, crash or be stopped: each item has a time limit, and one costs no other.

A worker is a fresh interpreter (never forked, never re-importing the caller's main module) that takes a chunk
of items and answers item by item, so whoever waits knows which one it is at. One that is late is killed and
its item reported; one that dies is replaced and its item tried once more alone. Workers die with their
parent, however that ends, also while they sit in native code that holds the GIL.
"""

import os
import pickle
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

import cloudpickle

from vidcurate.errors import VidcurateError
from vidcurate.executor.die_with_parent import die_with_parent

T = TypeVar("T")
Row = dict[str, Any]

_TRIES = 2
_START_SECONDS = 120.0
_LOOK_SECONDS = 1.0  # at most, while an item has a limit
_KILL_SECONDS = 5.0  # a process that waits for a dead disk cannot even be killed; nobody waits longer
_MESSAGE_SECONDS = 30.0  # for the rest of a message that has begun
_HEAD = struct.Struct(">Q")
_PROGRAM = (
    "import pickle, sys; sys.path[:] = pickle.loads(bytes.fromhex(sys.argv[1])); "
    "from vidcurate.executor.worker_processes import serve; serve(int(sys.argv[2]), int(sys.argv[3]))"
)


# ── the worker's side ───────────────────────────────────────────────────────────────────────────────────


def _receive(channel: socket.socket) -> Any:
    """Return the next message, None when the other side has hung up."""
    data = _exactly(channel, _HEAD.size)
    if data is None:
        return None
    data = _exactly(channel, _HEAD.unpack(data)[0])
    return None if data is None else pickle.loads(data)


def _exactly(channel: socket.socket, size: int) -> bytes | None:
    parts: list[bytes] = []
    while size:
        part = channel.recv(min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _send(channel: socket.socket, message: Any) -> None:
    data = cloudpickle.dumps(message)  # also what lives in the caller's main module
    channel.sendall(_HEAD.pack(len(data)) + data)


def serve(descriptor: int, parent: int) -> None:
    """Answer chunks of items until the parent hangs up. Messages: ready, row, error."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    with suppress(BrokenPipeError, ConnectionResetError), socket.socket(fileno=descriptor) as channel:
        function = _receive(channel)
        if function is None:
            return
        _send(channel, ("ready", None))
        while (items := _receive(channel)) is not None:
            for item in items:
                try:
                    answer = ("row", function(item))
                except Exception as error:  # noqa: BLE001 - it is raised again where the items came from
                    answer = ("error", error)
                _send(channel, answer)


# ── the parent's side ───────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True, eq=False)
class _Job(Generic[T]):
    """A chunk that is being worked on: `rows` are done, the next item is the one in work."""

    number: int
    items: Sequence[T]
    rows: list[Row] = field(default_factory=list)
    tries: int = 0  # of the item in work

    @property
    def is_finished(self) -> bool:
        return len(self.rows) == len(self.items)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self.tries = 0


@dataclass(slots=True, eq=False)
class _Worker(Generic[T]):
    process: "subprocess.Popen[bytes]"
    channel: socket.socket
    due: float  # monotonic time at which it is late: with its start, then with its item
    is_ready: bool = False
    job: _Job[T] | None = None


class Workers(Generic[T]):
    """Runs `function` on chunks of items in `num_workers` processes. Use as a context manager.

    `on_crash` makes the row of an item that ended two workers, `on_timeout` of one that took longer than
    `time_limit_seconds` (None: no limit).
    """

    def __init__(
        self,
        function: Callable[[T], Row],
        num_workers: int,
        *,
        on_crash: Callable[[T], Row],
        on_timeout: Callable[[T], Row],
        time_limit_seconds: float | None,
    ) -> None:
        self._function = function
        self._num_workers = num_workers
        self._on_crash, self._on_timeout = on_crash, on_timeout
        self._limit = time_limit_seconds
        self._selector = selectors.DefaultSelector()
        self._workers: list[_Worker[T]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in list(self._workers):
            self._end(worker)
        self._selector.close()

    def run(self, chunks: Iterable[tuple[int, Sequence[T]]]) -> Iterator[tuple[int, list[Row]]]:
        """Yield (number, rows) of each chunk as it is finished. Raises what `function` raises."""
        waiting = deque(_Job(number, items) for number, items in chunks)
        while True:
            busy = sum(worker.job is not None for worker in self._workers)
            if not waiting and not busy:
                return
            while len(self._workers) < min(self._num_workers, busy + len(waiting)):
                self._start()
            for worker in self._workers:
                if waiting and worker.is_ready and worker.job is None:
                    self._give(worker, waiting.popleft())
            for job in self._wait():
                if job.is_finished:
                    yield job.number, job.rows
                else:
                    waiting.appendleft(job)  # its worker is gone

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            path = pickle.dumps(sys.path).hex()
            process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, path, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        ours.settimeout(_MESSAGE_SECONDS)
        worker: _Worker[T] = _Worker(process, ours, due=time.monotonic() + _START_SECONDS)
        self._workers.append(worker)
        self._selector.register(ours, selectors.EVENT_READ, worker)
        with suppress(OSError):  # a dead worker is noticed where it is read from
            _send(ours, self._function)

    def _give(self, worker: _Worker[T], job: _Job[T]) -> None:
        worker.job = job
        self._wind_up(worker)
        with suppress(OSError):
            _send(worker.channel, list(job.items[len(job.rows) :]))

    def _wind_up(self, worker: _Worker[T]) -> None:
        worker.due = float("inf") if self._limit is None else time.monotonic() + self._limit

    def _end(self, worker: _Worker[T]) -> None:
        self._workers.remove(worker)
        self._selector.unregister(worker.channel)
        worker.channel.close()
        worker.process.kill()
        with suppress(subprocess.TimeoutExpired):
            worker.process.wait(_KILL_SECONDS)

    def _wait(self) -> Iterator[_Job[T]]:
        """Wait for answers, deaths and limits; yield chunks that are finished or have lost their worker."""
        due = min((worker.due for worker in self._workers), default=float("inf"))
        began = time.monotonic()
        pause = None if due == float("inf") else min(max(0.0, due - began), _LOOK_SECONDS)
        ready = {id(key.data) for key, _ in self._selector.select(pause)}
        if pause is not None:
            # The machine or the job stood still (suspended), and the workers with it.
            too_long = max(0.0, time.monotonic() - began - pause)
            for worker in self._workers:
                worker.due += too_long
        for worker in list(self._workers):
            job = worker.job
            if id(worker) in ready:
                is_alive = self._hear(worker)
                if not is_alive and job is not None:
                    job.tries += 1
                    if job.tries == _TRIES:
                        job.add(self._on_crash(job.items[len(job.rows)]))
                    yield job
                elif job is not None and job.is_finished:
                    worker.job, worker.due = None, float("inf")
                    yield job
            elif time.monotonic() >= worker.due:
                self._end(worker)
                if job is None:
                    raise VidcurateError(f"a worker process did not start within {_START_SECONDS:g} s.")
                job.add(self._on_timeout(job.items[len(job.rows)]))
                yield job

    def _hear(self, worker: _Worker[T]) -> bool:
        """Take one message of a worker; False when it is dead, and then it is gone from the list."""
        try:
            message = _receive(worker.channel)
        except OSError:
            message = None
        if message is None:
            self._end(worker)
            if not worker.is_ready:
                raise VidcurateError(
                    f"a worker process ended before it began (exit code {worker.process.returncode}); "
                    "what it said stands above."
                )
            return False
        kind, value = message
        if kind == "error":
            raise value
        if kind == "ready":
            worker.is_ready, worker.due = True, float("inf")
        elif worker.job is not None:
            worker.job.add(value)
            self._wind_up(worker)
        return True
