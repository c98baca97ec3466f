"""The client against a server that fails in every way that a test can make: retries, pauses, keys, errors."""

import socket
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from tests.chat_server import ChatServer, chatting, completion
from vidcurate.curation.captioning import client
from vidcurate.curation.captioning.client import Reply, Server, api_key, check_endpoint, payload
from vidcurate.curation.captioning.spec import CaptionSpec, PromptSpec
from vidcurate.errors import InputError, StorageError

KEY = "sk-1234567890abcdef"
PROMPTS = {"short": PromptSpec(text="what", max_tokens=7)}


def ask(server: ChatServer, key: str | None = None, **fields: Any) -> Reply:
    spec = CaptionSpec(
        **{"endpoint": server.url, "model": "m", "prompts": PROMPTS, "retry_seconds": 0.0, **fields}
    )
    return Server(spec, key).ask(payload(spec, "short", [b"\xff\xd8jpeg", b"other"]))


def test_a_request_has_the_prompt_then_the_frames_and_the_settings() -> None:
    with chatting() as server:
        reply = ask(
            server, temperature=0.5, body={"max_tokens": None, "max_completion_tokens": 9, "top_p": 0.9}
        )
    (question,) = server.asked
    assert question.frames == (b"\xff\xd8jpeg", b"other")
    body = dict(question.body)
    body.pop("messages")
    assert body == {"model": "m", "temperature": 0.5, "max_completion_tokens": 9, "top_p": 0.9}
    assert "Authorization" not in question.headers
    assert (reply.tokens_in, reply.tokens_out, reply.finish, reply.problem) == (1000, 50, "stop", None)


@pytest.mark.parametrize("fault", [500, 502, 503, 429, 408, 425, "cut", "reset", "not_json"])
def test_what_may_pass_is_asked_again(fault: Any) -> None:
    with chatting(lambda question: "A dog.") as server:
        server.faults.extend([fault, fault])
        assert ask(server).text == "A dog."
        assert len(server.asked) == 3


@pytest.mark.parametrize("fault", [500, 429, "cut", "reset", "not_json"])
def test_the_last_try_ends_with_one_line(fault: Any) -> None:
    with chatting() as server:
        server.always = fault
        with pytest.raises(StorageError, match=r"no answer \(.+\)\. Run the same command again"):
            ask(server, tries=3)
        assert len(server.asked) == 3


def test_a_slow_answer_ends_at_its_timeout() -> None:
    with chatting(lambda question: "A dog.") as server:
        server.faults.append("slow")
        began = time.monotonic()
        assert ask(server, timeout_seconds=0.3).text == "A dog."
        assert time.monotonic() - began < 50  # the slow answer takes 60


