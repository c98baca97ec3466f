"""Start of the ranks on all hosts, until they exit: one attempt of a launch.

The first failing rank ends all others. The first signal goes to every rank once, which saves and exits; the
second signal kills the ranks. Every wait has a timeout.
"""

import queue
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from trainer.cli import exit_codes
from trainer.cluster.launch.connection import Connection, Messages, say, send
from vidcurate.errors import VidcurateError, counted

LAST_WORDS_SECONDS = 3.0  # for the other ranks to exit on their own after a failure
SETTLE_SECONDS = 10.0  # for ranks to exit after a signal
LATE_SECONDS = 10.0  # for the message about an exit
ENDED = (-signal.SIGTERM, -signal.SIGKILL)
SAY_MORE = (exit_codes.HALT, exit_codes.BAD_NODE, exit_codes.WRONG_REQUEST)
LEAVES = (-signal.SIGTERM, -signal.SIGUSR1)
# Variables of the launcher's environment for its ranks; sent over the connection, not in a command line.
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


@dataclass(slots=True, kw_only=True)
class Ended:
    """Outcome of an attempt. `codes` maps a rank to its exit code, negative for a signal.

    `failure` is the line about the first failure, "" without one, or about a rank that then exited with a
    code that says more (78, 77, 2); `rank` is that rank, None for a host or a stall; `last_lines` are its
    last stderr lines. `last_words` are those of each rank that exited with 77. `lost` maps hosts whose
    connection broke to ssh's last message. `held` are the errors of ranks that may be their last lines, as
    (host, line); `said` are the errors on the console so far, each once.
    """

    ranks_of: dict[str, range]
    names: dict[str, str]  # host in the hostfile → its own host name
    codes: dict[int, int] = field(default_factory=dict)
    failure: str = ""
    rank: int | None = None
    last_lines: list[str] = field(default_factory=list)
    last_words: dict[int, list[str]] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    killed_by_signal: bool = False
    held: dict[int, tuple[str, str]] = field(default_factory=dict)
    said: set[str] = field(default_factory=set)

    @property
    def code(self) -> int:
        """The code to act on. A rank that was ended because of another's failure has no code."""
        own = [code for rank, code in self.codes.items() if rank == self.rank or code not in ENDED]
        return exit_codes.most_severe(own or [exit_codes.FAILED if self.failure else exit_codes.DONE])

    def host_of(self, rank: int) -> str:
        return next(host for host, ranks in self.ranks_of.items() if rank in ranks)


@contextmanager
def signals() -> Iterator[list[signal.Signals]]:
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


def jobs(
    connections: Sequence[Connection],
    command: Sequence[str],
    *,
    per_host: int | None,
    address: str,
    grace_seconds: float,
    environment: Mapping[str, str],
    restarts: int,
) -> list[dict[str, Any]]:
    """Return the job of each host's agent."""
    port = environment.get("MASTER_PORT", str(connections[0].ready["port"]))
    passed_on = {name: value for name, value in environment.items() if name.startswith(PASSED_ON)}
    return [
        {
            "command": list(command),
            "environment": passed_on | {"PYTHONUNBUFFERED": "1"},
            "ranks": connection.host.slots or per_host or connection.ready["gpus"] or 1,
            "host": number,
            "hosts": len(connections),
            "address": address,
            "port": int(port),
            "run_id": f"launch-{restarts}",
            "restarts": restarts,
            "grace_seconds": grace_seconds,
        }
        for number, connection in enumerate(connections)
    ]


def start_on_hosts(
    connections: Sequence[Connection],
    given: Sequence[Mapping[str, Any]],
    messages: Messages,
    asked: Sequence[signal.Signals],
    grace_seconds: float,
    stalled: Callable[[], str],
) -> Ended:
    """Start the jobs and pass on the ranks' output until all have exited.

    `asked` are the signals received so far, and may grow; `stalled` returns why the ranks must be ended, ""
    if they need not. Raises VidcurateError if a host does not end.
    """
    names = {connection.host.name: connection.ready["ready"] for connection in connections}
    ended = Ended(ranks_of={}, names=names)
    first = 0
    for connection, job in zip(connections, given, strict=True):
        send(connection, job)
        ended.ranks_of[connection.host.name] = range(first, first + job["ranks"])
        first += job["ranks"]
    reported = 0  # number of signals passed on
    end: float | None = None
    is_strict = False

    def stop_all(seconds: float, after: float = 0.0) -> float:
        for connection in connections:
            send(connection, {"kill": seconds, "after": after})
        return time.monotonic() + after + seconds + LATE_SECONDS

    while not all(connection.is_over for connection in connections):
        if end is not None and time.monotonic() > end and not is_strict:
            is_strict = True
            ended.failure = ended.failure or f"not all ranks had left {grace_seconds:g} s after the signal."
            say("ranks that are still there are killed")
            end = stop_all(0.0)
        elif end is not None and time.monotonic() > end:
            late = ", ".join(connection.host.name for connection in connections if not connection.is_over)
            raise VidcurateError(f"{late}: does not end. Check that host for remaining processes.")
        while reported < len(asked):
            number = asked[reported]
            reported += 1
            if reported == 1:
                # The ranks handle TERM and USR1; Ctrl-C has the same meaning for a whole job: save and exit.
                name = "SIGUSR1" if number == signal.SIGUSR1 else "SIGTERM"
                say(f"{number.name}: every rank saves and leaves; once more kills them")
                for connection in connections:
                    send(connection, {"signal": name})
                end = time.monotonic() + grace_seconds
            else:
                ended.killed_by_signal, end = True, stop_all(0.0)
        if end is None and (reason := stalled()):
            ended.failure, end = reason, stop_all(SETTLE_SECONDS)
            say(f"error: {reason} All ranks are being ended.")
        try:
            connection, message = messages.get(timeout=0.1)
        except queue.Empty:
            continue
        failure, is_over = _hear(connection, message, ended, is_reported=bool(reported))
        connection.is_over = connection.is_over or is_over
        if failure and not ended.failure and not ended.killed_by_signal:
            ended.failure, end = failure, stop_all(SETTLE_SECONDS, LAST_WORDS_SECONDS)
            if message is not None:
                ended.rank, ended.last_lines = message["rank"], message["last"]
            say(f"error: {failure} All ranks are being stopped.")
            _drop_held(message, ended)
        elif failure and message is not None and _says_more(message["exit"], ended):
            ended.failure, ended.rank, ended.last_lines = failure, message["rank"], message["last"]
            say(f"error: {failure}")
            _drop_held(message, ended)
        elif message is not None and "exit" in message:
            _say_held(message["rank"], ended)
    for rank in list(ended.held):
        _say_held(rank, ended)
    return ended


