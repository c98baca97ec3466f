"""HTTP requests through a pool of open connections, for small reads of a server.

A new connection costs two to four round trips (TCP, TLS), as long as a small range takes itself. A connection
goes back to the pool when its answer has been read to the end. The standard library alone: a fetch needs no
extra. Behind a proxy (`https_proxy` and its kind) every request opens a connection, through urllib.
"""

import http.client
import io
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from functools import lru_cache
from threading import Lock
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import SplitResult, urljoin, urlsplit

_MOST_IDLE = 32  # open connections that one server keeps for us
_MOST_REDIRECTS = 10
_REDIRECT_BYTES = 1 << 16
_REDIRECTS = (301, 302, 303, 307, 308)
_PACE_BYTES = 1 << 16  # that must come within the timeout, waiting alone counted
_MOST_HEAD_BYTES = 1 << 20  # of status and headers, interim answers (100 Continue) included

_Place = tuple[str, str, float]  # scheme, host and port, timeout in seconds
_idle: dict[_Place, list[http.client.HTTPConnection]] = {}
_lock = Lock()


@lru_cache(maxsize=1)
def _context() -> ssl.SSLContext:
    return ssl.create_default_context()


class _PacedFile(io.RawIOBase):
    """Bytes of an answer. Raises TimeoutError for a server that sends them drop by drop.

    A socket's own timeout begins anew with each byte. The time that the caller takes between reads is free.
    """

    def __init__(self, raw: io.RawIOBase, timeout_seconds: float) -> None:
        self._raw, self._timeout_seconds = raw, timeout_seconds
        self._waited_seconds, self._num_bytes = 0.0, 0
        self.is_head = True

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        start = time.monotonic()
        count = self._raw.readinto(buffer)
        self._waited_seconds += time.monotonic() - start
        self._num_bytes += count or 0
        if self.is_head and self._num_bytes > _MOST_HEAD_BYTES:
            raise OSError(f"the server sends more than {_MOST_HEAD_BYTES:,} bytes of headers")
        if not self.is_head and self._num_bytes >= _PACE_BYTES:
            self._waited_seconds, self._num_bytes = 0.0, 0
        if count and self._waited_seconds > self._timeout_seconds:
            raise TimeoutError(f"the server sent {self._num_bytes:,} bytes in {self._waited_seconds:.0f} s")
        return count

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    """Response that is read at a pace: headers within the timeout, then `_PACE_BYTES` at a time."""

    def __init__(self, sock: socket.socket, *given: Any, **more: Any) -> None:
        super().__init__(sock, *given, **more)
        self._paced = _PacedFile(self.fp.detach(), sock.gettimeout() or float("inf"))
        self.fp = io.BufferedReader(self._paced)

    def begin(self) -> None:
        super().begin()
        self._paced.is_head = False


class Answer:
    """An answer's body: `read` and `close`; as a context manager it closes. `status`, `headers`, `reason`."""

    def __init__(
        self, response: http.client.HTTPResponse, connection: http.client.HTTPConnection | None, place: _Place
    ) -> None:
        self._response, self._connection, self._place = response, connection, place
        self.status, self.reason, self.headers = response.status, response.reason, response.headers

    def read(self, size: int = -1, /) -> bytes:
        return self._response.read(None if size < 0 else size)

    def close(self) -> None:
        """Give the connection back when the body has been read to the end, else close it."""
        is_whole = self._response.isclosed() or self._response.length == 0
        will_close = self._response.will_close
        self._response.close()
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if is_whole and not will_close:
            with _lock:
                idle = _idle.setdefault(self._place, [])
                if len(idle) < _MOST_IDLE:
                    idle.append(connection)
                    return
        connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def retry_after(value: str | None) -> float | None:
    """Return the seconds of a Retry-After header (a number or a date), None for another text."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    return max(0.0, seconds) if seconds == seconds else None


def get(url: str, headers: Mapping[str, str], timeout_seconds: float) -> Answer:
    """Return the answer to a GET request, of any status; redirects are followed.

    Raises OSError and http.client.HTTPException for a failed connection, and ValueError for a URL that is
    none, or a redirect to what is not HTTP.
    """
    for _ in range(_MOST_REDIRECTS):
        place = urlsplit(url)
        if place.scheme not in ("http", "https") or not place.hostname:
            raise ValueError(f"{url}: no HTTP address")
        answer = _answer(url, place, headers, timeout_seconds)
        target = answer.headers.get("Location") if answer.status in _REDIRECTS else None
        if target is None:
            return answer
        answer.read(_REDIRECT_BYTES)  # usually all of it: the connection can be used again
        answer.close()
        url = urljoin(url, target)
    raise OSError(f"{url}: more than {_MOST_REDIRECTS} redirects")


def _answer(url: str, place: SplitResult, headers: Mapping[str, str], timeout_seconds: float) -> Answer:
    key = (place.scheme, place.netloc.rpartition("@")[2], timeout_seconds)
    if urllib.request.getproxies().get(place.scheme) and not urllib.request.proxy_bypass(
        place.hostname or ""
    ):
        return Answer(_through_proxy(url, headers, timeout_seconds), None, key)
    target = (place.path or "/") + (f"?{place.query}" if place.query else "")
    while True:
        with _lock:
            connection = _idle.get(key, []).pop() if _idle.get(key) else None
        is_new = connection is None
        connection = connection or _connection(key)
        try:
            connection.request("GET", target, headers=dict(headers))
            return Answer(connection.getresponse(), connection, key)
        except (http.client.RemoteDisconnected, ConnectionError, http.client.CannotSendRequest):
            connection.close()
            if is_new:  # an idle one may have been closed by the server: the next, at last a new one
                raise
        except BaseException:
            connection.close()
            raise


def _connection(key: _Place) -> http.client.HTTPConnection:
    scheme, host, timeout = key
    connection = (
        http.client.HTTPSConnection(host, timeout=timeout, context=_context())
        if scheme == "https"
        else http.client.HTTPConnection(host, timeout=timeout)
    )
    connection.response_class = _Response
    return connection


def _through_proxy(url: str, headers: Mapping[str, str], timeout_seconds: float) -> http.client.HTTPResponse:
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(
            urllib.request.Request(url, headers=dict(headers)), timeout=timeout_seconds
        )
    except urllib.error.HTTPError as error:
        return cast(http.client.HTTPResponse, error.fp)
    return response
