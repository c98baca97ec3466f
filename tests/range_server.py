"""A web server of a test's own that answers byte ranges, and fails as servers and networks do."""

import hashlib
import re
import socket
import struct
import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SLOW_SECONDS = 60.0  # longer than any patience in a test; the end of the test wakes it


class RangeServer(ThreadingHTTPServer):
    """Serves the files of `folder` by range, each with an ETag of its bytes.

    `faults`: what the next requests for a range meet, one each: None, a status such as 500, `slow`, `cut`
    (half the body), `reset`, `whole` (200 and the whole file) or `etag` (another ETag). `always`: what those
    after them meet.
    `ranges`: (path, first, last) of those that were answered; `asked`: requests by method and path.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.faults: deque[Any] = deque()
        self.always: Any = None
        self.ranges: list[tuple[str, int, int]] = []
        self.asked: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.is_over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def next_fault(self) -> Any:
        with self.lock:
            return self.faults.popleft() if self.faults else self.always

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients hang up in these tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RangeServer

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        server, path = self.server, self.server.folder / self.path.lstrip("/")
        with server.lock:
            server.asked[f"{self.command} {self.path}"] += 1
        if not path.is_file():
            self._empty(404)
            return
        data = path.read_bytes()
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        fault = server.next_fault() if wanted and with_body else None
        etag = hashlib.sha256(data).hexdigest()[:16] + ("x" if fault == "etag" else "")
        if isinstance(fault, int):
            self._empty(fault)
        elif fault == "slow":
            server.is_over.wait(SLOW_SECONDS)
            self.close_connection = True
        elif fault == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True
        else:
            first, last = (int(wanted[1]), int(wanted[2])) if wanted else (0, len(data) - 1)
            last = min(last, len(data) - 1)
            is_part = wanted is not None and fault != "whole"
            if is_part and first > last:
                self._empty(416)
                return
            body = data[first : last + 1] if is_part else data
            self.send_response(206 if is_part else 200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", f'"{etag}"')
            self.send_header("Last-Modified", self.date_time_string(int(path.stat().st_mtime)))
            self.send_header("Accept-Ranges", "bytes")
            if is_part:
                self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
                with server.lock:
                    server.ranges.append((self.path, first, last))
            self.end_headers()
            if with_body:
                self.wfile.write(body[: len(body) // 2] if fault == "cut" else body)
                self.close_connection = fault == "cut"

    def _empty(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *words: object) -> None:
        """Say nothing."""


@contextmanager
def serving(folder: Path) -> Iterator[RangeServer]:
    """Serve `folder` until the end of the block."""
    server = RangeServer(folder)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.is_over.set()
        server.shutdown()
        server.server_close()
        thread.join()
