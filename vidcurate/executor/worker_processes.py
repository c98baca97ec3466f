"""Process pool with a timeout per item and a retry after a crash.

A worker is a fresh interpreter (`child_processes`). It takes a chunk of items and sends back one row at a
time, so the pool knows which item each worker is at. The pool kills a worker that exceeds the time limit
and reports its item; when a worker dies, the pool starts a new one and retries the item. Workers die with
their parent, also while native code holds the GIL.
"""

import os
import pickle
import signal
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Self, TypeVar

import cloudpickle

from vidcurate.errors import VidcurateError
from vidcurate.executor.child_processes import START_SECONDS, Child, ChildSelector, ignoring, start_child
from vidcurate.executor.die_with_parent import die_with_parent

T = TypeVar("T")
Row = dict[str, Any]  # what a per-clip function returns: plain JSON values
Loss = Literal["crashed", "timeout"]  # why an item has no row of its worker
HOW: dict[Loss, str] = {"crashed": "crashed the worker", "timeout": "exceeded the time limit"}

_TRIES = 2
_KILL_SECONDS = 5.0
_MESSAGE_SECONDS = 30.0  # timeout for the rest of a message that has begun
_HEAD = struct.Struct(">Q")
_PROGRAM = (
    ignoring([signal.SIGINT])  # the parent handles Ctrl-C
    + "import pickle, sys; sys.path[:] = pickle.loads(bytes.fromhex(sys.argv[1])); "
    "from vidcurate.executor.worker_processes import serve; serve(int(sys.argv[2]), int(sys.argv[3]))"
)


# ── the worker's side ───────────────────────────────────────────────────────────────────────────────────


def _receive(channel: socket.socket) -> Any:
    """Return the next message, None when the other side has closed the socket."""
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
    data = cloudpickle.dumps(message)  # pickles also functions of the caller's main module
    channel.sendall(_HEAD.pack(len(data)) + data)


def serve(descriptor: int, parent: int) -> None:
    """Serve chunks of items until the parent closes the socket. Messages: ready, row, error."""
    die_with_parent(parent)
    with suppress(OSError):
        os.dup2(2, 1)  # what a function prints: the command's stdout has its summary alone
    with suppress(BrokenPipeError, ConnectionResetError), socket.socket(fileno=descriptor) as channel:
        function = _receive(channel)
        if function is None:
            return
        _send(channel, ("ready", None))
        while (items := _receive(channel)) is not None:
            for item in items:
                try:
                    answer = ("row", function(item))
                except Exception as error:  # noqa: BLE001 - the parent raises it again
                    answer = ("error", error)
                _send(channel, answer)


# ── the parent's side ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Work(Generic[T]):
    """Work on each item: `function` makes its row in a worker, `on_lost` in the parent.

    An item is lost when it crashed two workers, or took longer than `time_limit_seconds` (None: no limit).
    """

    function: Callable[[T], Row]
    on_lost: Callable[[T, Loss], Row]
    time_limit_seconds: float | None


@dataclass(slots=True, eq=False)
class _Job(Generic[T]):
    """A chunk in progress: `rows` holds the finished items; the worker is at the next one."""

    number: int
    items: Sequence[T]
    rows: list[Row] = field(default_factory=list)
    tries: int = 0  # of the current item

    @property
    def is_finished(self) -> bool:
        return len(self.rows) == len(self.items)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self.tries = 0


@dataclass(slots=True, eq=False, kw_only=True)
class _Worker(Child, Generic[T]):
    job: _Job[T] | None = None


class WorkerProcesses(Generic[T]):
    """Process pool: runs `work` on chunks of items. Use as a context manager."""

    def __init__(self, work: Work[T], num_workers: int) -> None:
        self._work, self._num_workers = work, num_workers
        self._selector: ChildSelector[_Worker[T]] = ChildSelector()
        self._workers = self._selector.children

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in list(self._workers):
            self._selector.kill(worker, _KILL_SECONDS)
        self._selector.close()

    def run(self, chunks: Iterable[tuple[int, Sequence[T]]]) -> Iterator[tuple[int, list[Row]]]:
        """Yield (number, rows) of each chunk as it finishes. Raises what the function raises."""
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
                    waiting.appendleft(job)  # the worker died or was killed

    def _start(self) -> None:
        path = pickle.dumps(sys.path).hex()
        worker: _Worker[T] = _Worker(
            **start_child(lambda theirs: ["-c", _PROGRAM, path, str(theirs), str(os.getpid())])
        )
        worker.channel.settimeout(_MESSAGE_SECONDS)
        self._selector.add(worker)
        with suppress(OSError):  # `_read_message` notices a dead worker
            _send(worker.channel, self._work.function)

    def _give(self, worker: _Worker[T], job: _Job[T]) -> None:
        worker.job = job
        worker.set_deadline(self._work.time_limit_seconds)
        with suppress(OSError):
            _send(worker.channel, list(job.items[len(job.rows) :]))

    def _wait(self) -> list[_Job[T]]:
        """Wait for rows, deaths and timeouts; return chunks that are finished or have lost their worker.

        Nothing is yielded in between: a consumer may take minutes, and a worker whose row waits in its pipe
        meanwhile is not late, nor is one that was stopped with the consumer.
        """
        done: list[_Job[T]] = []
        ready = set(map(id, self._selector.wait(self._selector.seconds_to_deadline())))
        for worker in list(self._workers):
            job = worker.job
            if id(worker) in ready:
                is_alive = self._read_message(worker)
                if not is_alive and job is not None:
                    job.tries += 1
                    if job.tries == _TRIES:
                        job.add(self._work.on_lost(job.items[len(job.rows)], "crashed"))
                    done.append(job)
                elif job is not None and job.is_finished:
                    worker.job, worker.due = None, float("inf")
                    done.append(job)
            elif self._selector.is_late(worker):
                self._selector.kill(worker, _KILL_SECONDS)
                if job is None:
                    raise VidcurateError(
                        f"a worker process did not start within {START_SECONDS:g} s. "
                        "Run the same command again, with fewer workers."
                    )
                job.add(self._work.on_lost(job.items[len(job.rows)], "timeout"))
                done.append(job)
        return done

    def _read_message(self, worker: _Worker[T]) -> bool:
        """Handle one message of a worker; when the worker is dead, remove it and return False."""
        try:
            message = _receive(worker.channel)
        except OSError:
            message = None
        if message is None:
            self._selector.kill(worker, _KILL_SECONDS)
            if not worker.is_ready:
                raise VidcurateError(
                    f"a worker process ended before its first item (exit code {worker.process.returncode}). "
                    "See its output above."
                )
            return False
        kind, value = message
        if kind == "error":
            raise value
        if kind == "ready":
            worker.is_ready, worker.due = True, float("inf")
        elif worker.job is not None:
            worker.job.add(value)
            worker.set_deadline(self._work.time_limit_seconds)
        return True
