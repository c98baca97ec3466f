"""Deadline of one HTTP request: its sockets are shut down when the time is over.

A socket's own timeout begins anew with each byte: a server that sends its headers byte by byte, or endless
interim answers (100 Continue), would hold a thread for ever.
"""

import http.client
import socket
import threading
import urllib.request
from contextlib import suppress
from functools import partial
from typing import Any


class Connection:
    """Sockets of one request, which `end` shuts down."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self.is_over = False

    def add(self, one: socket.socket) -> None:
        """Add a socket; one that comes after the end is shut down at once."""
        with self._lock:
            self._sockets.append(one)
            if self.is_over:
                self._shut()

    def end(self) -> None:
        """Shut the request's sockets down; a thread that reads from one sees the end of the answer."""
        with self._lock:
            self.is_over = True
            self._shut()

    def _shut(self) -> None:
        for one in self._sockets:
            with suppress(OSError):
                socket.socket.shutdown(one, socket.SHUT_RDWR)


class _HTTP(http.client.HTTPConnection):
    def __init__(self, *given: Any, connection: Connection, **more: Any) -> None:
        super().__init__(*given, **more)
        self._connection = connection

    def connect(self) -> None:
        super().connect()
        self._connection.add(self.sock)


class _HTTPS(_HTTP, http.client.HTTPSConnection):
    pass


class Request(urllib.request.Request):
    """Request whose sockets are known to `connection`."""

    def __init__(self, *given: Any, connection: Connection, **more: Any) -> None:
        super().__init__(*given, **more)
        self.connection = connection


class HTTPHandler(urllib.request.HTTPHandler):
    """Handler of http addresses for a `Request`."""

    def http_open(self, req: Any) -> Any:
        return self.do_open(partial(_HTTP, connection=req.connection), req)


class HTTPSHandler(urllib.request.HTTPSHandler):
    """Handler of https addresses for a `Request`."""

    def https_open(self, req: Any) -> Any:
        return self.do_open(partial(_HTTPS, connection=req.connection), req)
