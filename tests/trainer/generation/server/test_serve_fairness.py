"""The endpoint takes nothing from others: from rounds, from waiting clients, from polite ones."""

import json
import shutil
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.generation.server.test_serve_endpoint import ask, listening, slow, wait_until
from tests.trainer.shards_for_tests import make_shards, smoke
from trainer.distributed.mesh import ALONE
from trainer.generation.server import weights
from trainer.generation.server.request import Limits, Refused
from trainer.generation.server.weights import Model, Taken, take
from trainer.run_folder.sample_rounds import Entry
from trainer.train import train

ASKED = json.dumps({"prompt": "x"}).encode()
HEAD = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("asked")
    train(smoke(make_shards(folder / "shards", num_clips=6), folder / "run", "stages.0.steps=1"))
    return folder / "run"


def posted(port: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=30)
    client.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(ASKED) + ASKED)
    return client


def test_seventy_slow_sockets_do_not_lock_out_health() -> None:
    gate = threading.Event()
    gate.set()
    with slow(Limits(), gate) as endpoint:
        clients = [socket.create_connection(("127.0.0.1", endpoint.port), timeout=30) for _ in range(70)]
        for client in clients:
            try:
                client.sendall(b"GET /health")
            except OSError:
                continue  # closed for a newer one
        began = time.monotonic()
        assert ask(endpoint.port, "GET", "/health").code == 200
        assert time.monotonic() - began < 25  # the slow sockets stay for longer
        for client in clients:
            client.close()


def test_a_request_whose_client_has_gone_leaves_the_queue_and_the_model() -> None:
    gate = threading.Event()
    with slow(Limits(max_queue=1), gate) as endpoint:
        worked_on = posted(endpoint.port)
        wait_until(lambda: endpoint.jobs.unfinished_tasks and endpoint.jobs.empty())
        waiting = posted(endpoint.port)
        wait_until(lambda: not endpoint.jobs.empty())
        waiting.sendall(b"\r\nGET / HTTP/1.1\r\n")  # of a pipeline; it hides no closed socket
        waiting.close()
        wait_until(endpoint.jobs.empty)
        worked_on.close()
        gate.set()
        assert ask(endpoint.port, "POST", "/generate", {"prompt": "x"}).code == 200


def test_what_cannot_be_done_is_refused_while_the_queue_is_full(run: Path) -> None:
    refused: list[tuple[dict[str, Any], int]] = [
        ({"checkpoint": "step-00000009"}, 404),
        ({"height": 31}, 400),
        ({"num_frames": 10_000, "height": 64, "width": 64}, 413),
        ({"num_frames": 200, "height": 256, "width": 256}, 413),
        ({"run": "other"}, 404),
    ]
    half_copied = shutil.copytree(run / "step-00000001", run / "step-00000000")
    (half_copied / "ema" / ".metadata").write_bytes(b"")
    refused.append(({"checkpoint": half_copied.name}, 503))
    with listening(run, Limits(max_queue=1, max_tokens=10_000)) as port:
        clients = [posted(port) for _ in range(3)]
        for asked, code in refused:
            assert ask(port, "POST", "/generate", {"prompt": "x", **asked}).code == code, asked
        tokens = ask(
            port, "POST", "/generate", {"prompt": "x", "num_frames": 200, "height": 256, "width": 256}
        )
        assert "tokens; the limit is 10000" in tokens.error()
        for client in clients:
            client.close()
    shutil.rmtree(half_copied)


def test_a_frame_whose_attention_would_outlast_the_time_limit_is_refused(run: Path) -> None:
    asked = {"prompt": "x", "num_frames": 1, "height": 2880, "width": 2880, "steps": 1}
    with listening(run, Limits()) as port:
        found = ask(port, "POST", "/generate", asked)
    assert (found.code, "a frame has 129600 tokens" in found.error()) == (413, True)


@pytest.mark.parametrize("size", [100_000, 20_000_000])
def test_a_large_body_gets_its_413(size: int) -> None:
    gate = threading.Event()
    gate.set()
    with slow(Limits(), gate) as endpoint:
        assert ask(endpoint.port, "POST", "/generate", b"x" * size).code == 413


def test_a_large_body_that_is_announced_is_refused_before_it_is_sent() -> None:
    gate = threading.Event()
    gate.set()
    with (
        slow(Limits(), gate) as endpoint,
        socket.create_connection(("127.0.0.1", endpoint.port), timeout=30) as client,
    ):
        client.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: 20000000\r\n\r\n")
        assert b" 413 " in client.recv(1000).splitlines()[0]


def test_a_request_gives_way_to_a_round_between_two_steps(run: Path) -> None:
    model, taken = Model(ALONE), take(run / "step-00000001", raw=False, world=ALONE)
    spec = taken.recipe.sample
    assert spec is not None
    small = spec.model_copy(update={"num_frames": 4, "height": 16, "width": 16, "steps": 6})
    entry = Entry(number=0, prompt="x", seed=0)
    other: Taken = take(run / "step-00000001", raw=True, world=ALONE)
    order: list[str] = []

    def round_of_the_server() -> None:
        with model.first():
            model.of(other)
            order.append("round")

    thread = threading.Thread(target=round_of_the_server)

    def between() -> None:
        order.append("step")
        if order.count("step") == 3:
            thread.start()
            wait_until(lambda: model._num_first)

    alone = model.clip(taken, small, entry)
    clip = model.clip(taken, small, entry, between)
    thread.join(60)

    assert "round" in order[2:6]
    assert order[-1] == "step"
    assert (clip == alone).all()


@pytest.mark.parametrize("waits", [False, True], ids=["time limit", "round waits"])
def test_a_single_step_is_ended_in_its_midst(run: Path, waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "CHECK_SECONDS", 0.0)
    monkeypatch.setattr(weights, "MOST_WAIT_SECONDS", 0.0)
    model, taken = Model(ALONE), take(run / "step-00000001", raw=False, world=ALONE)
    spec = taken.recipe.sample
    assert spec is not None
    single = spec.model_copy(update={"num_frames": 4, "height": 16, "width": 16, "steps": 1})
    served, is_over = threading.Event(), threading.Event()
    calls: list[str] = []

    def round_of_the_server() -> None:
        with model.first():
            served.set()

    thread = threading.Thread(target=round_of_the_server)

    def inside(*_: object) -> None:  # the step is at its first block
        calls.append("block")
        if waits:
            thread.start()
            wait_until(lambda: model._num_first)
        else:
            is_over.set()

    def check() -> None:
        if is_over.is_set():
            raise Refused(504, "the time limit has passed.")

    net = model.of(taken)
    hooks = [
        net.spatial_blocks[0].register_forward_hook(inside),
        net.final_layer.register_forward_hook(lambda *_: calls.append("end of the step")),
    ]
    with pytest.raises(Refused) as refused:
        model.clip(taken, single, Entry(number=0, prompt="x", seed=0), check)
    assert refused.value.code == (503 if waits else 504)
    assert calls == ["block"]
    for hook in hooks:
        hook.remove()
    if waits:
        assert served.wait(30)
        thread.join(30)
    monkeypatch.undo()
    assert model.clip(taken, single, Entry(number=0, prompt="x", seed=0), lambda: None).shape[0] == 4
