"""Elastic agent: torchrun's agent adapted to this trainer, one per host.

torch.distributed.elastic provides the store where all hosts meet (its port is open from before the ranks
start until they have exited), the ranks' numbers and their variables, as torchrun does. This file runs the
processes, because torchrun's own agent would lose checkpoints: it takes every exit code but 0 for a failure,
kills 30 seconds after SIGTERM (pytorch#119856) and keeps SIGUSR1 to itself (pytorch#154849). The supervisor,
which knows the meaning of exit codes, does the restarts.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any

from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
    Worker,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from trainer.cli import exit_codes

LAST_LINES = 20  # number of console lines of a failed rank
SETTLE_SECONDS = 10.0  # for the other ranks of a host after a failure
LAST_WORDS_SECONDS = 3.0  # before that: to exit on their own, with a verdict or a traceback
PR_SET_PDEATHSIG = 1  # Linux's prctl option
MEET_SECONDS = 300  # for all hosts to reach the store
GOOD_ENDS = (exit_codes.DONE, exit_codes.REQUEUE)

Say = Callable[[dict[str, Any]], None]


class HostRanks(SimpleElasticAgent):
    """The ranks of one host.

    `run` starts them, and returns when they, and the other hosts' if all went well, have exited.
    """

    def __init__(self, job: dict[str, Any], say: Say) -> None:
        meeting = StaticTCPRendezvous(
            job["address"], job["port"], job["host"], job["hosts"], job["run_id"], MEET_SECONDS
        )
        spec = WorkerSpec(
            role="trainer",
            local_world_size=job["ranks"],
            rdzv_handler=meeting,
            entrypoint=job["command"][0],
            args=tuple(job["command"][1:]),
            max_restarts=0,
            monitor_interval=0.1,
        )
        super().__init__(spec, exit_barrier_timeout=job["grace_seconds"])
        self.job, self.say = job, say
        self.processes: dict[int, subprocess.Popen[str]] = {}  # by rank
        self._changing = threading.Lock()  # between "starting" and "asked to exit"
        self._followers: list[threading.Thread] = []

    # ── what the launcher asks for ──────────────────────────────────────────────────────────────────────────

    def send(self, number: signal.Signals) -> None:
        """Send a signal to every rank; if none has started yet, this host is done."""
        with self._changing:
            if not self.processes:
                self._leave()
            self._send(number)

    def end(self, seconds: float, after: float = 0.0) -> None:
        """Wait `after` seconds for the ranks to exit, send SIGTERM, and SIGKILL `seconds` later."""
        self._wait(after)
        self.send(signal.SIGTERM)
        self._wait(seconds)
        for process in list(self.processes.values()):
            if process.poll() is None:
                _kill_group(process)

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and any(one.poll() is None for one in list(self.processes.values())):
            time.sleep(0.05)

    def _send(self, number: signal.Signals) -> None:
        for process in list(self.processes.values()):
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    process.send_signal(number)

    def _leave(self) -> None:
        self.say({"done": True})
        os._exit(0)

    # ── what torch's agent asks for ─────────────────────────────────────────────────────────────────────────

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        with self._changing:
            for worker in worker_group.workers:
                process = subprocess.Popen(
                    self.job["command"],
                    env=os.environ | self.job["environment"] | self._variables(worker, worker_group),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    errors="replace",
                    start_new_session=True,
                    restore_signals=True,
                    preexec_fn=_leave_with_the_agent,
                )
                self.processes[worker.global_rank] = process
                follower = threading.Thread(target=self._follow, args=(process, worker.global_rank))
                follower.start()
                self._followers.append(follower)
        return {worker.local_rank: self.processes[worker.global_rank].pid for worker in worker_group.workers}

    def _variables(self, worker: Worker, group: WorkerGroup) -> dict[str, str]:
        """Return a rank's environment variables as torchrun sets them."""
        spec = group.spec
        facts = {
            "RANK": worker.global_rank,
            "LOCAL_RANK": worker.local_rank,
            "GROUP_RANK": group.group_rank,
            "ROLE_RANK": worker.role_rank,
            "ROLE_NAME": spec.role,
            "WORLD_SIZE": worker.world_size,
            "LOCAL_WORLD_SIZE": spec.local_world_size,
            "GROUP_WORLD_SIZE": group.group_world_size,
            "ROLE_WORLD_SIZE": worker.role_world_size,
            "MASTER_ADDR": group.master_addr,
            "MASTER_PORT": group.master_port,
            "TORCHELASTIC_RESTART_COUNT": self.job["restarts"],
            "TORCHELASTIC_MAX_RESTARTS": spec.max_restarts,
            "TORCHELASTIC_RUN_ID": spec.rdzv_handler.get_run_id(),
            "TORCHELASTIC_USE_AGENT_STORE": spec.rdzv_handler.use_agent_store,
        }
        return {name: str(value) for name, value in facts.items()}

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        codes = {rank: process.poll() for rank, process in self.processes.items()}
        if any(code is not None and code not in GOOD_ENDS for code in codes.values()):
            return RunResult(state=WorkerState.FAILED)
        if None in codes.values():
            return RunResult(state=WorkerState.HEALTHY)
        self._join()
        return RunResult(state=WorkerState.SUCCEEDED, return_values=dict(codes))

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self._shutdown()

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        if any(process.poll() is None for process in self.processes.values()):
            self.end(SETTLE_SECONDS, LAST_WORDS_SECONDS)
        self._join()

    def _join(self) -> None:
        for follower in self._followers:
            follower.join()

    def _follow(self, process: "subprocess.Popen[str]", rank: int) -> None:
        """Pass on a rank's output, line by line, and report how it exited."""
        last: deque[str] = deque(maxlen=LAST_LINES)

        def read(pipe: IO[str], kind: str) -> None:
            for line in pipe:
                if kind == "err":
                    last.append(line.rstrip("\n"))
                self.say({"rank": rank, kind: line.rstrip("\n")})

        assert process.stdout is not None
        assert process.stderr is not None
        readers = [
            threading.Thread(target=read, args=(pipe, kind), daemon=True)
            for pipe, kind in ((process.stdout, "out"), (process.stderr, "err"))
        ]
        for reader in readers:
            reader.start()
        code = process.wait()
        if code not in GOOD_ENDS:
            _kill_group(process)  # processes it had started and can no longer end
        for reader in readers:
            reader.join(2.0)  # a grandchild may hold the pipe open
        self.say({"rank": rank, "exit": code, "last": list(last)})


_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def _leave_with_the_agent() -> None:
    """In a rank, before its program: have the kernel send SIGTERM when the agent dies, for any reason."""
    if _prctl is not None:
        _prctl(PR_SET_PDEATHSIG, signal.SIGTERM.value)


def _kill_group(process: "subprocess.Popen[str]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
