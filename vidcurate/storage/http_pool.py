"""HTTP requests through a pool of open connections, for small reads of a server.

A new connection costs two to four round trips (TCP, TLS), as long as a small range takes itself. A connection
goes back to the pool when its answer has been read to the end, also behind a proxy (`http_proxy`,
`https_proxy`, `no_proxy`). The standard library alone: http needs no extra.
"""

import atexit
import base64
import http.client
import io
import os
import socket
import ssl
import time
import urllib.request
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from functools import lru_cache
from threading import Lock
from types import TracebackType
from typing import Any, Self
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from vidcurate.errors import counted

_MOST_IDLE = 32  # open connections that one server keeps for us
_MOST_REDIRECTS = 10
_REDIRECT_BYTES = 1 << 16
_REDIRECTS = (301, 302, 303, 307, 308)
_PASSING = (408, 425, 429, 500, 502, 503, 504)
_PACE_BYTES = 1 << 16  # that must come within the timeout, waiting alone counted
_MOST_HEAD_BYTES = 1 << 20  # of status and headers, interim answers (100 Continue) included
_CHUNK_BYTES = 1 << 16
LONGEST_WAIT_SECONDS = 600.0  # longest Retry-After that a command waits for

_Place = tuple[str, str, str, float]  # scheme, host and port, the proxy's URL or "", timeout in seconds
_idle: dict[_Place, list[http.client.HTTPConnection]] = {}
_lock = Lock()


def close_idle() -> None:
    """Close the connections that no request uses."""
    while _idle:
        for connection in _idle.popitem()[1]:
            connection.close()


def _after_fork() -> None:
    """Leave the open connections to the parent: two processes would read each other's answers."""
    global _lock
    _lock = Lock()
    close_idle()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(close_idle)


@lru_cache(maxsize=1)
def _context() -> ssl.SSLContext:
    return ssl.create_default_context()


class StatusError(OSError):
    """Answer of a status that is no success; `wait_seconds` is how long it asks to be left alone (or 0)."""

    def __init__(self, status: int, reason: str, wait_seconds: float = 0.0) -> None:
        super().__init__(f"the server answers {status}" + ("" if status in _PASSING else f" {reason}"[:100]))
        self.status, self.wait_seconds = status, wait_seconds

    @property
    def is_passing(self) -> bool:
        """Return whether the same request may succeed later."""
        return self.status in _PASSING


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
        self, response: http.client.HTTPResponse, connection: http.client.HTTPConnection, place: _Place
    ) -> None:
        self._response, self._place = response, place
        self._connection: http.client.HTTPConnection | None = connection
        self.status, self.reason, self.headers = response.status, response.reason, response.headers

    def read(self, size: int = -1, /) -> bytes:
        return self._response.read(None if size < 0 else size)

    def chunks(self, most_bytes: int | None = None) -> Iterator[bytes]:
        """Yield the body, or its first `most_bytes`. Raises OSError when it ends before that."""
        left = most_bytes
        while left is None or left > 0:
            data = self.read(_CHUNK_BYTES if left is None else min(left, _CHUNK_BYTES))
            if not data:
                break
            left = None if left is None else left - len(data)
            yield data
        missing = self._response.length if left is None else left
        if missing:
            raise OSError(f"the body ended {counted(missing, 'byte')} early")

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


def wait_of(error: BaseException) -> float:
    """Return for how many seconds the server that answered asks to be left alone, 0 for no answer."""
    return error.wait_seconds if isinstance(error, StatusError) else 0.0


def get(url: str, headers: Mapping[str, str], timeout_seconds: float, method: str = "GET") -> Answer:
    """Return the answer to a request, of any status; redirects are followed.

    Raises OSError and http.client.HTTPException for a failed connection, and ValueError for a URL that is
    none, or a redirect to what is not HTTP.
    """
    for _ in range(_MOST_REDIRECTS):
        place = urlsplit(url)
        if place.scheme not in ("http", "https") or not place.hostname:
            raise ValueError(f"{url}: no HTTP address")
        answer = _answer(place, headers, timeout_seconds, method)
        target = answer.headers.get("Location") if answer.status in _REDIRECTS else None
        if target is None:
            return answer
        answer.read(_REDIRECT_BYTES)  # usually all of it: the connection can be used again
        answer.close()
        url = urljoin(url, target)
    raise OSError(f"{url}: more than {_MOST_REDIRECTS} redirects")


def ask(url: str, headers: Mapping[str, str], timeout_seconds: float, method: str = "GET") -> Answer:
    """Return the answer to a request that succeeds. Raises as `get`, and StatusError."""
    answer = get(url, headers, timeout_seconds, method)
    if answer.status < 300:
        return answer
    answer.close()
    wait = retry_after(answer.headers.get("Retry-After"))
    raise StatusError(answer.status, answer.reason, wait or 0.0)


def _answer(place: SplitResult, headers: Mapping[str, str], timeout_seconds: float, method: str) -> Answer:
    host = place.netloc.rpartition("@")[2]
    proxy = urllib.request.getproxies().get(place.scheme, "")
    if proxy and urllib.request.proxy_bypass(host):
        proxy = ""
    key = (place.scheme, host, proxy, timeout_seconds)
    target = (place.path or "/") + (f"?{place.query}" if place.query else "")
    headers = dict(headers)
    if proxy and place.scheme == "http":
        target = f"http://{host}{target}"
        headers |= _proxy_login(proxy)
    with _lock:
        connection = _idle[key].pop() if _idle.get(key) else None
    if connection is not None:
        try:
            return _sent(connection, key, method, target, headers)
        except (http.client.RemoteDisconnected, ConnectionError, http.client.CannotSendRequest):
            with _lock:  # the server has closed it, and may have closed the others
                stale = _idle.pop(key, [])
            for one in stale:
                one.close()
    return _sent(_connection(key), key, method, target, headers)


def _sent(
    connection: http.client.HTTPConnection, key: _Place, method: str, target: str, headers: dict[str, str]
) -> Answer:
    try:
        connection.request(method, target, headers=headers)
        return Answer(connection.getresponse(), connection, key)
    except BaseException:
        connection.close()
        raise


def _connection(key: _Place) -> http.client.HTTPConnection:
    scheme, host, proxy, timeout = key
    near = _proxy_parts(proxy).netloc.rpartition("@")[2] if proxy else host
    connection = (
        http.client.HTTPSConnection(near, timeout=timeout, context=_context())
        if scheme == "https"
        else http.client.HTTPConnection(near, timeout=timeout)
    )
    connection.response_class = _Response
    if proxy and scheme == "https":
        connection.set_tunnel(host, headers=_proxy_login(proxy))
    return connection


def _proxy_parts(proxy: str) -> SplitResult:
    return urlsplit(proxy if "://" in proxy else f"http://{proxy}")


def _proxy_login(proxy: str) -> dict[str, str]:
    parts = _proxy_parts(proxy)
    if parts.username is None:
        return {}
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
