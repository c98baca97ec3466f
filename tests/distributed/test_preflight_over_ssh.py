"""Preflight over a real ssh: a host that computes wrongly is found, and the launch excludes it."""

import json
from pathlib import Path

import pytest

from tests.forked_runs import Forks
from tests.patched_ranks import patched
from tests.ssh_hosts import serving
from tests.trainer.shards_for_tests import command_words, events, make_shards, numbers

# One machine plays two hosts. Each has a name of its own, and the second one multiplies wrongly.
HOSTS = """
import os, socket

socket.gethostname = lambda: "node-" + os.environ["HOST_OF_TEST"]
if os.environ["HOST_OF_TEST"] == "b":
    import torch

    product = torch.matmul

    def wrong(left, right):
        result = product(left, right)
        result[7, 5] += 0.25
        return result

    torch.matmul = wrong
"""
STEPS = ("stages.0.steps=2", "stages.0.log_every=1", "sample=null", "loader.num_workers=0")


@pytest.mark.engine  # seven starts of torch; the quick part is in tests/faults/test_preflight.py
def test_a_host_whose_preflight_finds_a_wrong_product_is_left_out_and_the_run_ends_without_it(
    forks: Forks, tmp_path: Path
) -> None:
    run, hostfile = tmp_path / "run", tmp_path / "hosts"
    hostfile.write_text("a\nb\n")
    words = command_words(make_shards(tmp_path / "shards", num_clips=6), run, *STEPS)

    (tmp_path / "ssh").mkdir()
    with serving(tmp_path / "ssh") as cluster:
        words += ["--hostfile", str(hostfile), "--ssh", cluster.ssh, "--backoff-seconds", "0.1"]
        launched = forks.start(["launch", *words], **patched(tmp_path / "patch", HOSTS))
        assert launched.codes() == [0], launched.text()

    reported = launched.text()
    assert "error: bad node node-b: node-b rank 1: product: " in reported
    assert "b: left out from now on (rank 1: product: " in reported
    assert "2 hosts, 2 ranks" in reported
    assert "1 host, 1 rank" in reported
    (excluded,) = events(run, "excluded")
    assert (excluded["host"], excluded["step"]) == ("b", 0)
    assert excluded["reason"].endswith("take its node out and have it looked at")
    (restart,) = events(run, "restart")
    assert 77 in restart["codes"].values()  # the slower of them may be ended before it can say so
    assert restart["without_progress"] == 0  # another fleet: the count is of failures of the same one
    first, second = events(run, "preflight")
    assert (first["nodes"]["node-b"], first["verdict"]) == ("bad", "bad")
    assert list(second["nodes"]) == ["node-a"]
    assert [node["host"] for node in json.loads((run / "preflight.json").read_text())["nodes"]] == ["node-a"]
    assert [line["step"] for line in numbers(run)] == [1, 2]
    assert (run / "LATEST").read_text().strip() == "step-00000002"
