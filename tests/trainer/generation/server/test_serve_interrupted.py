"""Ctrl-C ends a server that is making a client's clip, with one line and without a crash."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.trainer.generation.server.test_serve_endpoint import ask, slow, wait_until
from tests.trainer.generation.server.test_serve_fairness import HEAD, posted
from tests.trainer.shards_for_tests import make_shards, smoke
from trainer.generation.server.request import Limits
from trainer.train import train

LONG = json.dumps({"prompt": "x", "steps": 250}).encode()


def queue_length(port: int) -> float:
    lines = ask(port, "GET", "/metrics").body.decode().splitlines()
    return float(next(line for line in lines if line.startswith("vidcurate_serve_queue_length")).split()[1])


def test_a_server_that_makes_a_clip_ends_with_one_line(tmp_path: Path) -> None:
    train(smoke(make_shards(tmp_path / "shards", num_clips=6), tmp_path / "run", "stages.0.steps=1"))
    words = ["serve", str(tmp_path / "run"), "--http", "127.0.0.1:0", "--no-validation"]
    with subprocess.Popen(
        [sys.executable, "-m", "trainer", *words],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stderr is not None
        line = next(line for line in server.stderr if line.startswith("listening on"))
        port = int(line.rpartition(":")[2])
        clients = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(3)]
        for client in clients:
            client.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(LONG) + LONG)
        wait_until(lambda: queue_length(port) == 2)  # the first is being made
        began = time.monotonic()
        os.kill(server.pid, signal.SIGINT)
        said = server.stderr.read()
        assert server.wait(60) == 130, said
        for client in clients:
            client.close()

    assert said.splitlines()[-1] == "interrupted; the same command continues with what is not sampled yet."
    assert "Fatal" not in said
    assert "terminate" not in said
    assert time.monotonic() - began < 30


def test_no_thread_is_left_behind_by_a_server_that_ends_amid_a_clip() -> None:
    with slow(Limits(), threading.Event()) as endpoint:
        clients = [posted(endpoint.port) for _ in range(3)]
        wait_until(lambda: endpoint.jobs.qsize() == 2)
        began = time.monotonic()

    assert {"generate", "http"}.isdisjoint(thread.name for thread in threading.enumerate())
    assert time.monotonic() - began < 20
    for client in clients:
        client.close()
