"""Launch over ssh, with a real sshd: a bad or silent host is excluded, ranks exit when asked."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ranks_that_end import Attempts, launch, log_file
from tests.ssh_hosts import Cluster, free_port, serving, with_hosts_that_fail
from trainer.cluster.hostfile import Host
from vidcurate.errors import VidcurateError, counted

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("forked_agents")]
A, B = Host(name="a"), Host(name="b")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with serving(tmp_path_factory.mktemp("ssh")) as served:
        yield served


def over_ssh(cluster: Cluster, run: Path, attempts: Attempts, *hosts: Host, **terms: Any) -> int:
    ssh = tuple(cluster.ssh.split())
    return launch(run, attempts, ranks=1, hosts=hosts, ssh=ssh, connect_seconds=20.0, **terms)


def verdicts(*words: str) -> str:
    """Return a preflight.json of hosts with one rank each, all of which have this machine's name."""
    nodes = [
        {"host": socket.gethostname(), "ranks": [rank], "verdict": word, "reason": "GPU 0 multiplies wrongly"}
        for rank, word in enumerate(words)
    ]
    return json.dumps({"nodes": nodes})


@pytest.mark.parametrize("min_hosts", [None, 2])
def test_a_node_that_fails_its_preflight_is_left_out_while_enough_are_left(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], min_hosts: int | None
) -> None:
    both: dict[str, dict[str, Any]] = {
        "0": {
            "writes": {"preflight.json": verdicts("good", "bad")},
            "exit": 77,
            "when": ["process-0-1"],
        },
        "1": {"exit": 77, "when": ["process-0-0"]},
    }

    code = over_ssh(cluster, tmp_path, [both, {}], A, B, min_hosts=min_hosts)

    reported = capsys.readouterr().err
    excluded, last = log_file(tmp_path)
    assert (excluded["event"], excluded["host"]) == ("excluded", "b")
    assert "b: left out from now on (GPU 0 multiplies wrongly)" in reported
    if min_hosts is None:
        assert (code, last["event"], last["without_progress"]) == (0, "restart", 0)
        assert "1 host, 1 rank" in reported
    else:
        assert (code, last["event"]) == (77, "gave_up")
        assert last["reason"] == "1 host left, 2 needed."


def test_the_rank_that_says_so_names_a_bad_host_and_another_becomes_the_master(
    cluster: Cluster, tmp_path: Path
) -> None:
    bad_master = {"0": {"exit": 77}, "1": {"after": 60}}

    assert over_ssh(cluster, tmp_path, [bad_master, {}], A, B) == 0

    excluded, restart = log_file(tmp_path)
    assert (excluded["host"], restart["codes"]["0"]) == ("a", 77)


def test_the_host_that_a_preflights_line_names_is_left_out_and_not_the_one_that_said_so(
    cluster: Cluster, tmp_path: Path
) -> None:
    said = "error: bad node b: b rank 1: product: 1 element is wrong. Restart without it."
    no_verdict_file = {"0": {"exit": 77, "says": said}, "1": {"after": 60}}

    assert over_ssh(cluster, tmp_path, [no_verdict_file, {}], A, B) == 0

    excluded, restart = log_file(tmp_path)
    assert (excluded["host"], restart["codes"]["0"]) == ("b", 77)
    assert excluded["reason"] == said.removeprefix("error: ")


def test_where_every_rank_calls_its_node_bad_the_launch_stops_and_asks(
    cluster: Cluster, tmp_path: Path
) -> None:
    # A rank that fails before the other host's have started leaves them no word.
    both = {"exit": 77, "when": ["process-0-0", "process-0-1"]}

    assert over_ssh(cluster, tmp_path, [{"0": both, "1": both}], A, B) == 77

    (line,) = log_file(tmp_path)
    assert (line["event"], line["reason"]) == ("gave_up", "a node is bad and nothing says which.")


def test_a_host_that_no_longer_answers_is_left_out_with_one_line(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "ssh_config"
    config.write_text((cluster.folder / "ssh_config").read_text())
    gone = f"Host b\n  HostName 127.0.0.1\n  Port {free_port()}\n" + config.read_text()
    moving = Cluster(ssh=f"ssh -F {config}", folder=cluster.folder)
    goes: dict[str, dict[str, Any]] = {
        "0": {"step": 4, "after": 600},
        "1": {"writes": {str(config): gone}, "exit": 1, "when": ["process-0-0"]},
    }

    assert over_ssh(moving, tmp_path, [goes, {"0": {"step": 5}}], A, B) == 0

    restart, excluded = log_file(tmp_path)
    assert (restart["host"], restart["step_after"]) == ("b", 4)
    assert excluded["host"] == "b"
    assert "Connection refused" in excluded["reason"]
    lines = [line for line in capsys.readouterr().err.splitlines() if "left out" in line]
    assert len(lines) == 1
    assert lines[0].startswith("b: left out from now on (")


def test_at_the_start_a_host_may_be_missing_only_if_that_was_said(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = Host(name="closed")
    with with_hosts_that_fail(cluster) as wider:
        with pytest.raises(VidcurateError, match=r"Connection refused.*1 of 2 hosts; nothing was started"):
            over_ssh(wider, tmp_path, [{}], A, closed)
        assert not log_file(tmp_path)

        assert over_ssh(wider, tmp_path, [{}], A, closed, min_hosts=1) == 0

    (line,) = log_file(tmp_path)
    assert (line["event"], line["host"]) == ("excluded", "closed")


def test_a_number_of_ranks_that_the_recipe_cannot_take_ends_the_launch(
    cluster: Cluster, tmp_path: Path
) -> None:
    def fits(ranks: int) -> str:
        return "" if ranks == 2 else f"parallel.sharding 2 does not divide {counted(ranks, 'rank')}."

    bad = {"0": {"after": 60}, "1": {"exit": 77}}

    assert over_ssh(cluster, tmp_path, [bad], A, B, fits=fits) == 77

    assert log_file(tmp_path)[-1]["reason"].startswith("parallel.sharding 2 does not divide 1 rank.")
