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
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from trainer.generation.server.request import Answer, Limits, Refused, parse
from vidcurate.errors import InputError

SOCKET_SECONDS = 30.0  # limit for a client to send its request, and again to receive the reply
MAX_BODY_BYTES = 65_536
DRAINED_BYTES = 1 << 20
MAX_CONNECTIONS = 64
LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")


@dataclass(slots=True, eq=False)
class Job:
    """A request in the queue: its fields, its deadline, and finally its reply."""

    asked: dict[str, Any]
    deadline: float  # of time.monotonic
    ended: threading.Event = field(default_factory=threading.Event)
    answer: Answer | None = None
    is_dropped: bool = False

    def check(self) -> None:
        """Raise Refused if the deadline has passed or the client has disconnected."""
        if self.is_dropped or time.monotonic() > self.deadline:
            raise Refused(504, "the time limit has passed. Ask for fewer frames, pixels or steps.")


def _unforeseen(error: Exception) -> Refused:
    return Refused(500, " ".join(f"{type(error).__name__}: {error}".split()))


class Endpoint:
    """Request queue, worker thread and counters. A context manager: the server listens inside.

    `generate` makes the reply of a request; `facts` and `gauges` are the content of /health and /metrics.
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
    ) -> None:
        self.limits, self.token = limits, token
        self.generate, self.facts, self.gauges = generate, facts, gauges
        self.jobs: queue.Queue[Job | None] = queue.Queue(limits.max_queue)
        self.codes: Counter[int] = Counter()
        self.seconds = 0.0
        self.lock = threading.Lock()
        try:
            self._server = _Server(address, _Handler)
        except OSError as error:
            raise InputError(f"--http {address[0]}:{address[1]}: cannot listen there ({error}).") from error
        self._server.endpoint = self
        self.host, self.port = address[0], int(self._server.server_address[1])
        self._threads = [
            threading.Thread(target=self._work, name="generate", daemon=True),
            threading.Thread(target=self._server.serve_forever, name="http", daemon=True),
        ]

    def __enter__(self) -> "Endpoint":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _work(self) -> None:
        while (job := self.jobs.get()) is not None:
            began = time.monotonic()
            try:
                job.check()
                job.answer = self.generate(job.asked, job.check)
            except Refused as refused:
                job.answer = refused.answer
            except Exception as error:  # noqa: BLE001 - reported to the client; the thread continues
                job.answer = _unforeseen(error).answer
            with self.lock:
                self.seconds += time.monotonic() - began
            job.ended.set()

    def ask(self, asked: dict[str, Any]) -> Answer:
        """Queue a request, wait for its reply, and return it. Raises Refused: 429 or 504."""
        limit = self.limits.time_limit_seconds
        job = Job(asked, time.monotonic() + limit)
        try:
            self.jobs.put_nowait(job)
        except queue.Full:
            raise Refused(
                429, f"{self.limits.max_queue} requests are waiting already. Ask again later."
            ) from None
        if not job.ended.wait(limit + 1.0):  # a decode cannot be interrupted and may continue
            job.is_dropped = True
            job.check()
        assert job.answer is not None
        return job.answer

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
    endpoint: Endpoint

    def __init__(self, *arguments: Any) -> None:
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A disconnected client is not an error."""


class _Arriving(io.RawIOBase):
    """A socket file with one deadline for the whole request: slow clients cannot prolong it."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection, self._until = connection, time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request did not arrive completely in time")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    timeout = SOCKET_SECONDS
    server: _Server
    server_version = "vidcurate"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Arriving(self.connection, self.timeout))

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
        self.wfile.write(answer.body)
        self.close_connection = True

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
            name = host if host in LOOPBACK else host.rpartition(":")[0]
            if name not in LOOPBACK:
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
                return Answer(200, endpoint.prometheus().encode(), kind)
            raise Refused(404, f"{self.path} is not here; there are /generate, /health and /metrics.")

        self._do(act)

    def do_POST(self) -> None:
        def act() -> Answer:
            if self.path != "/generate":
                raise Refused(404, f"{self.path} is not here; POST goes to /generate.")
            endpoint = self.server.endpoint
            return endpoint.ask(parse(self._body()))

        self._do(act)

    def _body(self) -> bytes:
        kind = self.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refused(415, f"Content-Type is {kind!r}; application/json is needed.")
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise Refused(411, "Content-Length is needed.")
        try:
            if int(length) <= MAX_BODY_BYTES:
                return self.rfile.read(int(length))
            self.rfile.read(min(int(length), DRAINED_BYTES))  # or the client would not read the reply
        except TimeoutError as error:
            raise Refused(408, f"the request did not arrive completely within {self.timeout:g} s.") from error
        raise Refused(413, f"the body has {length} bytes; the limit is {MAX_BODY_BYTES}.")
