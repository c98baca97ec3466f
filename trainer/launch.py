"""`python -m trainer RECIPE --hostfile nodes.txt`: the ranks on several hosts, over ssh.

    # nodes.txt: one host a line, the first is the master; slots are the ranks of a host
    node1 slots=8
    node2 slots=8

The hosts see the same files under the same paths, as torchrun asks too. ssh is the user's own, with its
configuration, and never asks for anything. Nothing starts before every host has answered; a host that does
not is one line. The first rank that fails ends all and is named. A signal goes to every rank, which saves and
leaves; a second one kills. Nothing waits without a limit.
"""

import json
import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer import exit_codes
from vidcurate.errors import InputError, VidcurateError

SETTLE_SECONDS = 10.0  # for the other ranks, when one has failed
LEAVES = (-signal.SIGTERM, -signal.SIGUSR1)
# Of the launcher's environment, what its ranks get; it travels inside the connection, not in a command line.
PASSED_ON = (
    "NCCL_",
    "TORCH",
    "GLOO_",
    "UCX_",
    "FI_",
    "CUDA_",
    "OMP_",
    "MKL_",
    "PYTHON",
    "HF_",
    "WANDB_",
    "TMPDIR",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A line of the hostfile. `slots` None: one rank a GPU, or one."""

    name: str
    slots: int | None = None


@dataclass(slots=True, kw_only=True)
class _Line:
    """The connection to one host."""

    host: Host
    process: "subprocess.Popen[str]"
    ready: dict[str, Any] = field(default_factory=dict)
    is_done: bool = False
    error: str = ""  # ssh's last word


def read_hosts(path: Path) -> tuple[Host, ...]:
    """Return the hosts of a hostfile, in its order. Raises InputError, naming the line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--hostfile {path}: cannot be read ({error}).") from error
    hosts: list[Host] = []
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        slots = words[1].removeprefix("slots=") if len(words) == 2 and words[1].startswith("slots=") else ""
        if words[0].startswith("-") or len(words) > 2 or (len(words) == 2 and not slots.isdecimal()):
            raise InputError(f"{path}:{number}: {line.strip()!r}; write a host, or a host and slots=8.")
        if words[0] in (host.name for host in hosts):
            raise InputError(f"{path}:{number}: {words[0]} is there twice; write its ranks as slots=…")
        if slots and not int(slots):
            raise InputError(f"{path}:{number}: {words[0]} has no slots; leave the line out.")
        hosts.append(Host(name=words[0], slots=int(slots) if slots else None))
    if not hosts:
        raise InputError(f"--hostfile {path}: names no host.")
    return tuple(hosts)


def launch(
    hosts: Sequence[Host],
    words: Sequence[str],
    *,
    per_host: int | None = None,
    ssh: str = "ssh",
    connect_seconds: float = 30.0,
    grace_seconds: float = 600.0,
    environment: Mapping[str, str] = os.environ,
) -> int:
    """Run `python -m trainer` with `words` on every host and return the exit code of the whole.

    0: every rank is done; 75: all left after a signal, 128 + its number: all were killed after a second one;
    else the code of the rank that failed first (1 for one that was killed). `per_host` ranks a host, where
    its line has no slots. Raises VidcurateError when a host does not answer, before anything has started.
    """
    messages: queue.Queue[tuple[_Line, dict[str, Any] | None]] = queue.Queue()
    ssh_words = shlex.split(ssh)
    with _signals() as asked:
        lines = [_connect(host, ssh_words, connect_seconds, messages) for host in hosts]
        try:
            _wait_for_all(lines, messages, connect_seconds, asked)
            jobs = _jobs(lines, words, per_host, _address(hosts[0], ssh_words, environment), environment)
            for line, job in zip(lines, jobs, strict=True):
                _tell(line, job | {"grace_seconds": grace_seconds})
            return _watch(lines, messages, asked, grace_seconds)
        finally:
            for line in lines:
                _hang_up(line)


@contextmanager
def _signals() -> Iterator[list[signal.Signals]]:
    """Collect SIGINT, SIGTERM and SIGUSR1 instead of dying of them."""
    came: list[signal.Signals] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    before = {
        number: signal.signal(number, lambda n, _: came.append(signal.Signals(n))) for number in numbers
    }
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ── connections ─────────────────────────────────────────────────────────────────────────────────────────────


def _connect(
    host: Host,
    ssh: Sequence[str],
    seconds: float,
    messages: "queue.Queue[tuple[_Line, dict[str, Any] | None]]",
) -> _Line:
    options = ["-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={max(1, int(seconds))}"]
    options += ["-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4"]
    remote = f"cd {shlex.quote(os.getcwd())} && exec {shlex.quote(sys.executable)} -u -m trainer.agent"
    try:
        process = subprocess.Popen(
            [*ssh, *options, "--", host.name, remote],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is told to the ranks, not to ssh
        )
    except OSError as error:
        raise InputError(f"--ssh {shlex.join(ssh)}: cannot be run ({error.strerror}).") from error
    line = _Line(host=host, process=process)
    errors = threading.Thread(target=_read_errors, args=(line,), daemon=True)
    errors.start()
    threading.Thread(target=_read_messages, args=(line, messages, errors), daemon=True).start()
    return line


def _read_messages(
    line: _Line, messages: "queue.Queue[tuple[_Line, dict[str, Any] | None]]", errors: threading.Thread
) -> None:
    assert line.process.stdout is not None
    for text in line.process.stdout:
        try:
            message = json.loads(text)
        except ValueError:
            message = None
        # A login script may print; what is no message of the agent is only told.
        if isinstance(message, dict):
            messages.put((line, message))
        else:
            _print(f"{line.host.name}: {text.rstrip()}")
    errors.join(1.0)  # ssh's last word belongs to its end
    messages.put((line, None))


def _read_errors(line: _Line) -> None:
    assert line.process.stderr is not None
    for text in line.process.stderr:
        line.error = text.strip() or line.error
        if line.ready:
            _print(f"{line.host.name}: {text.rstrip()}")


def _tell(line: _Line, message: Mapping[str, Any]) -> None:
    assert line.process.stdin is not None
    with suppress(OSError):  # a connection that is gone is told by its reader
        line.process.stdin.write(json.dumps(message) + "\n")
        line.process.stdin.flush()


def _hang_up(line: _Line) -> None:
    """Close the connection; the agent then ends what still runs. ssh itself is never waited for long."""
    assert line.process.stdin is not None
    with suppress(OSError):
        line.process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        line.process.wait(1.0)
    line.process.kill()
    line.process.wait()


def _wait_for_all(
    lines: Sequence[_Line],
    messages: "queue.Queue[tuple[_Line, dict[str, Any] | None]]",
    seconds: float,
    asked: Sequence[signal.Signals],
) -> None:
    """Return when every host has answered. Raises VidcurateError with a line for each that did not."""
    until = time.monotonic() + seconds
    gone: dict[str, str] = {}
    while len(gone) + sum(bool(line.ready) for line in lines) < len(lines) and time.monotonic() < until:
        if asked:
            raise VidcurateError(f"{asked[0].name} came before the hosts had answered; nothing was started.")
        with suppress(queue.Empty):
            line, message = messages.get(timeout=0.1)
            if message is None:
                line.process.wait(5.0)
                gone[line.host.name] = (
                    f"{line.error or 'said nothing'} (ssh ended with {line.process.returncode})"
                )
            elif "ready" in message:
                line.ready = message
    failed = [
        f"{line.host.name}: {gone.get(line.host.name, f'did not answer within {seconds:g} s')}"
        for line in lines
        if not line.ready
    ]
    if failed:
        for text in failed[:-1]:
            _print(f"error: {text}")
        raise VidcurateError(f"{failed[-1]}. {len(failed)} of {len(lines)} hosts; nothing was started.")


def _address(host: Host, ssh: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the master's address: MASTER_ADDR, or what ssh's configuration makes of its name."""
    if "MASTER_ADDR" in environment:
        return environment["MASTER_ADDR"]
    told = subprocess.run(
        [*ssh, "-G", "--", host.name], capture_output=True, text=True, timeout=10, check=False
    )
    found = [line.partition(" ")[2] for line in told.stdout.splitlines() if line.startswith("hostname ")]
    return found[0] if found else host.name.rpartition("@")[2]


def _jobs(
    lines: Sequence[_Line],
    words: Sequence[str],
    per_host: int | None,
    address: str,
    environment: Mapping[str, str],
) -> list[dict[str, Any]]:
    counts = [line.host.slots or per_host or line.ready["gpus"] or 1 for line in lines]
    port = environment.get("MASTER_PORT", str(lines[0].ready["port"]))
    first, jobs = 0, []
    for count in counts:
        common = {"WORLD_SIZE": str(sum(counts)), "LOCAL_WORLD_SIZE": str(count)}
        common |= {"MASTER_ADDR": address, "MASTER_PORT": port}
        ranks = [common | {"RANK": str(first + local), "LOCAL_RANK": str(local)} for local in range(count)]
        first += count
        jobs.append(
            {
                "command": [sys.executable, "-u", "-m", "trainer", *words],
                "environment": {
                    name: value for name, value in environment.items() if name.startswith(PASSED_ON)
                },
                "ranks": ranks,
            }
        )
    _print(f"{len(lines)} hosts, {sum(counts)} ranks, master {address}:{port}")
    return jobs


# ── while it runs ───────────────────────────────────────────────────────────────────────────────────────────


def _watch(
    lines: Sequence[_Line],
    messages: "queue.Queue[tuple[_Line, dict[str, Any] | None]]",
    asked: list[signal.Signals],
    grace_seconds: float,
) -> int:
    """Pass on what the ranks print until all have ended; return the exit code of the whole."""
    failure = 0
    codes: list[int] = []
    told = 0  # signals passed on
    end: float | None = None

    def stop_all(seconds: float) -> float:
        for line in lines:
            _tell(line, {"kill": seconds})
        return time.monotonic() + seconds + SETTLE_SECONDS

    while not all(line.is_done for line in lines):
        if end is not None and time.monotonic() > end:
            late = ", ".join(line.host.name for line in lines if not line.is_done)
            raise VidcurateError(f"{late}: does not end; look there for processes that are left.")
        while told < len(asked):
            number = asked[told]
            told += 1
            if told == 1:
                # The ranks know TERM and USR1; Ctrl-C means the same to a whole job: save and leave.
                name = "SIGUSR1" if number == signal.SIGUSR1 else "SIGTERM"
                _print(f"{number.name}: every rank saves and leaves; once more kills them")
                for line in lines:
                    _tell(line, {"signal": name})
                end = time.monotonic() + grace_seconds + SETTLE_SECONDS
            else:
                end = stop_all(0.0)
        try:
            line, message = messages.get(timeout=0.1)
        except queue.Empty:
            continue
        if message is None:
            if not line.is_done:
                line.is_done = True
                _print(f"error: {line.host.name}: the connection ended ({line.error or 'ssh said nothing'}).")
                failure, end = failure or 1, end if failure else stop_all(SETTLE_SECONDS)
        elif "exit" in message:
            # Before it can save, while it starts, a rank that is asked to leave just goes.
            code = exit_codes.REQUEUE if told and message["exit"] in LEAVES else message["exit"]
            codes.append(code)
            if code not in (0, exit_codes.REQUEUE) and not failure and told < 2:
                failure, end = code if code > 0 else 1, stop_all(SETTLE_SECONDS)
                _print(f"error: {_ended(line, message)} All ranks are being stopped.")
        elif "done" in message:
            line.is_done = True
        elif "out" in message:
            print(message["out"], flush=True)
        elif "err" in message:
            is_first = message["rank"] == 0
            _print(
                message["err"] if is_first else f"{line.host.name} rank {message['rank']}: {message['err']}"
            )
    if told > 1:
        return 128 + asked[0]
    return failure or (exit_codes.REQUEUE if exit_codes.REQUEUE in codes else 0)


def _ended(line: _Line, message: Mapping[str, Any]) -> str:
    code = message["exit"]
    how = f"ended with {code}" if code > 0 else f"was killed by {signal.Signals(-code).name}"
    last = next((text for text in reversed(message["last"]) if text.strip()), "")
    return f"{line.host.name} rank {message['rank']} {how}{': ' + last if last else '.'}"


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
