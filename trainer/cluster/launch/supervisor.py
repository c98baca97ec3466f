"""Supervisor of a launch: restart after failures, excluding bad hosts.

By exit code (exit_codes.py): 0 and 75 are passed on; 2 and 78 are never retried; 77 is retried without the
host that RUN/preflight.json, the guard's event or the rank's own code names; anything else (1, 76, a signal,
a broken connection) is retried from the newest checkpoint. Restarts without progress are counted; a higher
step, saved or in the metrics, resets the count (NVRx calls the limit max_no_progress_cycles). A host that no
longer answers is excluded. Each of these is a line in RUN/launch.jsonl and in RUN/events.jsonl: `restart`,
`excluded`, `gave_up`.
"""

import queue
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.cli import commands, exit_codes
from trainer.cluster import hostfile
from trainer.cluster.hostfile import Host
from trainer.cluster.launch import bad_hosts, start_on_hosts
from trainer.cluster.launch.connection import HERE, Messages, answers, connect, hang_up, say
from trainer.cluster.launch.start_on_hosts import Ended
from trainer.health.watch import progress
from trainer.run_folder import jsonl
from vidcurate.errors import InputError, VidcurateError, counted

LOG_FILE = "launch.jsonl"
LONGEST_WAIT_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Limits of a launch. `min_hosts` None: all hosts at the first start, one afterwards."""

    restarts: int | None = 3  # consecutive, without progress; None: run the ranks once, whatever happens
    min_hosts: int | None = None
    stall_seconds: float = 7200.0
    backoff_seconds: float = 5.0  # doubled with each restart without progress
    connect_seconds: float = 30.0
    grace_seconds: float = 600.0  # for the ranks to save and exit after a signal
    ssh: tuple[str, ...] = ("ssh",)
    per_host: int | None = None


@dataclass(slots=True, kw_only=True)
class _State:
    """State of a launch between two attempts."""

    hosts: tuple[Host, ...]
    best_step: int
    restarts: int = 0
    without_progress: int = 0


def supervise(
    run: Path,
    hosts: Sequence[Host],
    command: Sequence[str],
    terms: Terms,
    *,
    environment: Mapping[str, str],
    fits: Callable[[int], str] = lambda ranks: "",
) -> int:
    """Run `command` as every rank on the hosts until done; return the exit code of the whole.

    0: every rank is done; 75: all exited after a signal, 128 + its number: all were killed after a second
    one; 2, 78: as the rank said; 77: too few hosts are left; 1: given up. `fits` returns why a number of
    ranks does not suit the recipe, "" if it does. Raises VidcurateError if too few hosts answer at the start,
    and InputError if their ranks do not suit the recipe, before anything has started.
    """
    state = _State(hosts=tuple(hosts), best_step=progress.highest_step(run))
    with start_on_hosts.signals() as asked:
        while True:
            before, seen = progress.highest_step(run), bad_hosts.seen(run)
            ended = _attempt(run, state, command, terms, environment, fits, asked)
            if isinstance(ended, int):
                return _end(ended, asked)
            code = final_code(ended, asked, is_once=terms.restarts is None)
            if code is not None:
                return _end(code, asked)
            after = progress.highest_step(run)
            facts = start_on_hosts.plain(ended) | {"step_before": before, "step_after": after}
            code = _prepare_restart(
                run, state, ended, bad_hosts.bad_hosts(run, ended, seen), facts, terms, asked
            )
            if code is not None:
                return _end(code, asked)


def _end(code: int, asked: Sequence[signal.Signals]) -> int:
    """Return the launch's exit code; after a Ctrl-C that ended the ranks, print how to resume."""
    if asked and asked[0] is signal.SIGINT and code in (exit_codes.REQUEUE, exit_codes.INTERRUPTED):
        say(f"{commands.INTERRUPTED} from the newest checkpoint")
    return code


def final_code(ended: Ended, asked: Sequence[signal.Signals], *, is_once: bool = False) -> int | None:
    """Return the launch's exit code after this attempt, or None to restart."""
    code = ended.code
    if ended.killed_by_signal:
        return 128 + asked[0]
    if not ended.failure:
        return code
    if code in (exit_codes.HALT, exit_codes.WRONG_REQUEST):
        return code
    if not asked and not is_once:
        return None
    return code if code > 0 and code != exit_codes.REQUEUE else exit_codes.FAILED


def _attempt(
    run: Path,
    state: _State,
    command: Sequence[str],
    terms: Terms,
    environment: Mapping[str, str],
    fits: Callable[[int], str],
    asked: list[signal.Signals],
) -> Ended | int:
    """Connect to the hosts and run the ranks until all have exited; an exit code if they cannot start."""
    messages: Messages = queue.Queue()
    connections = [connect(host, terms.ssh, terms.connect_seconds, messages) for host in state.hosts]
    try:
        absent = answers(connections, messages, terms.connect_seconds, asked)
        if asked:
            if state.restarts:
                return exit_codes.REQUEUE
            raise VidcurateError(f"{asked[0].name} came before the hosts had answered; nothing was started.")
        if absent:
            code = _resume_without(run, state, absent, terms)
            if code is not None:
                return code
        there = [one for one in connections if one.host in state.hosts]
        first = there[0].host
        address = "127.0.0.1" if first is HERE else hostfile.address(first, terms.ssh, environment)
        jobs = start_on_hosts.jobs(
            there,
            command,
            per_host=terms.per_host,
            address=address,
            grace_seconds=terms.grace_seconds,
            environment=environment,
            restarts=state.restarts,
        )
        reason = fits(sum(job["ranks"] for job in jobs))
        if reason and not state.restarts:
            raise InputError(reason)
        if reason:
            return _give_up(run, reason, exit_codes.BAD_NODE)
        say(start_on_hosts.summary(there, jobs))
        heartbeats = progress.Heartbeats(run)
        return start_on_hosts.start_on_hosts(
            there, jobs, messages, asked, terms.grace_seconds, lambda: _stall(heartbeats, terms.stall_seconds)
        )
    finally:
        hang_up(connections)


