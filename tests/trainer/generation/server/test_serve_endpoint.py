"""The HTTP endpoint, over real sockets on loopback: clips on request, limits, tokens, one-line errors."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.shards_for_tests import make_shards, smoke
from trainer.distributed.mesh import ALONE
from trainer.generation import sample_clips, sample_command
from trainer.generation.server import follow
from trainer.generation.server import http_server as http_endpoint
from trainer.generation.server.generate import Generator
from trainer.generation.server.http_server import Endpoint
from trainer.generation.server.presets import Changes
from trainer.generation.server.request import MAX_BODY_BYTES, Answer, Limits
from trainer.generation.server.weights import Model
from trainer.train import train
from vidcurate.errors import InputError

PROMPT = "a red square moves right"
TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("asked")
    shards = make_shards(folder / "shards", num_clips=6)
    train(smoke(shards, folder / "run", "stages.0.steps=2", "stages.0.checkpoint_every=1"))
    return folder / "run"


class Reply:
    """An HTTP answer, read whole."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.code, self.headers, self.body = response.status, response.headers, response.read()

    def error(self) -> str:
        assert self.body.count(b"\n") == 1
        assert self.body.endswith(b"\n")
        text: str = json.loads(self.body)["error"]
        return text


def ask(port: int, method: str, path: str, body: object = None, **headers: str) -> Reply:
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    sent = {"Content-Type": "application/json"} if body is not None else {}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, data, {**sent, **named})
        return Reply(connection.getresponse())
    finally:
        connection.close()


@contextmanager
def listening(run: Path, limits: Limits | None = None, token: str | None = None) -> Iterator[int]:
    """A server's endpoint for `run`; gives its port."""
    service = follow.Service(runs=(run,), presets=("own",), changes=Changes())
    generator = Generator(follow.Server(service, ALONE, Model(ALONE)), limits or Limits())
    given = (limits or Limits(), token, generator, generator.facts, generator.gauges, generator.prepare)
    with Endpoint(("127.0.0.1", 0), *given) as endpoint:
        yield endpoint.port


@pytest.fixture(scope="module")
def port(run: Path) -> Iterator[int]:
    with listening(run, Limits(max_pixels=16 * 32 * 32)) as port:
        yield port


@pytest.mark.parametrize("name", [None, "step-00000001"])
def test_a_clip_on_request_is_that_of_sampling_by_hand(
    run: Path, port: int, tmp_path: Path, name: str | None
) -> None:
    asked = {
        "prompt": PROMPT,
        "seed": 7,
        "num_frames": 4,
        "height": 16,
        "width": 24,
        "steps": 3,
        "guidance": 2,
    }

    reply = ask(port, "POST", "/generate", asked | ({"checkpoint": name} if name else {}))

    assert reply.code == 200, reply.body
    assert reply.headers["Content-Type"] == "video/mp4"
    assert reply.headers["X-Checkpoint"] == (name or "step-00000002")
    words = ["--prompt", PROMPT, "--seed", "7", "--size", "4x16x24", "--steps", "3", "--guidance", "2"]
    assert sample_command.main([str(run / (name or "step-00000002")), *words, "--out", str(tmp_path)]) == 0
    assert reply.body == (tmp_path / "00-7.mp4").read_bytes()
    got, hand = tmp_path / "got.mp4", tmp_path / "00-7.mp4"
    got.write_bytes(reply.body)
    size = {"num_frames": 4, "height": 16, "width": 24}
    assert (sample_clips.read_clip(got, size) == sample_clips.read_clip(hand, size)).all()


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        (b"{", 400, "the body is no JSON"),
        (b"[" * 60_000, 400, "the body is no JSON"),
        (b"\xff", 400, "the body is no JSON"),
        ([], 400, "no JSON object"),
        ({}, 400, "prompt is missing"),
        ({"prompt": " "}, 400, "prompt is missing"),
        ({"prompt": ""}, 400, "prompt is missing or empty"),
        ({"prompt": 3}, 400, "text is needed"),
        ({"prompt": "x", "sede": 1}, 400, "sede is no field"),
        ({"prompt": "x", "seed": -1}, 400, "seed is -1; a whole number"),
        ({"prompt": "x", "seed": 1.5}, 400, "seed is 1.5; a whole number"),
        ({"prompt": "x", "seed": True}, 400, "seed is True"),
        ({"prompt": "x", "guidance": float("nan")}, 400, "guidance is nan; a number"),
        ({"prompt": "x", "guidance": 10**400}, 400, "guidance is 1000"),
        ({"prompt": "x", "seed": 10**400}, 400, "seed is 1000"),
        (b'{"prompt": "x", "fps": -Infinity}', 400, "fps is -inf"),
        ({"prompt": "\ud800 x"}, 400, "prompt has half of a surrogate pair"),
        ({"prompt": "x", "\udfff": 1}, 400, "is no field"),
        ({"prompt": "x", "height": 31}, 400, "height and width must be even"),
        ({"prompt": "x", "height": 2}, 400, "smaller than the video encoder's blocks"),
        ({"prompt": "x", "num_frames": 17}, 413, "the limit is 16384"),
        ({"prompt": "x" * 5000}, 413, "the prompt has 5000 characters"),
        ({"prompt": "x", "checkpoint": "../step-00000001"}, 404, "is not one of run"),
        ({"prompt": "x", "checkpoint": "step-00000009"}, 404, "is not one of run"),
        ({"prompt": "x", "run": "other"}, 404, "the runs are run"),
    ],
)
def test_a_request_that_cannot_be_done_is_reported_why_in_one_line(
    port: int, body: object, code: int, said: str
) -> None:
    reply = ask(port, "POST", "/generate", body)

    assert reply.code == code
    assert said in reply.error()


