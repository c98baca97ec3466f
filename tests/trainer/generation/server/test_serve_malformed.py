"""Requests that are no HTTP, or not this endpoint's: each gets its code, in one line of JSON."""

import http.client
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.trainer.generation.server.test_serve_endpoint import Reply, ask, slow
from trainer.generation.server.request import Limits


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    gate = threading.Event()
    gate.set()
    with slow(Limits(), gate) as endpoint:
        yield endpoint.port


@pytest.mark.parametrize(
    ("head", "code"),
    [
        (b"PUT /generate HTTP/1.1\r\n", 501),
        (b"<script> /generate HTTP/1.1\r\n", 501),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n", 414),
        (b"GET /health HTTP/1.1\r\nX: " + b"a" * 70_000 + b"\r\n", 431),
        (b"GET /health HTTP/1.1\r\n" + b"".join(b"X-%d: 1\r\n" % number for number in range(200)), 431),
        (b"POST /generate HTTP/1.1\r\nContent-Length: -1\r\n", 411),
        (b"POST /generate HTTP/1.1\r\nTransfer-Encoding: chunked\r\n", 411),
        (b"POST /generate HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n", 413),
        (b"POST /generate HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: " + b"9" * 5000 + b"\r\n", 413),
    ],
    ids=["method", "markup", "URI", "header", "headers", "negative", "chunked", "length", "expected length"],
)  # fmt: skip
def test_a_malformed_request_gets_one_line_of_json_and_is_counted(port: int, head: bytes, code: int) -> None:
    counted = f'vidcurate_serve_http_requests_total{{code="{code}"}} '

    def count() -> int:
        lines = ask(port, "GET", "/metrics").body.decode().splitlines()
        return sum(int(line.removeprefix(counted)) for line in lines if line.startswith(counted))

    before = count()
    with socket.create_connection(("127.0.0.1", port), timeout=30) as raw:
        raw.sendall(head + b"Host: localhost\r\nContent-Type: application/json\r\n\r\n")
        raw.shutdown(socket.SHUT_WR)
        response = http.client.HTTPResponse(raw)
        response.begin()
        reply = Reply(response)
    assert reply.code == code
    assert reply.error()
    assert count() == before + 1


def test_head_has_no_body(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as raw:
        raw.sendall(b"HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b"".join(iter(lambda: raw.recv(1000), b""))
    assert answer.startswith(b"HTTP/1.0 501 ")
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("method", "path", "headers", "code"),
    [
        ("POST", "/nowhere", {}, 404),
        ("POST", "/generate", {"Content_Type": "text/plain"}, 415),
        ("POST", "/generate", {"Host": "evil.example"}, 403),
        ("PUT", "/generate", {}, 501),
    ],
)
def test_another_refusal_of_a_large_body_arrives_too(
    port: int, method: str, path: str, headers: dict[str, str], code: int
) -> None:
    assert ask(port, method, path, b"x" * 8_000_000, **headers).code == code
