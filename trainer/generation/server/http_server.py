"""HTTP endpoint for generation: POST /generate, GET /health, GET /metrics.

One thread generates one clip at a time and alternates with the server's rounds; requests wait in a short
queue. Every input is bounded: body, clip size, queue, connections, time. Replies other than the mp4 are one
line of JSON, or Prometheus text.

On a loopback address any local process may ask, but no web page: the Host must be a loopback name and the
body JSON, which a page of another origin cannot send. Any other address needs a token.
"""

import hmac
import io
import queue
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from trainer.generation.server.request import Answer, Arriving, Job, Limits, Refused, body_bytes, parse
from vidcurate.errors import InputError

SOCKET_SECONDS = 30.0  # limit for a client to send its request, and again to receive the reply
MAX_CONNECTIONS = 64
DRAIN_SECONDS = 2.0
LOOK_SECONDS = 0.2
STOP_SECONDS = 0.05  # between two looks of the listening thread at whether the server ends
MOST_END_SECONDS = 30.0  # that the end of the server waits for the present part of a clip
LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")


def _unforeseen(error: Exception) -> Refused:
    return Refused(500, " ".join(f"{type(error).__name__}: {error}".split()))


class Endpoint:
    """Request queue, worker thread and counters. A context manager: the server listens inside.

    `prepare` checks a request before it is queued, `generate` makes its reply; `facts` and `gauges` are the
    content of /health and /metrics.
    Raises InputError if the address cannot be bound.
    """

    def __init__(
        self,
        address: tuple[str, int],
        limits: Limits,
        token: str | None,
        generate: Callable[[dict[str, Any], Callable[[], None]], Answer],
        facts: Callable[[], dict[str, Any]],
        gauges: Callable[[], dict[str, float]],
        prepare: Callable[[dict[str, Any]], dict[str, Any]] = dict,
    ) -> None:
        self.prepare = prepare
        self.limits, self.token = limits, token
        self.generate, self.facts, self.gauges = generate, facts, gauges
        self.jobs: queue.Queue[Job | None] = queue.Queue(limits.max_queue)
        self.codes: Counter[int] = Counter()
        self.seconds = 0.0
        self.lock, self._is_over = threading.Lock(), threading.Event()
        try:
            self._server = _Server(address, _Handler)
        except OSError as error:
            raise InputError(f"--http {address[0]}:{address[1]}: cannot listen there ({error}).") from error
        self._server.endpoint = self
        self.host, self.port = address[0], int(self._server.server_address[1])
        self._threads = [
            threading.Thread(target=self._work, name="generate", daemon=True),
            threading.Thread(
                target=self._server.serve_forever, args=(STOP_SECONDS,), name="http", daemon=True
            ),
        ]

    def __enter__(self) -> "Endpoint":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop listening and end the present clip: Python must not exit while a thread runs torch."""
        self._is_over.set()
        self._server.shutdown()
        self._server.server_close()
        with self.jobs.mutex:
            self.jobs.queue.clear()
            self.jobs.queue.append(None)
            self.jobs.not_empty.notify()
        for thread in self._threads:
            thread.join(MOST_END_SECONDS)

    def _check(self, job: Job) -> None:
        """Raise Refused if the server ends, or the request has."""
        if self._is_over.is_set():
            raise Refused(503, "the server ends.")
        job.check()

    def _work(self) -> None:
        while (job := self.jobs.get()) is not None:
            began = time.monotonic()
            check = partial(self._check, job)
            try:
                check()
                job.answer = self.generate(job.asked, check)
            except Refused as refused:
                job.answer = refused.answer
            except Exception as error:  # noqa: BLE001 - reported to the client; the thread continues
                job.answer = _unforeseen(error).answer
            with self.lock:
                self.seconds += time.monotonic() - began
            job.ended.set()

    def ask(self, asked: dict[str, Any], is_gone: Callable[[], bool] = lambda: False) -> Answer:
        """Check and queue a request, wait for its reply, and return it. Raises Refused: 429 or 504.

        When `is_gone` says that the client has closed its connection, the request leaves the queue, or ends
        at its next step.
        """
        asked = self.prepare(asked)
        limit = self.limits.time_limit_seconds
        job = Job(asked, time.monotonic() + limit)
        try:
            self.jobs.put_nowait(job)
        except queue.Full:
            raise Refused(
                429, f"{self.limits.max_queue} requests are waiting already. Ask again later."
            ) from None
        until = job.deadline + 1.0  # a decode cannot be interrupted and may continue
        while not job.ended.wait(min(LOOK_SECONDS, max(0.0, until - time.monotonic()))):
            if is_gone() or time.monotonic() >= until:
                job.is_dropped = True
                self._forget(job)
                job.check()
        assert job.answer is not None
        return job.answer

    def _forget(self, job: Job) -> None:
        """Take a dropped request out of the queue, if it is still there."""
        with self.jobs.mutex:
            if job in self.jobs.queue:
                self.jobs.queue.remove(job)
                self.jobs.unfinished_tasks -= 1
                self.jobs.not_full.notify()

    def count(self, code: int) -> None:
        with self.lock:
            self.codes[code] += 1

    def prometheus(self) -> str:
        """Return the counters in Prometheus text format."""
        with self.lock:
            codes, seconds = dict(self.codes), self.seconds
        lines = ["# TYPE vidcurate_serve_http_requests_total counter"]
        lines += [
            f'vidcurate_serve_http_requests_total{{code="{code}"}} {codes[code]}' for code in sorted(codes)
        ]
        lines += ["# TYPE vidcurate_serve_generate_seconds_total counter"]
        lines += [f"vidcurate_serve_generate_seconds_total {seconds:.3f}"]
        for name, value in {"queue_length": float(self.jobs.qsize()), **self.gauges()}.items():
            kind = "counter" if name.partition("{")[0].endswith("_total") else "gauge"
            lines += [f"# TYPE vidcurate_serve_{name.partition('{')[0]} {kind}"]
            lines += [f"vidcurate_serve_{name} {value:g}"]
        return "\n".join(dict.fromkeys(lines)) + "\n"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = (
        MAX_CONNECTIONS  # a connection beyond the queue is tried again after a second, then two
    )
    endpoint: Endpoint

    def __init__(self, *arguments: Any) -> None:
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._arriving: dict[Any, None] = {}  # connections whose request is incomplete, oldest first
        self._changing = threading.Lock()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection; of too many, the one that has been sending its request longest is closed."""
        if not self._room.acquire(blocking=False):
            with self._changing:
                oldest = next(iter(self._arriving), None)
                self._arriving.pop(oldest, None)
            if oldest is not None:
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            if oldest is None or not self._room.acquire(timeout=1.0):
                self.shutdown_request(request)
                return
        with self._changing:
            self._arriving[request] = None
        super().process_request(request, client_address)

    def has_arrived(self, request: Any) -> None:
        """Note that a connection's request is complete: it is not closed for others any more."""
        with self._changing:
            self._arriving.pop(request, None)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.has_arrived(request)
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A disconnected client is not an error."""


class _Handler(BaseHTTPRequestHandler):
    _has_unread = False  # whether bytes of the request may be left in the connection
    timeout = SOCKET_SECONDS
    server: _Server
    server_version = "vidcurate"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(Arriving(self.connection, self.timeout))

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are counted in /metrics, not logged."""

    def _answer(self, answer: Answer) -> None:
        self.server.endpoint.count(answer.code)
        self.connection.settimeout(self.timeout)
        self.send_response(answer.code)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)
        self.close_connection = True
        if self._has_unread:
            self._drain()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse a request that the standard library cannot read, or whose method is unknown."""
        self._has_unread = True
        self._answer(Refused(code, f"{message or HTTPStatus(code).phrase}.").answer)

    def _do(self, act: Callable[[], Answer]) -> None:
        try:
            self._check_caller()
            answer = act()
        except Refused as refused:
            answer = refused.answer
        except OSError:  # the client's connection failed: no reply is possible
            raise
        except Exception as error:  # noqa: BLE001 - `handle_error` is silent
            answer = _unforeseen(error).answer
        self._answer(answer)

    def _check_caller(self) -> None:
        token = self.server.endpoint.token
        if token is None:
            host = self.headers.get("Host", "")
            name = host if host.lower() in LOOPBACK else host.rpartition(":")[0]
            if name.lower() not in LOOPBACK:
                raise Refused(403, f"Host is {host!r}; without a token only loopback names are answered.")
            return
        given = self.headers.get("Authorization", "")
        if not given:
            raise Refused(401, "a token is needed: Authorization: Bearer TOKEN.")
        if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            raise Refused(401, "the token is wrong.")

    def do_GET(self) -> None:
        endpoint = self.server.endpoint

        def act() -> Answer:
            if self.path == "/health":
                return Answer.of_json(
                    200, {"status": "ok", **endpoint.facts(), "queue": endpoint.jobs.qsize()}
                )
            if self.path == "/metrics":
                kind = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
                return Answer(200, endpoint.prometheus().encode("utf-8", "replace"), kind)
            raise Refused(404, f"{self.path} is not here; there are /generate, /health and /metrics.")

        self._do(act)

    def do_POST(self) -> None:
        self._has_unread = True

        def act() -> Answer:
            if self.path != "/generate":
                raise Refused(404, f"{self.path} is not here; POST goes to /generate.")
            endpoint = self.server.endpoint
            asked = parse(self._body())
            self.server.has_arrived(self.connection)
            return endpoint.ask(asked, self._is_gone)

        self._do(act)

    def _body(self) -> bytes:
        kind = self.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refused(415, f"Content-Type is {kind!r}; application/json is needed.")
        num_bytes = body_bytes(self.headers.get("Content-Length", ""))
        try:
            body = self.rfile.read(num_bytes)
        except TimeoutError as error:
            raise Refused(408, f"the request did not arrive completely within {self.timeout:g} s.") from error
        self._has_unread = False
        return body

    def handle_expect_100(self) -> bool:
        """Refuse a body before the client sends it (`Expect: 100-continue`), as `body_bytes` does."""
        try:
            body_bytes(self.headers.get("Content-Length", ""))
        except Refused as refused:
            self._answer(refused.answer)
            return False
        return super().handle_expect_100()

    def _drain(self) -> None:
        """Read on for DRAIN_SECONDS after the reply: a connection closed with unread data loses the reply."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            until = time.monotonic() + DRAIN_SECONDS
            while (left := until - time.monotonic()) > 0:
                self.connection.settimeout(left)
                if not self.connection.recv(1 << 16):
                    return

    def _is_gone(self) -> bool:
        """Return whether the client has closed its connection, perhaps after bytes that nobody needs."""
        self.connection.settimeout(0.0)
        try:
            return not self.connection.recv(1 << 16)
        except BlockingIOError:
            return False
        except OSError:
            return True
