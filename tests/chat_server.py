"""Chat server of a test, over real HTTP, that fails as servers and networks do."""

import base64
import hashlib
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from tests.failing_server import FailingHandler, FailingServer, running


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


class ChatServer(FailingServer):
    """Answers POST /v1/chat/completions with `answer(question)`: a text, or a whole JSON body.

    `faults`: what the next requests meet, one each: None, a status such as 500, (status, headers) or
    (status, headers, body), `slow`, `cut` (half the body), `reset` or `not_json`. `always`: what those after
    them meet. `on_question` is called with the number of each request before its answer. `asked`: all
    questions that came.
    """

    def __init__(self, answer: Callable[[Question], Any]) -> None:
        super().__init__(_Handler)
        self.answer = answer
        self.on_question: Callable[[int], None] = lambda number: None
        self.asked: list[Question] = []
        self.answered: list[Question] = []

    @property
    def url(self) -> str:
        return f"{super().url}/v1"


class _Handler(FailingHandler):
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
        fault = server.next_fault()
        server.on_question(number)
        if self.fails(fault):
            return
        if isinstance(fault, (int, tuple)):
            status, headers, said = (*(fault if isinstance(fault, tuple) else (fault,)), {}, b"")[:3]
            self.send(status, said or b'{"error": {"message": "the server is unwell"}}', headers)
        elif self.path != "/v1/chat/completions":
            self.send(404, b'{"detail": "Not Found"}', {})
        else:
            found = server.answer(question)
            data = json.dumps(found if isinstance(found, dict) else completion(found)).encode()
            if fault == "not_json":
                data = data[: len(data) // 2]
            self.send(200, data, {}, is_cut=fault == "cut")
            with server.lock:
                server.answered.append(question)


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


def chatting(answer: Callable[[Question], Any] = plain) -> AbstractContextManager[ChatServer]:
    """Serve answers until the end of the block."""
    return running(ChatServer(answer))
