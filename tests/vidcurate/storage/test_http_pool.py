"""Requests reuse connections, and a server that closes, redirects or lies costs no more than a retry."""

import http.server
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from vidcurate.errors import InputError
from vidcurate.storage import http_pool, ranges

DATA = bytes(range(256)) * 64


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    connections: set[tuple[str, int]] = set()  # noqa: RUF012
    requests = 0

    def do_GET(self) -> None:
        type(self).requests += 1
        self.connections.add(self.client_address)
        if self.path.startswith("/moved"):
            self.send_response(302)
            self.send_header("Location", {"/moved": "/data", "/moved-away": "file:///etc/passwd"}[self.path])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if self.path == "/circle":
            self.send_response(302)
            self.send_header("Location", "/circle")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        data = DATA[first : last + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{first + len(data) - 1}/{len(DATA)}")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        if self.path == "/closing":  # without saying so: as a server that drops idle connections
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, type[Handler]]]:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(http_pool, "_idle", {})

    class Counted(Handler):
        connections: set[tuple[str, int]] = set()  # noqa: RUF012

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Counted) as httpd:
        httpd.daemon_threads = True
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}", Counted
        http_pool.close_idle()
        httpd.shutdown()
        thread.join()


def read(url: str, first: int, size: int) -> bytes:
    piece = ranges.Piece(place=url, size_bytes=len(DATA), stamp="")
    return b"".join(ranges.chunks_of([(piece, first, size)]))


def test_requests_one_after_the_other_share_a_connection(server: tuple[str, type[Handler]]) -> None:
    url, handler = server

    assert ranges.piece(f"{url}/data").size_bytes == len(DATA)
    for first in range(0, 5000, 100):
        assert read(f"{url}/data", first, 100) == DATA[first : first + 100]

    assert handler.requests == 51
    assert len(handler.connections) == 1


def test_threads_have_a_connection_each_and_no_more(server: tuple[str, type[Handler]]) -> None:
    url, handler = server

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda first: read(f"{url}/data", first, 50), range(200)))

    assert found == [DATA[first : first + 50] for first in range(200)]
    assert len(handler.connections) <= 4


def test_a_connection_that_the_server_closed_is_replaced(server: tuple[str, type[Handler]]) -> None:
    url, handler = server

    for first in range(5):
        assert read(f"{url}/closing", first, 10) == DATA[first : first + 10]

    assert len(handler.connections) == 5


def test_an_answer_that_is_not_read_to_the_end_is_never_mixed_with_the_next(
    server: tuple[str, type[Handler]],
) -> None:
    url, handler = server

    with http_pool.get(f"{url}/data", {"Range": "bytes=0-9999"}, 5.0) as answer:
        assert answer.read(10) == DATA[:10]

    assert read(f"{url}/data", 77, 10) == DATA[77:87]
    assert len(handler.connections) == 2


def test_redirects_are_followed_but_not_in_circles_nor_away_from_http(
    server: tuple[str, type[Handler]],
) -> None:
    url, handler = server

    assert read(f"{url}/moved", 3, 4) == DATA[3:7]
    assert len(handler.connections) == 1
    with pytest.raises(OSError, match="more than 10 redirects"):
        read(f"{url}/circle", 0, 1)
    with pytest.raises(InputError, match="cannot be asked for"):
        read(f"{url}/moved-away", 0, 1)
