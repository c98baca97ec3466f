"""Web server of a test, over real HTTP, that fails as servers and networks do."""

import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

SLOW_SECONDS = 60.0  # longer than any patience in a test; the end of the test wakes it


class FailingServer(ThreadingHTTPServer):
    """Serves on a free port of this machine.

    `faults`: what the next requests meet, one each; `always`: what those after them meet. None: no fault.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, handler: "type[FailingHandler]") -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.faults: deque[Any] = deque()
        self.always: Any = None
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


class FailingHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def fails(self, fault: Any) -> bool:
        """Meet the fault `slow` (no answer) or `reset`; return whether it is one of them."""
        assert isinstance(self.server, FailingServer)
        if fault == "slow":
            self.server.is_over.wait(SLOW_SECONDS)
        elif fault == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        else:
            return False
        self.close_connection = True
        return True

    def send(self, status: int, data: bytes, headers: dict[str, str], *, is_cut: bool = False) -> None:
        """Answer with `data`, or with `is_cut` with half of it."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if is_cut else data)
            self.close_connection = self.close_connection or is_cut

    def log_message(self, *words: object) -> None:
        """Say nothing."""


S = TypeVar("S", bound=FailingServer)


@contextmanager
def running(server: S) -> Iterator[S]:
    """Serve until the end of the block."""
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.is_over.set()
        server.shutdown()
        server.server_close()
        thread.join()