def test_a_body_too_large_is_refused(port: int) -> None:
    reply = ask(port, "POST", "/generate", {"prompt": "x" * MAX_BODY_BYTES})

    assert reply.code == 413
    assert f"the limit is {MAX_BODY_BYTES}" in reply.error()


def test_other_paths_and_bodies_without_a_length_or_of_another_kind_are_refused(port: int) -> None:
    assert ask(port, "GET", "/generate").code == 404
    assert ask(port, "POST", "/health", {}).code == 404
    assert ask(port, "POST", "/generate", b"prompt=x", Content_Type="text/plain").code == 415
    with socket.create_connection(("127.0.0.1", port), timeout=30) as raw:
        raw.sendall(b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\r\n")
        assert b" 411 " in raw.recv(100)


def test_a_page_of_another_name_is_not_answered(port: int) -> None:
    assert ask(port, "GET", "/health", Host="evil.example").code == 403
    for name in ("localhost", "LOCALHOST", "LocalHost"):
        assert ask(port, "GET", "/health", Host=name).code == 200
        assert ask(port, "GET", "/health", Host=f"{name}:{port}").code == 200


def test_a_token_is_asked_for_and_compared(run: Path) -> None:
    with listening(run, token=TOKEN) as port:
        missing = ask(port, "GET", "/health")
        wrong = ask(port, "POST", "/generate", {"prompt": "x"}, Authorization="Bearer wrong")
        right = ask(port, "GET", "/health", Authorization=f"Bearer {TOKEN}", Host="any.example")
    assert (missing.code, wrong.code, right.code) == (401, 401, 200)
    assert "a token is needed" in missing.error()
    assert missing.headers["WWW-Authenticate"] == "Bearer"
    assert "the token is wrong" in wrong.error()
    assert TOKEN not in wrong.body.decode()


def test_health_and_metrics_tell_what_was_asked(run: Path) -> None:
    with listening(run) as port:
        ask(port, "POST", "/generate", b"{")
        assert ask(port, "POST", "/generate", {"prompt": PROMPT, "steps": 1}).code == 200
        health, metrics = ask(port, "GET", "/health"), ask(port, "GET", "/metrics")
    facts = json.loads(health.body)
    assert facts["status"] == "ok"
    assert facts["runs"] == [str(run)]
    assert facts["queue"] == 0
    assert metrics.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    lines = metrics.body.decode().splitlines()
    assert 'vidcurate_serve_http_requests_total{code="400"} 1' in lines
    assert 'vidcurate_serve_http_requests_total{code="200"} 2' in lines
    assert "# TYPE vidcurate_serve_http_requests_total counter" in lines
    assert "vidcurate_serve_weight_swaps_total 1" in lines
    values = [line for line in lines if not line.startswith("#")]
    assert all(len(line.rsplit(" ", 1)) == 2 and float(line.rsplit(" ", 1)[1]) >= 0 for line in values)


@contextmanager
def slow(limits: Limits, gate: threading.Event) -> Iterator[Endpoint]:
    """An endpoint whose generation waits for `gate`, looking at its time limit as the sampler does."""

    def generate(asked: dict[str, Any], check: Callable[[], None]) -> Answer:
        while not gate.wait(0.01):
            check()
        return Answer.of_json(200, {"prompt": asked["prompt"]})

    with Endpoint(("127.0.0.1", 0), limits, None, generate, dict, dict) as endpoint:
        yield endpoint


def wait_until(condition: Callable[[], object]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def _in_thread(port: int, replies: list[Reply]) -> threading.Thread:
    thread = threading.Thread(target=lambda: replies.append(ask(port, "POST", "/generate", {"prompt": "x"})))
    thread.start()
    return thread


def test_a_full_queue_refuses_and_one_clip_is_made_at_a_time() -> None:
    gate, replies = threading.Event(), []  # type: ignore[var-annotated]
    with slow(Limits(max_queue=1), gate) as endpoint:
        first = _in_thread(endpoint.port, replies)
        # The first is taken out and worked on before the second comes.
        wait_until(lambda: endpoint.jobs.unfinished_tasks and endpoint.jobs.empty())
        second = _in_thread(endpoint.port, replies)
        wait_until(lambda: not endpoint.jobs.empty())

        refused = ask(endpoint.port, "POST", "/generate", {"prompt": "x"})

        assert ask(endpoint.port, "GET", "/health").code == 200  # answered while a clip is made
        gate.set()
        first.join(60)
        second.join(60)
    assert refused.code == 429
    assert refused.headers["Retry-After"] == "10"
    assert "1 requests are waiting already" in refused.error()
    assert [reply.code for reply in replies] == [200, 200]


def test_a_request_ends_at_its_time_limit() -> None:
    gate = threading.Event()
    with slow(Limits(time_limit_seconds=0.2), gate) as endpoint:
        reply = ask(endpoint.port, "POST", "/generate", {"prompt": "x"})
        gate.set()
        until = (
            time.monotonic() + 60
        )  # on a machine that is slow just now, the next may come to its limit, too
        while ask(endpoint.port, "POST", "/generate", {"prompt": "x"}).code != 200:
            assert time.monotonic() < until
    assert reply.code == 504
    assert "the time limit has passed" in reply.error()


def test_sampling_itself_stops_at_the_time_limit(run: Path) -> None:
    with listening(run, Limits(time_limit_seconds=0.3)) as port:
        reply = ask(port, "POST", "/generate", {"prompt": "x", "steps": 1000})
    assert reply.code == 504


def test_what_fails_unforeseen_is_reported_and_the_thread_works_on() -> None:
    def generate(asked: dict[str, Any], check: Callable[[], None]) -> Answer:
        if asked["prompt"] == "bad":
            raise RuntimeError("two\nlines")
        return Answer.of_json(200, {})

    with Endpoint(("127.0.0.1", 0), Limits(), None, generate, dict, dict) as endpoint:
        bad = ask(endpoint.port, "POST", "/generate", {"prompt": "bad"})
        good = ask(endpoint.port, "POST", "/generate", {"prompt": "good"})
    assert (bad.code, good.code) == (500, 200)
    assert bad.error() == "RuntimeError: two lines"


def test_a_page_that_fails_unforeseen_is_an_answer_and_no_broken_line() -> None:
    def facts() -> dict[str, Any]:
        raise RuntimeError("no facts")

    with Endpoint(
        ("127.0.0.1", 0), Limits(), None, lambda asked, check: Answer.of_json(200, {}), facts, dict
    ) as endpoint:
        reply = ask(endpoint.port, "GET", "/health")
    assert (reply.code, reply.error()) == (500, "RuntimeError: no facts")


def test_connections_are_bounded_and_a_silent_one_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_endpoint, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(http_endpoint._Handler, "timeout", 0.5)
    gate = threading.Event()
    gate.set()
    with slow(Limits(), gate) as endpoint:
        address = ("127.0.0.1", endpoint.port)
        silent = [socket.create_connection(address, timeout=30) for _ in range(2)]
        for one in silent:
            one.sendall(b"GET /health")  # and no more
        time.sleep(0.2)
        assert ask(endpoint.port, "GET", "/health").code == 200  # the longest silent one goes for it
        assert silent[0].recv(10) == b""
        for one in silent:
            assert one.recv(10) == b""  # after its time
            one.close()
        assert ask(endpoint.port, "GET", "/health").code == 200


@pytest.mark.parametrize(
    ("sent", "answered"),
    [
        (b"GET /health HTTP/1.0\r\nX: ", b""),
        (b"POST /generate HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n"
         b"Content-Length: 60000\r\n\r\n", b"HTTP/1.0 408 "),
    ],
    ids=["headers", "body"],
)  # fmt: skip
def test_a_request_that_drips_in_is_let_go_when_its_whole_time_is_over(
    monkeypatch: pytest.MonkeyPatch, sent: bytes, answered: bytes
) -> None:
    monkeypatch.setattr(http_endpoint._Handler, "timeout", 0.5)
    gate = threading.Event()
    gate.set()
    with slow(Limits(), gate) as endpoint:
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", endpoint.port), timeout=30) as client:
            client.sendall(sent)
            client.setblocking(False)
            got = None
            while got is None and time.monotonic() - began < 60:
                try:
                    got = client.recv(1000)
                except BlockingIOError:
                    pass
                except ConnectionResetError:
                    got = b""
                with suppress(OSError):  # it is closed by now
                    client.send(b"x")
                time.sleep(0.05)
    assert got is not None, "it was let drip on"
    assert got.startswith(answered)
    assert time.monotonic() - began > 0.4


def test_a_port_that_is_taken_is_one_line(run: Path) -> None:
    with listening(run) as port, pytest.raises(InputError, match="cannot listen there"):
        Endpoint(("127.0.0.1", port), Limits(), None, lambda a, c: Answer(200, b""), dict, dict)
