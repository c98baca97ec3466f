"""Ask all nodes at once. Each answers with documents between marks, or is one line that says why not.

What a login script prints is passed over: only what stands between the marks is read. A node that refuses,
says nothing, floods, or ends before its answer costs its own time limit, never another node's.
"""

import json
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from trainer.cluster.framing import END, unmarked
from trainer.cluster.nodes import Node, Way, agent_on, environment_for
from trainer.health import timed_command

MOST_BYTES = 64 << 20  # of an answer, with what a login script prints
LEAVE_SECONDS = 1.0  # for ssh or srun to end by itself

Document = dict[str, Any]


class NodeError(Exception):
    """A node gave no answer; the text says why, without the node's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a node said: its document, or the reason why there is none; and how long it took."""

    node: Node
    document: Document | None = None
    error: str = ""
    seconds: float


class Line:
    """A connection to the program on one node. Not for several threads."""

    def __init__(self, node: Node, command: Sequence[str]) -> None:
        self.node = node
        self._read, self._errors = b"", b""
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment_for(node),
                start_new_session=True,  # Ctrl-C is for this program; it ends ssh itself
            )
        except OSError as error:
            raise NodeError(f"{command[0]} cannot be run ({error.strerror})") from error
        self._selector = selectors.DefaultSelector()
        self._open = {self.process.stdout, self.process.stderr}
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            self._selector.register(stream, selectors.EVENT_READ)

    def send(self, document: Document) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):  # a connection that is gone is told by `receive`
            self.process.stdin.write((json.dumps(document) + "\n").encode())
            self.process.stdin.flush()

    def receive(self, until: float) -> tuple[Document, int]:
        """Return the next document, and time.time_ns() when its last byte had come.

        `until` is of time.monotonic(). Raises NodeError when none comes.
        """
        began = time.monotonic()
        while END not in self._read:
            left = until - time.monotonic()
            if left <= 0:
                raise NodeError(f"did not answer within {until - began:.3g} s")
            self._take(min(left, 1.0))
            if len(self._read) > MOST_BYTES:
                raise NodeError(f"printed {MOST_BYTES >> 20} MiB that are no answer")
            if self.process.stdout not in self._open and END not in self._read:
                raise NodeError(self._why_it_ended(until))
        came = time.time_ns()
        text, _, self._read = self._read.partition(END)
        try:
            document = unmarked(text)
        except ValueError as error:
            raise NodeError(f"answered, but with no document: {_shortened(text)}") from error
        if "refused" in document:
            raise NodeError(str(document["refused"]))
        return document, came

    def _take(self, seconds: float) -> bool:
        """Wait at most `seconds` for what the node prints, and keep it; False when nothing came."""
        ready = self._selector.select(seconds)
        for key, _ in ready:
            data = os.read(key.fd, 1 << 18)
            if not data:
                self._selector.unregister(key.fileobj)
                self._open.remove(key.fileobj)  # type: ignore[arg-type]
            elif key.fileobj is self.process.stdout:
                self._read += data
            else:
                self._errors = (self._errors + data)[-8192:]
        return bool(ready)

    def _why_it_ended(self, until: float) -> str:
        while self.process.stderr in self._open:  # ssh's last word belongs to its end
            if not self._take(max(0.0, min(LEAVE_SECONDS, until - time.monotonic()))):
                break
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(LEAVE_SECONDS)
        said = [line.strip() for line in self._errors.decode(errors="replace").splitlines() if line.strip()]
        code = self.process.returncode
        if said and code:
            # 255 is ssh's own word for its own failure.
            return said[-1] if code == 255 else f"{said[-1]} (ended with {code})"
        if printed := self._read.strip():
            return f"answered, but not as the trainer does: {_shortened(printed)}"
        return f"ended with {code} and said nothing" if code is not None else "closed the connection"

    def close(self) -> None:
        """End the connection, and with it what it started there; never waits for long."""
        with suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(LEAVE_SECONDS)
                break
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
        timed_command.kill(self.process)
        self._selector.close()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


def _shortened(text: bytes) -> str:
    line = next((line for line in text.decode(errors="replace").splitlines() if line.strip()), "")
    line = "".join(letter if letter.isprintable() else "?" for letter in line.strip())
    return repr(line if len(line) <= 60 else line[:59] + "…")


@contextmanager
def _opened(node: Node, command: Sequence[str]) -> Iterator[Line]:
    line = Line(node, command)
    try:
        yield line
    finally:
        line.close()


def ask_each(
    nodes: Sequence[Node],
    command: Callable[[Node], Sequence[str]],
    talk: Callable[[Line], Document],
) -> list[Answer]:
    """Run `command` for every node at once and `talk` over its line; return the answers in their order.

    `talk` has limits of its own.
    """
    answers: dict[Node, Answer] = {}
    lines: dict[Node, Line] = {}

    def one(node: Node) -> None:
        began = time.monotonic()
        document, why = None, ""
        try:
            with _opened(node, command(node)) as line:
                lines[node] = line
                document = talk(line)
                seconds = time.monotonic() - began
        except NodeError as error:
            seconds, why = time.monotonic() - began, str(error)
        answers[node] = Answer(node=node, document=document, error=why, seconds=seconds)

    threads = [threading.Thread(target=one, args=(node,), daemon=True) for node in nodes]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:
        for line in list(lines.values()):  # Ctrl-C: the nodes stop what they do when the line goes
            with suppress(ProcessLookupError):
                os.killpg(line.process.pid, signal.SIGTERM)
        raise
    return [answers[node] for node in nodes]


def begin_request(line: Line, request: Document, way: Way, limit_seconds: float) -> None:
    """Send the agent its request, and wait until it says that it was reached.

    So a node that cannot be reached costs what a connection may take, however long the answer may. Raises
    NodeError.
    """
    line.send(request | {"limit_seconds": limit_seconds})
    line.receive(time.monotonic() + min(limit_seconds, way.reach_seconds))


def ask_nodes(
    nodes: Sequence[Node],
    request: Document,
    way: Way,
    limit_seconds: float,
    tell: Callable[[Node, str], None] = lambda node, text: None,
) -> list[Answer]:
    """Ask every node's agent the same; a node that has not answered after `limit_seconds` is an error.

    `tell` gets what a node tells before its answer.
    """

    def talk(line: Line) -> Document:
        began = time.monotonic()
        begin_request(line, request, way, limit_seconds)
        while True:
            document, _ = line.receive(began + limit_seconds)
            if "telling" not in document:
                return document
            tell(line.node, document["telling"])

    return ask_each(nodes, lambda node: agent_on(node, way), talk)
