"""One host's part of a launch over ssh: it starts this host's ranks, tells of them, and ends them.

`trainer.launch` runs it on every host and talks to it over the ssh connection, in lines of JSON. When that
connection goes, whatever the reason, the ranks are asked to save and leave, and killed when they do not.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

LAST_LINES = 20  # of a rank's console, for the one that failed


def _say(lock: threading.Lock, message: dict[str, Any]) -> None:
    with lock, suppress(OSError):  # nobody listens any more: the ranks are being stopped for that
        os.write(1, (json.dumps(message) + "\n").encode())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _ready() -> dict[str, Any]:
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    return {"ready": socket.gethostname(), "gpus": gpus, "port": _free_port()}


def _signal(processes: list["subprocess.Popen[str]"], number: signal.Signals, *, group: bool = False) -> None:
    for process in processes:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number) if group else process.send_signal(number)


def _kill_after(processes: list["subprocess.Popen[str]"], seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and any(process.poll() is None for process in processes):
        time.sleep(0.05)
    _signal(processes, signal.SIGKILL, group=True)


def _listen(processes: list["subprocess.Popen[str]"], grace_seconds: float) -> None:
    """Do what the launcher says: {"signal": NAME} or {"kill": seconds}; leave when it says nothing more."""
    waiting = b""
    while data := os.read(0, 1 << 16):
        *lines, waiting = (waiting + data).split(b"\n")
        for message in map(json.loads, lines):
            if "signal" in message:
                _signal(processes, signal.Signals[message["signal"]])
            else:
                _signal(processes, signal.SIGTERM)
                threading.Thread(target=_kill_after, args=(processes, message["kill"]), daemon=True).start()
    _signal(processes, signal.SIGTERM)
    _kill_after(processes, grace_seconds)


def _read_job() -> dict[str, Any]:
    """Return the job: {command, environment, ranks: [{…}, …], grace_seconds}, one line."""
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 1)
        if not part:
            sys.exit(0)  # the launcher gave up before it began
        line += part
    job: dict[str, Any] = json.loads(line)
    return job


def main() -> None:
    # The launcher says what is to be done. Not SIG_IGN: the ranks would inherit that.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)
    lock = threading.Lock()
    _say(lock, _ready())
    job = _read_job()
    processes: list[subprocess.Popen[str]] = []
    threads: list[threading.Thread] = []
    for rank in job["ranks"]:
        process = subprocess.Popen(
            job["command"],
            env=os.environ | job["environment"] | rank,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            restore_signals=True,
        )
        processes.append(process)
        threads.append(threading.Thread(target=_follow, args=(process, int(rank["RANK"]), lock)))
    threading.Thread(target=_listen, args=(processes, job["grace_seconds"]), daemon=True).start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _say(lock, {"done": True})


def _follow(process: "subprocess.Popen[str]", rank: int, lock: threading.Lock) -> None:
    """Pass on what a rank prints, and say how it ended."""
    last: deque[str] = deque(maxlen=LAST_LINES)

    def read(pipe: IO[str], kind: str) -> None:
        for line in pipe:
            if kind == "err":
                last.append(line.rstrip("\n"))
            _say(lock, {"rank": rank, kind: line.rstrip("\n")})

    assert process.stdout is not None
    assert process.stderr is not None
    readers = [
        threading.Thread(target=read, args=(pipe, kind), daemon=True)
        for pipe, kind in ((process.stdout, "out"), (process.stderr, "err"))
    ]
    for reader in readers:
        reader.start()
    code = process.wait()
    for reader in readers:
        reader.join(2.0)  # a grandchild may hold the pipe open
    _say(lock, {"rank": rank, "exit": code, "last": list(last)})


if __name__ == "__main__":
    main()
