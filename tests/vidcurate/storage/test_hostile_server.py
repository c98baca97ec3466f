"""A server that drips, floods or lies about lengths costs a retry or one line, never a hang or the memory."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from vidcurate.errors import InputError, StorageError, VidcurateError
from vidcurate.storage import http_pool, ranges

HEAD = b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-0/%d\r\nContent-Length: %d\r\n\r\n"
Script = Callable[[socket.socket], None]


@contextmanager
def scripted(script: Script) -> Iterator[str]:
    """Serve every connection by `script`, which gets the socket behind the first request's headers."""
    is_over = threading.Event()

    def serve(one: socket.socket) -> None:
        with suppress(OSError), one:
            one.recv(1 << 16)
            script(one)

    def accept() -> None:
        while not is_over.is_set():
            with suppress(OSError):
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/data"
        finally:
            is_over.set()
            thread.join()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(http_pool, "_idle", {})
    monkeypatch.setattr(ranges, "TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(ranges, "ATTEMPTS", 1)
    yield
    http_pool.close_idle()


def drip(data: bytes) -> Script:
    def send(one: socket.socket) -> None:
        for k in range(len(data)):
            one.sendall(data[k : k + 1])
            time.sleep(0.02)

    return send


def flood(data: bytes) -> Script:
    def send(one: socket.socket) -> None:
        for _ in range(2000):
            one.sendall(data * 64)

    return send


def say(data: bytes) -> Script:
    return lambda one: one.sendall(data)


def drip_body(one: socket.socket) -> None:
    one.sendall(HEAD % (5000, 5000))
    drip(bytes(5000))(one)


def endless_body(one: socket.socket) -> None:
    one.sendall(HEAD % (1, 1 << 40))
    flood(bytes(1 << 12))(one)


@pytest.mark.parametrize(
    ("script", "error", "words"),
    [
        (drip(HEAD % (1, 1)), StorageError, "the server sent .* bytes in 0 s"),
        (flood(b"HTTP/1.1 100 Continue\r\n\r\n"), StorageError, "1,048,576 bytes of headers"),
        (drip(b"HTTP/1.1 100 Continue\r\n\r\n" * 50), StorageError, "the server sent"),
        (say(HEAD.replace(b"%d", b"9" * 5000, 1) % 1), InputError, "does not tell the file's size"),
        (say(HEAD.replace(b"%d", b"-1", 1) % 1), InputError, "does not tell the file's size"),
        (say(b"HTTP/1.1 302 Found\r\nLocation: http://[\r\n\r\n"), InputError, "cannot be asked for"),
        (say(b"HTTP/1.1 302 Found\r\nLocation: //127.0.0.1:99999999/\r\n\r\n"), VidcurateError, "data: "),
        (say(b"HTTP/1.1 302 Found\r\nLocation: /a b\r\n\r\n"), VidcurateError, "data: "),
        (say(b"HTTP/1.1 302 Found\r\nLocation: /\xff\xfe\r\n\r\n"), VidcurateError, "data: "),
        (
            say(b"HTTP/1.1 429 Slow\r\nRetry-After: 99999999999\r\n\r\n"),
            StorageError,
            "answers 429",
        ),
        (say(b"HTTP/1.1 000000 \r\n\r\n"), StorageError, "data: failed"),
        (say(b"\x00" * 100), StorageError, "data: failed"),
        (say(b""), StorageError, "data: failed"),
    ],
)
def test_a_hostile_answer_is_one_error(script: Script, error: type[Exception], words: str) -> None:
    with scripted(script) as url, pytest.raises(error, match=words) as found:
        ranges.piece(url)
    assert len(str(found.value)) < 1000


def test_a_body_in_drops_ends_though_each_byte_comes_in_time() -> None:
    with scripted(drip_body) as url:
        one = ranges.Piece(place=url, size_bytes=5000, stamp="")
        start = time.monotonic()
        with pytest.raises(TimeoutError, match=r"the server sent \d+ bytes in"):
            list(ranges.chunks_of([(one, 0, 5000)]))
        assert time.monotonic() - start < 30


def test_a_body_without_end_is_not_read() -> None:
    with scripted(endless_body) as url:
        assert ranges.piece(url).size_bytes == 1
    assert not any(http_pool._idle.values())


def test_a_slow_caller_is_no_slow_server() -> None:
    with scripted(say(HEAD % (5000, 5000) + bytes(5000))) as url, http_pool.get(url, {}, 0.1) as answer:
        time.sleep(0.2)
        data = b""
        while len(data) < 5000:
            data += answer.read(1000)
            time.sleep(0.03)
    assert data == bytes(5000)