def _drop_held(message: dict[str, Any] | None, ended: Ended) -> None:
    """Leave out a rank's last error, which the line about its end has just repeated."""
    if message is not None and message["rank"] in ended.held:
        ended.said.add(ended.held.pop(message["rank"])[1])


def _say_held(rank: int, ended: Ended) -> None:
    """Write a rank's held error, unless another rank's was the same."""
    host, text = ended.held.pop(rank, ("", ""))
    if text and text not in ended.said:
        ended.said.add(text)
        say(text if rank == 0 else f"{host} rank {rank}: {text}")


def _hear(
    connection: Connection, message: dict[str, Any] | None, ended: Ended, *, is_reported: bool
) -> tuple[str, bool]:
    """Handle one message; return the failure it reports ("" for none) and whether its host has ended."""
    host = connection.host.name
    ranks = ended.ranks_of[host]
    if message is None:
        if connection.is_over:
            return "", True
        ended.lost[host] = connection.last_words or "without a word"
        return f"{host}: the connection ended ({ended.lost[host]}).", True
    if "exit" in message:
        code, rank = message["exit"], message["rank"]
        # A rank that is asked to exit while it starts cannot save yet.
        ended.codes[rank] = exit_codes.REQUEUE if is_reported and code in LEAVES else code
        if code == exit_codes.BAD_NODE:
            ended.last_words[rank] = message["last"]
        is_failure = ended.codes[rank] not in (exit_codes.DONE, exit_codes.REQUEUE)
        return _ended(host, message) if is_failure else "", all(r in ended.codes for r in ranks)
    if "done" in message:  # asked to exit before its ranks had started
        ended.codes |= {rank: exit_codes.REQUEUE for rank in ranks if rank not in ended.codes}
        return "", True
    if "out" in message:
        print(message["out"], flush=True)
    elif "err" in message:
        rank, text = message["rank"], message["err"]
        _say_held(rank, ended)
        if text.startswith("error: "):
            ended.held[rank] = host, text  # often its last line, which the line about its end repeats
        else:
            say(text if rank == 0 else f"{host} rank {rank}: {text}")
    return "", False


def _says_more(code: int, ended: Ended) -> bool:
    """Return whether a rank's code takes precedence over the failure reported before."""
    reported = exit_codes.FAILED if ended.rank is None else ended.codes[ended.rank]
    return code in SAY_MORE and exit_codes.most_severe([reported, code]) != reported


def how(code: int) -> str:
    """Return an exit code as text: ended with 1, was killed by SIGKILL."""
    return f"ended with {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"


def _ended(host: str, message: Mapping[str, Any]) -> str:
    last = next((text for text in reversed(message["last"]) if text.strip()), "")
    return f"{host} rank {message['rank']} {how(message['exit'])}{': ' + last if last else '.'}"


def summary(connections: Sequence[Connection], given: Sequence[Mapping[str, Any]]) -> str:
    hosts, ranks = counted(len(connections), "host"), counted(sum(job["ranks"] for job in given), "rank")
    return f"{hosts}, {ranks}, master {given[0]['address']}:{given[0]['port']}"


def plain(ended: Ended) -> dict[str, Any]:
    """Return the facts of a failed attempt for the events."""
    facts = {
        "reason": ended.failure,
        "codes": {str(rank): code for rank, code in sorted(ended.codes.items())},
        "rank": ended.rank,
        "host": None if ended.rank is None else ended.host_of(ended.rank),
        "last_lines": ended.last_lines,
    }
    return facts | ({"lost": ended.lost} if ended.lost else {})
