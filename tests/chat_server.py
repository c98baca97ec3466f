"""Chat server of a test, over real HTTP, that fails as servers and networks do."""

import base64
import hashlib
import json
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SLOW_SECONDS = 60.0  # longer than any patience in a test; the end of the test wakes it


@dataclass(frozen=True)
class Question:
    """A request: `prompt`, the JPEGs, the headers and the whole body."""

    prompt: str
    frames: tuple[bytes, ...]
    headers: dict[str, str]
    body: dict[str, Any] = field(hash=False)

    @property
    def frames_hash(self) -> str:
        return hashlib.sha256(b"".join(self.frames)).hexdigest()[:12]


def plain(question: Question) -> str:
    """Return a caption that depends on frames and prompt alone."""
    length = "A longer account of" if "paragraph" in question.prompt else "A square near"
    return f"{length} {question.frames_hash} and {len(question.frames)} trees."


class ChatServer(ThreadingHTTPServer):
    """Answers POST /v1/chat/completions with `answer(question)`: a text, or a whole JSON body.

    `faults`: what the next requests meet, one each: None, a status such as 500, (status, headers) or
    (status, headers, body), `slow`, `cut` (half the body), `reset` or `not_json`. `always`: what those after
    them meet. `on_question` is called with the number of each request before its answer. `asked`: all
    questions that came.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, answer: Callable[[Question], Any]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.faults: deque[Any] = deque()
        self.always: Any = None
        self.on_question: Callable[[int], None] = lambda number: None
        self.asked: list[Question] = []
        self.answered: list[Question] = []
        self.lock = threading.Lock()
        self.is_over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients hang up in these tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ChatServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        content = body["messages"][0]["content"]
        head = "data:image/jpeg;base64,"
        urls = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
        assert all(url.startswith(head) for url in urls)
        question = Question(
            prompt=content[0]["text"],
            frames=tuple(base64.b64decode(url.removeprefix(head)) for url in urls),
            headers=dict(self.headers.items()),
            body=body,
        )
        server = self.server
        with server.lock:
            server.asked.append(question)
            number = len(server.asked)
            fault = server.faults.popleft() if server.faults else server.always
        server.on_question(number)
        if fault == "slow":
            server.is_over.wait(SLOW_SECONDS)
            self.close_connection = True
        elif fault == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True
        elif isinstance(fault, (int, tuple)):
            status, headers, said = (*(fault if isinstance(fault, tuple) else (fault,)), {}, b"")[:3]
            self._send(status, said or b'{"error": {"message": "the server is unwell"}}', headers)
        elif self.path != "/v1/chat/completions":
            self._send(404, b'{"detail": "Not Found"}', {})
        else:
            found = server.answer(question)
            data = json.dumps(found if isinstance(found, dict) else completion(found)).encode()
            if fault == "not_json":
                data = data[: len(data) // 2]
            self._send(200, data, {}, is_cut=fault == "cut")
            with server.lock:
                server.answered.append(question)

    def _send(self, status: int, data: bytes, headers: dict[str, str], *, is_cut: bool = False) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if is_cut else data)
        self.close_connection = self.close_connection or is_cut

    def log_message(self, *words: object) -> None:
        """Say nothing."""


def completion(
    text: str | None, *, finish: str | None = "stop", refusal: str | None = None, **more: Any
) -> dict[str, Any]:
    """Return the body of an answer, with 1000 tokens in and 50 out."""
    message = {"role": "assistant", "content": text, "refusal": refusal}
    return {
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 50},
        **more,
    }


@contextmanager
def chatting(answer: Callable[[Question], Any] = plain) -> Iterator[ChatServer]:
    """Serve answers until the end of the block."""
    server = ChatServer(answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.is_over.set()
        server.shutdown()
        server.server_close()
        thread.join()
