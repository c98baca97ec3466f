"""Hosts whose ssh hangs, or hangs up without ending: each costs its limit and is one line."""

import queue
import socket
import time
from pathlib import Path

import pytest

from trainer.cluster import hostfile
from trainer.cluster.hostfile import Host
from trainer.cluster.launch import connection, launch_agent
from trainer.cluster.launch.connection import Messages

NODE = Host(name="me@node7")


def ssh(tmp_path: Path, script: str) -> tuple[str, ...]:
    """Return the command of an ssh that does what `script` says."""
    path = tmp_path / "ssh"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return (str(path),)


def test_an_ssh_that_does_not_tell_its_configuration_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `Match exec` of the user's configuration may hang; the launch ended with a traceback."""
    monkeypatch.setattr(hostfile, "SSH_SECONDS", 0.3)
    assert hostfile.address(NODE, ssh(tmp_path, "sleep 60"), {}) == "node7"
    assert hostfile.address(NODE, ssh(tmp_path, "sleep 60"), {"MASTER_ADDR": "n1"}) == "n1"
    monkeypatch.setattr(hostfile, "SSH_SECONDS", 60.0)
    assert hostfile.address(NODE, ssh(tmp_path, "echo hostname 10.0.0.7"), {}) == "10.0.0.7"


def test_the_port_where_ranks_meet_is_none_that_an_outgoing_connection_may_get() -> None:
    """A rank listens on it seconds later; any program's connection could have taken it by then."""
    first, last = map(int, launch_agent.LOCAL_PORTS.read_text().split())
    ports = [launch_agent.free_port() for _ in range(5)]
    assert not [port for port in ports if first <= port <= last]
    for port in set(ports):
        with socket.socket() as probe:
            probe.bind(("", port))


def test_an_ssh_that_closes_its_lines_and_stays_is_reported_of_and_ended(tmp_path: Path) -> None:
    messages: Messages = queue.Queue()
    command = ssh(tmp_path, "echo no route to it >&2; exec sleep 600 >&- 2>&-")
    made = connection.connect(NODE, command, 60.0, messages)
    began = time.monotonic()

    absent = connection.answers([made], messages, 60.0, [])
    connection.hang_up([made])

    assert absent == {"me@node7": "no route to it (hung up)"}
    assert made.process.returncode is not None
    assert time.monotonic() - began < 300
