"""Training runs as processes that start at once: forked from one that has loaded torch and the trainer.

`with Forks(folder) as forks: forks.start(arguments, ranks=2).codes()` runs `python -m trainer ARGUMENTS` on
two ranks (gloo). A run's processes are real: they can be killed by their ids, and nothing of one is left in
the next. `forks.call(words, folder)` runs any command of the two packages to its end. `forks.python()` may
stand for `python -m` in a command that the program itself starts.
"""

import faulthandler
import json
import os
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from trainer.cli import commands
from trainer.cluster.launch.launch_agent import free_port

ROOT = Path(__file__).resolve().parents[1]


class Forked:
    """One run: the process id of each rank, and the file with what all of them said."""

    def __init__(self, forks: "Forks", pids: list[int], said: Path) -> None:
        self.pids, self.said = pids, said
        self._forks = forks
        self._codes: list[int] | None = None

    def codes(self) -> list[int]:
        """Wait for all ranks and return their exit codes, negative for a signal."""
        if self._codes is None:
            self._codes = self._forks.read()["codes"]
        return self._codes

    def text(self) -> str:
        return self.said.read_text()

    def succeed(self) -> None:
        assert set(self.codes()) == {0}, self.text()


class Forks:
    """The process that forks; one run at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0
        self._last: Forked | None = None
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.forked_runs", str(folder / "socket")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    def start(
        self,
        arguments: Sequence[str],
        ranks: int = 1,
        folder: Path = ROOT,
        reported: Path | None = None,
        **environment: str,
    ) -> Forked:
        """Start a run in a folder; `reported`, if given, receives its stderr."""
        if self._last is not None:
            self._last.codes()  # of a test that did not wait for it
        self._count += 1
        said = self.folder / f"said-{self._count}.txt"
        job = {
            "arguments": list(arguments),
            "ranks": ranks,
            "said": str(said),
            "reported": str(reported or said),
            "folder": str(folder),
            "environment": environment,
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        self._last = Forked(self, self.read()["pids"], said)
        return self._last

    def call(self, command: str, folder: Path) -> str:
        """Run `vidcurate …` or `python -m MODULE …` in a folder, and return what it says on stdout.

        It has to end with 0.
        """
        words, reported = shlex.split(command), self.folder / f"reported-{self._count + 1}.txt"
        done = self.start(words, folder=folder, reported=reported, COLUMNS="100")
        assert done.codes() == [0], f"{command}\n{done.text()}\n{reported.read_text()}"
        return done.text()

    def python(self) -> list[str]:
        """Return the words that stand for `python -m`; the forked run has ended before."""
        until = time.monotonic() + 300
        while not (self.folder / "socket").exists() and time.monotonic() < until:
            time.sleep(0.02)
        return [sys.executable, "-S", str(ROOT / "tests" / "fork_client.py"), str(self.folder / "socket")]

    def read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def __enter__(self) -> "Forks":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


def program(patch: str, words: Sequence[str]) -> list[str]:
    """Return the arguments of a run that executes `patch`, such as another constant, and then trains."""
    return ["-c", f"{patch}\nimport sys\nfrom trainer.__main__ import main\nsys.exit(main({list(words)!r}))"]


def _run(job: dict[str, Any], rank: int, port: int) -> int:
    """Be one rank: run the trainer, a command as its words say it, or, for `["-c", PROGRAM]`, a program."""
    os.environ.update(job["environment"])
    for stream, path in ((1, job["said"]), (2, job["reported"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), stream)
    os.chdir(job["folder"])
    if job["ranks"] > 1:
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": job["ranks"], "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in names.items()})
        os.environ["MASTER_ADDR"] = "127.0.0.1"
    if job["arguments"][0] == "-c":
        faulthandler.enable(2)  # as the trainer does: a rank that crashes says where
        exec(job["arguments"][1], {"__name__": "__main__"})
        return 0
    if job["arguments"][0] == "vidcurate":
        from vidcurate.cli.main import main as curate

        curate(job["arguments"][1:])
    if job["arguments"][:2] == ["python", "-m"]:
        module, sys.argv = job["arguments"][2], job["arguments"][2:]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return 0
    from trainer.__main__ import main

    return main(job["arguments"])


def _serve() -> None:
    with commands.loading():
        # What each run would load first: of these some load more when they are used.
        import pandas  # noqa: F401 - pyarrow asks for it
        import torch

        import trainer.train
        import trainer.training.preflight.command  # noqa: F401
        import vidcurate.cli.main
        import vidcurate.curate
        import vidcurate.media  # noqa: F401

        torch.use_deterministic_algorithms(False)  # by torch's compiler

    torch.set_num_threads(1)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1])
    listener.listen()
    while True:
        ready, _, _ = select.select([sys.stdin, listener], [], [], 1.0)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # who stood for a client has ended
                pass
        if listener in ready:
            client, _ = listener.accept()
            if os.fork() == 0:
                os._exit(_stand_for(client))
            client.close()
        if sys.stdin not in ready:
            continue
        line = sys.stdin.readline()
        if not line:
            os._exit(0)  # nothing of torch is left to be put away
        job = json.loads(line)
        port, pids = free_port(), []
        for rank in range(job["ranks"]):
            pid = os.fork()
            if pid == 0:
                _end_with(lambda job=job, rank=rank, port=port: _run(job, rank, port))
            pids.append(pid)
        print(json.dumps({"pids": pids}), flush=True)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        print(json.dumps({"codes": codes}), flush=True)


def _end_with(act: Callable[[], int]) -> NoReturn:
    """Act, and end this process as a program would: a fork must not continue as its parent."""
    code = 1
    try:
        code = act()
        sys.stdout.flush()
    except SystemExit as ended:
        code = int(ended.code or 0)
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _stand_for(client: socket.socket) -> int:
    """Run what a client (fork_client.py) asks for, tell it the end, and kill it when the client goes."""
    text, streams, _, _ = socket.recv_fds(client, 1 << 20, 3)
    while not text.endswith(b"\n"):
        text += client.recv(1 << 20)
    job = json.loads(text)
    pid = os.fork()
    if pid == 0:
        client.close()
        _end_with(lambda: _module(job, streams))
    for stream in streams:  # so that who reads from a pipe sees its end
        os.close(stream)
    client.sendall(f"{pid}\n".encode())
    ends = os.pidfd_open(pid)
    ready, _, _ = select.select([client, ends], [], [])
    if ends not in ready:
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(OSError):
        client.sendall(f"{code}\n".encode())
    return 0


def _module(job: dict[str, Any], streams: Sequence[int]) -> int:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["folder"])
    sys.argv = job["words"]
    runpy.run_module(job["words"][0], run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    _serve()