def without_end(head: bytes, text: bytes, pause: float) -> tuple[socket.socket, threading.Thread]:
    """Return a server that answers one request with `head`, then `text` again and again; and its thread."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        taken, _ = listener.accept()
        with taken, suppress(OSError):
            taken.sendall(head)
            while True:
                taken.sendall(text)
                time.sleep(pause)

    thread = threading.Thread(target=serve)
    thread.start()
    return listener, thread


@pytest.mark.parametrize(
    ("head", "text", "pause"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.0),
        (b"", b"H", 0.05),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0", 0.05),
    ],
)
def test_an_answer_without_end_ends_at_its_timeout(head: bytes, text: bytes, pause: float) -> None:
    listener, thread = without_end(head, text, pause)
    spec = CaptionSpec(
        endpoint=f"http://127.0.0.1:{listener.getsockname()[1]}/v1", model="m", tries=1, timeout_seconds=0.5
    )
    with listener, pytest.raises(StorageError, match=r"the answer took longer than 0.5 s"):
        Server(spec, None).ask(payload(spec, "short", [b"x"]))
    thread.join()


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"choices": []},
        {"choices": [{"message": None}]},
        {"choices": [{"message": {"content": [{"type": "text"}]}}]},
        {"choices": "x", "usage": 3},
        {"choices": [{"message": {"content": "a dog"}}], "usage": [1]},
    ],
)
def test_json_that_is_no_answer_is_asked_again_and_then_named(body: dict[str, Any]) -> None:
    with chatting(lambda question: body) as server:
        with pytest.raises(StorageError, match="no chat completion"):
            ask(server, tries=2)
        assert len(server.asked) == 2


@pytest.mark.parametrize("count", [True, -1, 1 << 50, "9", None, 2.5])
def test_a_count_of_tokens_that_is_none_is_unknown(count: Any) -> None:
    usage = {"prompt_tokens": count, "completion_tokens": 3}
    with chatting(lambda question: completion("a dog", usage=usage)) as server:
        reply = ask(server)
    assert (reply.tokens_in, reply.tokens_out) == (None, 3)


def test_retry_after_is_waited_for_by_every_request() -> None:
    with chatting(lambda question: "A dog.") as server:
        server.faults.append((429, {"Retry-After": "0.4"}))
        began = time.monotonic()
        ask(server, retry_seconds=0.0)
        assert time.monotonic() - began >= 0.4
        server.always = (503, {"Retry-After": "86400"})
        with pytest.raises(StorageError, match="asks to wait 86400 s"):
            ask(server)


def test_a_request_that_the_server_declines_is_a_reply_with_the_reason() -> None:
    with chatting() as server:
        server.always = (400, {}, b'{"object": "error", "message": "too many\\n images \\u001b[31m"}')
        assert ask(server).problem == "HTTP 400: too many images [31m"
        assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, "export VIDCURATE_API_KEY="),
        (403, "export VIDCURATE_API_KEY="),
        (404, "Check --endpoint"),
        (301, "a redirect"),
        (308, "a redirect"),
    ],
)
def test_a_wrong_key_address_or_model_ends_at_once(status: int, words: str) -> None:
    with chatting() as server, chatting() as other:
        server.always = (status, {"Location": f"{other.url}/chat/completions"})
        with pytest.raises(InputError, match=words):
            ask(server, KEY)
        assert len(server.asked) == 1
        assert other.asked == []  # the key went to no other host


def test_the_key_comes_from_the_environment_and_is_in_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in client.KEYS:
        monkeypatch.delenv(name, raising=False)
    assert api_key() is None
    monkeypatch.setenv("OPENAI_API_KEY", "other")
    monkeypatch.setenv("VIDCURATE_API_KEY", f" {KEY}\n")
    assert api_key() == KEY
    with chatting(lambda question: f"The key is {question.headers['Authorization']}") as server:
        reply = ask(server, KEY)
        assert server.asked[0].headers["Authorization"] == f"Bearer {KEY}"
        assert reply.text == "The key is Bearer [key]"
        for fault in (401, 400, 500):
            server.always = (fault, {}, f'{{"error": {{"message": "Incorrect key {KEY}"}}}}'.encode())
            try:
                said = str(ask(server, KEY, tries=1).problem)
            except (InputError, StorageError) as error:
                said = str(error)
            assert "Incorrect key [key]" in said
            assert KEY not in said
        server.always = None
        server.answer = lambda question: {"no": "x" * 60 + KEY}  # cut inside the key
        with pytest.raises(StorageError) as raised:
            ask(server, KEY, tries=1)
        assert KEY[:8] not in str(raised.value)
    monkeypatch.setenv("VIDCURATE_API_KEY", "sk-1\nX-Evil: 1")
    with pytest.raises(InputError, match="VIDCURATE_API_KEY: the key holds") as refused:
        api_key()
    assert "sk-1" not in str(refused.value)


@pytest.mark.parametrize(
    "endpoint", ["http://me:secret@host/v1", "https://host/v1?api-key=secret", "https://host/v1#secret"]
)
def test_an_address_with_a_secret_is_refused_without_the_secret(endpoint: str) -> None:
    with pytest.raises(InputError, match="VIDCURATE_API_KEY") as raised:
        check_endpoint(endpoint)
    assert "secret" not in str(raised.value)
