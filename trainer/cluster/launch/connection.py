"""Connection to a host's launch agent: lines of JSON over ssh or a pipe.

The messages of all hosts arrive in one queue as (connection, message); None is the last. Other output (of a
login script) is only printed. ssh is the user's own, with its configuration, and never prompts.
"""

import json
import os
import queue
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from trainer.cli import commands
from trainer.cluster.hostfile import Host
from trainer.health import timed_command
from vidcurate.errors import InputError

HERE = Host(name="this host")

AGENT = [sys.executable, "-u", *commands.SAFE_PATH, "-m", "trainer.cluster.launch.launch_agent"]


@dataclass(slots=True, kw_only=True, eq=False)
class Connection:
    """`ready` is the agent's first message: {ready: its host's name, gpus, port}; empty before."""

    host: Host
    process: "subprocess.Popen[str]"
    ready: dict[str, Any] = field(default_factory=dict)
    is_over: bool = False
    last_words: str = ""  # of ssh, or of the agent


Messages = queue.Queue[tuple[Connection, dict[str, Any] | None]]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def connect(host: Host, ssh: Sequence[str], seconds: float, messages: Messages) -> Connection:
    """Start the agent of a host (HERE: on this one) and return the connection at once.

    Raises InputError if `ssh` cannot be run.
    """
    command = AGENT
    if host is not HERE:
        options = ["-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={max(1, int(seconds))}"]
        options += ["-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4"]
        remote = f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(AGENT)}"
        command = [*ssh, *options, "--", host.name, remote]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C goes to the ranks, not to ssh
        )
    except OSError as error:
        raise InputError(f"--ssh {shlex.join(ssh)}: cannot be run ({error.strerror}).") from error
    connection = Connection(host=host, process=process)
    errors = threading.Thread(target=_read_errors, args=(connection,), daemon=True)
    errors.start()
    threading.Thread(target=_read_messages, args=(connection, messages, errors), daemon=True).start()
    return connection


def _read_messages(connection: Connection, messages: Messages, errors: threading.Thread) -> None:
    assert connection.process.stdout is not None
    with connection.process.stdout as out:
        for text in out:
            try:
                message = json.loads(text)
            except ValueError:
                message = None
            if isinstance(message, dict):
                messages.put((connection, message))
            else:
                say(f"{connection.host.name}: {text.rstrip()}")
    errors.join(1.0)  # the last line belongs to the end
    messages.put((connection, None))


def _read_errors(connection: Connection) -> None:
    assert connection.process.stderr is not None
    with connection.process.stderr as errors:
        for text in errors:
            connection.last_words = text.strip() or connection.last_words
            if connection.ready:
                say(f"{connection.host.name}: {text.rstrip()}")


def send(connection: Connection, message: Mapping[str, Any]) -> None:
    assert connection.process.stdin is not None
    with suppress(OSError):  # the reader reports a lost connection
        connection.process.stdin.write(json.dumps(message) + "\n")
        connection.process.stdin.flush()


def hang_up(connections: Sequence[Connection]) -> None:
    """Close the connections; an agent then ends what still runs. Waits at most 5 seconds."""
    for connection in connections:
        assert connection.process.stdin is not None
        with suppress(OSError):
            connection.process.stdin.close()
    until = time.monotonic() + 5.0
    for connection in connections:
        if connection.ready:
            with suppress(subprocess.TimeoutExpired):
                connection.process.wait(max(0.0, until - time.monotonic()))
            if connection.host is HERE:  # the agent itself, not ssh: it exits when its ranks have
                if connection.process.poll() is None:
                    timed_command.wait_beside(connection.process)
                continue
        timed_command.kill(connection.process)


def answers(
    connections: Sequence[Connection], messages: Messages, seconds: float, asked: Sequence[object]
) -> dict[str, str]:
    """Wait until every host has answered, at most `seconds`; return {host: reason} of the others.

    Returns early, with the answers so far, when a signal is added to `asked`.
    """
    until = time.monotonic() + seconds
    gone: dict[str, str] = {}
    while not asked and time.monotonic() < until:
        if len(gone) + sum(bool(connection.ready) for connection in connections) == len(connections):
            break
        with suppress(queue.Empty):
            connection, message = messages.get(timeout=0.1)
            if message is None:
                with suppress(subprocess.TimeoutExpired):
                    connection.process.wait(1.0)
                code = connection.process.returncode
                how = "hung up" if code is None else f"ended with {code}"
                gone[connection.host.name] = f"{connection.last_words or 'said nothing'} ({how})"
            elif "ready" in message:
                connection.ready = message
    return {
        connection.host.name: gone.get(connection.host.name, f"did not answer within {seconds:g} s")
        for connection in connections
        if not connection.ready
    }
