"""Node queries: ask all nodes at once; each answers with JSON or an error.

A document stands between marks, so the output of a login script is ignored. A node that refuses, stays
silent, floods, or exits early costs its own time limit, never another node's.
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

from trainer.cluster.node.agent import BEGIN, END
from trainer.cluster.nodes import Node, Way, agent_on, environment_for
from trainer.health import timed_command

MOST_BYTES = 64 << 20  # of an answer, login script output included
LEAVE_SECONDS = 1.0  # for ssh or srun to exit on its own

Document = dict[str, Any]


def unmarked(data: bytes) -> Document:
    """Return the document that ends `data`, without its mark. Raises ValueError without a document."""
    _, mark, text = data.rpartition(BEGIN)
    document = json.loads(text) if mark else None
    if not isinstance(document, dict):
        raise ValueError("no document stands between the marks")
    return document


class NodeError(Exception):
    """A node gave no answer; the text is the reason, without the node's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A node's answer: its document, or the reason without one; and how long it took."""

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
                start_new_session=True,  # Ctrl-C is for this program, which then stops ssh
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
        with suppress(OSError):  # `receive` reports a lost connection
            self.process.stdin.write((json.dumps(document) + "\n").encode())
            self.process.stdin.flush()

    def receive(self, until: float) -> Document:
        """Return the next document. Raises NodeError if none arrives until then, of time.monotonic()."""
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
        text, _, self._read = self._read.partition(END)
        try:
            document = unmarked(text)
        except ValueError as error:
            raise NodeError(f"answered, but with no document: {_shortened(text)}") from error
        if "refused" in document:
            raise NodeError(str(document["refused"]))
        return document

    def _take(self, seconds: float) -> bool:
        """Wait at most `seconds` for output from the node and store it; False if none came."""
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
        while self.process.stderr in self._open:  # ssh's last message belongs to its end
            if not self._take(max(0.0, min(LEAVE_SECONDS, until - time.monotonic()))):
                break
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(LEAVE_SECONDS)
        said = [line.strip() for line in self._errors.decode(errors="replace").splitlines() if line.strip()]
        code = self.process.returncode
        if said and code:
            # ssh itself fails with code 255.
            return said[-1] if code == 255 else f"{said[-1]} (ended with {code})"
        if printed := self._read.strip():
            return f"answered, but not as the trainer does: {_shortened(printed)}"
        return f"ended with {code} and said nothing" if code is not None else "closed the connection"

    def close(self) -> None:
        """Close the connection and stop what it started there; never waits for long."""
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
    """Run `command` for every node at once and `talk` to each; return the answers in order.

    `talk` has its own timeouts.
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
        for line in list(lines.values()):  # Ctrl-C: the nodes stop when the connection closes
            with suppress(ProcessLookupError):
                os.killpg(line.process.pid, signal.SIGTERM)
        raise
    return [answers[node] for node in nodes]


def begin_request(line: Line, request: Document, way: Way, limit_seconds: float) -> None:
    """Send the agent its request, and wait until it acknowledges.

    An unreachable node therefore costs only the connection timeout, however long the answer may take. Raises
    NodeError.
    """
    line.send(request | {"limit_seconds": limit_seconds})
    line.receive(time.monotonic() + min(limit_seconds, way.reach_seconds))


def ask_nodes(
    nodes: Sequence[Node],
    request: Document,
    way: Way,
    limit_seconds: float,
    on_progress: Callable[[Node, str], None] = lambda node, text: None,
    has_form: Callable[[Document], bool] = lambda document: True,
) -> list[Answer]:
    """Send every node's agent the same request; no answer within `limit_seconds` is an error.

    `on_progress` receives the lines a node sends before its answer. An answer without `has_form` is an error.
    """

    def talk(line: Line) -> Document:
        began = time.monotonic()
        begin_request(line, request, way, limit_seconds)
        while True:
            document = line.receive(began + limit_seconds)
            if "progress" not in document:
                if not has_form(document):
                    raise NodeError("answered in another form; is its trainer of another version?")
                return document
            on_progress(line.node, document["progress"])

    return ask_each(nodes, lambda node: agent_on(node, way), talk)
