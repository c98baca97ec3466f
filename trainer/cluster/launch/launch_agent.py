"""Launch agent of one host: start the host's ranks, report on them, and end them.

`trainer.cluster.launch.command` runs the agent on every host, over ssh or as a child process, and exchanges
lines of JSON with it. When the connection closes, for any reason, the agent asks the ranks to save and exit,
and kills those that do not. torchrun's elastic agent starts and watches the ranks (elastic.py).

agent sends {ready, gpus, port}; {rank, out} or {rank, err} per line of a rank; {rank, exit, last}; {done}

agent receives the job, once; {signal: NAME} for every rank; {kill: s, after: s}: SIGTERM, then SIGKILL
"""

import json
import os
import random
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer.cli import commands

LOCAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")  # the range of outgoing connections
LEAST_PORT = 20_000

_lock = threading.Lock()


def say(message: dict[str, Any]) -> None:
    with _lock, suppress(OSError):  # nobody reads any more: the ranks are being stopped because of that
        os.write(1, (json.dumps(message) + "\n").encode())


def free_port() -> int:
    """Return a free port that the kernel assigns to no connection before a rank listens on it.

    Starting a rank takes seconds; by then any program of this host could have taken a port of the range for
    outgoing connections (EADDRINUSE).
    """
    try:
        first = int(LOCAL_PORTS.read_text(encoding="utf-8").split()[0])
    except (OSError, ValueError, IndexError):
        first = 0
    chance = random.SystemRandom()
    tried = [chance.randrange(LEAST_PORT, first) for _ in range(100 * (first > LEAST_PORT))]
    for port in [*tried, 0]:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return int(probe.getsockname()[1])
    raise OSError("no port is free")


def _read_job() -> dict[str, Any]:
    """Return the job, one line: what `trainer.cluster.launch.start_on_hosts.jobs` makes of a launch."""
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 1)
        if not part:
            sys.exit(0)  # the launcher gave up before the job
        line += part
    job: dict[str, Any] = json.loads(line)
    return job


def main() -> None:
    # The launcher decides what to do. Not SIG_IGN: the ranks would inherit it.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    say({"ready": socket.gethostname(), "gpus": gpus, "port": free_port()})
    with commands.loading():
        from trainer.cluster.launch import elastic  # imports torch; the host has answered before

    job = _read_job()
    ranks = elastic.HostRanks(job, say)
    threading.Thread(target=_listen, args=(ranks, job["grace_seconds"]), daemon=True).start()
    ranks.run()
    say({"done": True})
    os._exit(0)  # torch needs no cleanup here


def _listen(ranks: Any, grace_seconds: float) -> None:
    """Follow the launcher's commands; let the ranks save and exit when the connection closes."""
    waiting = b""
    while data := os.read(0, 1 << 16):
        *lines, waiting = (waiting + data).split(b"\n")
        for message in map(json.loads, lines):
            if "signal" in message:
                ranks.send(signal.Signals[message["signal"]])
            else:
                threading.Thread(
                    target=ranks.end, args=(message["kill"], message["after"]), daemon=True
                ).start()
    ranks.end(grace_seconds)
    os._exit(0)  # the elastic agent may be waiting for other hosts


if __name__ == "__main__":
    main()