def _stall(heartbeats: progress.Heartbeats, limit_seconds: float) -> str:
    quiet = heartbeats.quiet_seconds()
    if quiet is None or quiet < limit_seconds:
        return ""
    return f"no rank has moved for {quiet:.0f} s ({heartbeats.to_text()})."


def _resume_without(run: Path, state: _State, absent: Mapping[str, str], terms: Terms) -> int | None:
    """Exclude the hosts that do not answer, or return the exit code if too few are left.

    Raises VidcurateError at the first start, before anything has been written.
    """
    is_first = not state.restarts
    needed = terms.min_hosts or (len(state.hosts) if is_first else 1)
    num_left = len(state.hosts) - len(absent)
    if is_first and num_left < needed:
        *others, last = [f"{host}: {why}" for host, why in absent.items()]
        for text in others:
            say(f"error: {text}")
        raise VidcurateError(f"{last}. {len(absent)} of {len(state.hosts)} hosts; nothing was started.")
    for host, why in absent.items():
        _exclude(run, state, host, why)
    if num_left < needed:
        return _give_up(run, f"{counted(num_left, 'host')} left, {needed} needed.", exit_codes.BAD_NODE)
    return None


def _prepare_restart(
    run: Path,
    state: _State,
    ended: Ended,
    bad: Mapping[str, str],
    facts: dict[str, Any],
    terms: Terms,
    asked: Sequence[signal.Signals],
) -> int | None:
    """Decide on the next attempt, record it and wait for its time; an exit code if there is none.

    `bad`: host → reason to exclude it.
    """
    has_moved = facts["step_after"] > state.best_step
    state.best_step = max(state.best_step, facts["step_after"])
    if has_moved:
        state.without_progress = 0
    wait_seconds = 0.0
    if bad or exit_codes.BAD_NODE in ended.codes.values():
        if not bad:
            return _give_up(run, "a node is bad and nothing says which.", exit_codes.BAD_NODE, facts)
        for host, why in bad.items():
            _exclude(run, state, host, why)
        needed = terms.min_hosts or 1
        if len(state.hosts) < needed:
            reason = f"{counted(len(state.hosts), 'host')} left, {needed} needed."
            return _give_up(run, reason, exit_codes.BAD_NODE, facts)
    elif state.without_progress >= (terms.restarts or 0):
        tries = counted(state.without_progress, "restart")
        reason = f"{tries} brought no progress beyond step {state.best_step}."
        return _give_up(run, reason, exit_codes.FAILED, facts)
    else:
        wait_seconds = min(LONGEST_WAIT_SECONDS, terms.backoff_seconds * 2**state.without_progress)
        state.without_progress += 1
    state.restarts += 1
    counts = {"restart": state.restarts, "without_progress": state.without_progress}
    _record(run, "restart", facts["step_after"], **facts, **counts, wait_seconds=wait_seconds)
    say(
        f"restart {state.restarts} ({state.without_progress} of {terms.restarts} without progress) in "
        f"{wait_seconds:g} s; the run was at step {facts['step_after']}"
    )
    until = time.monotonic() + wait_seconds
    while time.monotonic() < until and not asked:
        time.sleep(0.05)
    if asked:
        if asked[0] is not signal.SIGINT:
            say(f"{asked[0].name}: no rank runs; the same command resumes from the newest checkpoint")
        return exit_codes.REQUEUE
    if not progress.is_free(run, terms.grace_seconds):
        return _give_up(
            run, "a process of the previous attempt still trains into this folder.", exit_codes.FAILED
        )
    return None


def _exclude(run: Path, state: _State, host: str, why: str) -> None:
    state.hosts = tuple(one for one in state.hosts if one.name != host)
    say(f"{host}: left out from now on ({why})")
    _record(run, "excluded", progress.highest_step(run), host=host, reason=why)


def _give_up(run: Path, reason: str, code: int, facts: Mapping[str, Any] | None = None) -> int:
    _record(run, "gave_up", progress.highest_step(run), **{**(facts or {}), "reason": reason}, exit_code=code)
    say(f"error: {run}: {reason} No further restart.")
    return code


def _record(run: Path, event: str, step: int, /, **facts: Any) -> None:
    """Add a line to the launch's log and to the run's events."""
    run.mkdir(parents=True, exist_ok=True)
    jsonl.append_line(run / LOG_FILE, {"event": event, "step": step, "time": round(time.time(), 3), **facts})
    jsonl.record_event(run, event, step, **facts)
