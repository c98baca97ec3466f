"""One attempt of a launch: ranks start on hosts that have answered, and all have ended when it returns.

The first rank that fails ends all. The first signal goes to every rank once, which saves and leaves; the
second one kills. Nothing waits without a limit.
"""

import queue
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from trainer.cli import exit_codes
from trainer.cluster.launch.connection import Connection, Messages, say, tell
from vidcurate.errors import VidcurateError

LAST_WORDS_SECONDS = 3.0  # for the other ranks to end by themselves, when one has failed
SETTLE_SECONDS = 10.0  # for them to leave when they are told to
LATE_SECONDS = 10.0  # for the news of an end
ENDED = (-signal.SIGTERM, -signal.SIGKILL)
SAY_MORE = (exit_codes.HALT, exit_codes.BAD_NODE, exit_codes.WRONG_REQUEST)
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


@dataclass(slots=True, kw_only=True)
class Ended:
    """How an attempt ended. `codes` maps a rank to its exit code, negative for a signal.

    `failure` is the line about what failed first, "" when nothing did, or about a rank that then ended with a
    code that says more (78, 77, 2); `rank` is that rank, None for a host or a stall; `last_lines` are its
    last words on stderr. `last_words` are those of each rank that ended with 77. `lost` maps hosts whose
    connection broke to ssh's last word.
    """

    ranks_of: dict[str, range]
    names: dict[str, str]  # host of the hostfile → what it calls itself
    codes: dict[int, int] = field(default_factory=dict)
    failure: str = ""
    rank: int | None = None
    last_lines: list[str] = field(default_factory=list)
    last_words: dict[int, list[str]] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    killed_by_signal: bool = False

    @property
    def code(self) -> int:
        """The code to act on. A rank that was ended because another had failed has none of its own."""
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
    """Return what each host's agent is told to do."""
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


def attempt(
    connections: Sequence[Connection],
    given: Sequence[Mapping[str, Any]],
    messages: Messages,
    asked: Sequence[signal.Signals],
    grace_seconds: float,
    stalled: Callable[[], str],
) -> Ended:
    """Start the jobs and pass on what the ranks print until all have ended.

    `asked` are the signals that have come, and may grow; `stalled` says why the ranks have to be ended, ""
    as long as they need not. Raises VidcurateError when a host does not end.
    """
    names = {connection.host.name: connection.ready["ready"] for connection in connections}
    ended = Ended(ranks_of={}, names=names)
    first = 0
    for connection, job in zip(connections, given, strict=True):
        tell(connection, job)
        ended.ranks_of[connection.host.name] = range(first, first + job["ranks"])
        first += job["ranks"]
    reported = 0  # signals passed on
    end: float | None = None
    is_strict = False

    def stop_all(seconds: float, after: float = 0.0) -> float:
        for connection in connections:
            tell(connection, {"kill": seconds, "after": after})
        return time.monotonic() + after + seconds + LATE_SECONDS

    while not all(connection.is_over for connection in connections):
        if end is not None and time.monotonic() > end and not is_strict:
            is_strict = True
            ended.failure = ended.failure or f"not all ranks had left {grace_seconds:g} s after the signal."
            say("ranks that are still there are killed")
            end = stop_all(0.0)
        elif end is not None and time.monotonic() > end:
            late = ", ".join(connection.host.name for connection in connections if not connection.is_over)
            raise VidcurateError(f"{late}: does not end; look there for processes that are left.")
        while reported < len(asked):
            number = asked[reported]
            reported += 1
            if reported == 1:
                # The ranks know TERM and USR1; Ctrl-C means the same to a whole job: save and leave.
                name = "SIGUSR1" if number == signal.SIGUSR1 else "SIGTERM"
                say(f"{number.name}: every rank saves and leaves; once more kills them")
                for connection in connections:
                    tell(connection, {"signal": name})
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
        elif failure and message is not None and _says_more(message["exit"], ended):
            ended.failure, ended.rank, ended.last_lines = failure, message["rank"], message["last"]
            say(f"error: {failure}")
    return ended


def _hear(
    connection: Connection, message: dict[str, Any] | None, ended: Ended, *, is_reported: bool
) -> tuple[str, bool]:
    """Take one message; return the failure that it tells ("" for none) and whether its host has ended."""
    host = connection.host.name
    ranks = ended.ranks_of[host]
    if message is None:
        if connection.is_over:
            return "", True
        ended.lost[host] = connection.last_words or "without a word"
        return f"{host}: the connection ended ({ended.lost[host]}).", True
    if "exit" in message:
        code, rank = message["exit"], message["rank"]
        # Before it can save, while it starts, a rank that is asked to leave just goes.
        ended.codes[rank] = exit_codes.REQUEUE if is_reported and code in LEAVES else code
        if code == exit_codes.BAD_NODE:
            ended.last_words[rank] = message["last"]
        is_failure = ended.codes[rank] not in (exit_codes.DONE, exit_codes.REQUEUE)
        return _ended(host, message) if is_failure else "", all(r in ended.codes for r in ranks)
    if "done" in message:  # asked to leave before its ranks had started
        ended.codes |= {rank: exit_codes.REQUEUE for rank in ranks if rank not in ended.codes}
        return "", True
    if "out" in message:
        print(message["out"], flush=True)
    elif "err" in message:
        is_first = message["rank"] == 0
        say(message["err"] if is_first else f"{host} rank {message['rank']}: {message['err']}")
    return "", False


def _says_more(code: int, ended: Ended) -> bool:
    """Return whether a rank's code counts before that of the failure that was told."""
    reported = exit_codes.FAILED if ended.rank is None else ended.codes[ended.rank]
    return code in SAY_MORE and exit_codes.most_severe([reported, code]) != reported


def how(code: int) -> str:
    """Return an exit code in words: ended with 1, was killed by SIGKILL."""
    return f"ended with {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"


def _ended(host: str, message: Mapping[str, Any]) -> str:
    last = next((text for text in reversed(message["last"]) if text.strip()), "")
    return f"{host} rank {message['rank']} {how(message['exit'])}{': ' + last if last else '.'}"


def summary(connections: Sequence[Connection], given: Sequence[Mapping[str, Any]]) -> str:
    count = sum(job["ranks"] for job in given)
    return f"{len(connections)} hosts, {count} ranks, master {given[0]['address']}:{given[0]['port']}"


def plain(ended: Ended) -> dict[str, Any]:
    """Return what the diaries keep of a failed attempt."""
    facts = {
        "reason": ended.failure,
        "codes": {str(rank): code for rank, code in sorted(ended.codes.items())},
        "rank": ended.rank,
        "host": None if ended.rank is None else ended.host_of(ended.rank),
        "last_lines": ended.last_lines,
    }
    return facts | ({"lost": ended.lost} if ended.lost else {})
