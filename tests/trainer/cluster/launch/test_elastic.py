"""One host's ranks while they start: what is asked of them then is neither lost nor an error."""

import signal
import subprocess
import sys
from typing import Any

from trainer.cluster.launch import elastic

JOB = {"command": ["true"], "ranks": 1, "host": 0, "hosts": 1, "address": "127.0.0.1", "port": 1}
JOB |= {"run_id": "test", "grace_seconds": 1.0, "restarts": 0, "environment": {}}


class _Another(subprocess.Popen[str]):
    """A rank during whose look the next one starts, as another thread does it."""

    ranks: Any = None

    def poll(self) -> int | None:
        if self.ranks is not None:
            ranks, self.ranks = self.ranks, None
            ranks.processes[1] = rank("import time; time.sleep(60)")
        return super().poll()


def rank(program: str) -> _Another:
    return _Another([sys.executable, "-c", program], start_new_session=True, text=True)


def test_ranks_that_are_starting_are_ended_too() -> None:
    """The thread that ended them died of a dictionary that had changed, and they were left to run."""
    ranks = elastic.HostRanks(JOB, lambda message: None)
    first = rank("")
    first.wait()
    first.ranks = ranks
    ranks.processes[0] = first

    ranks.end(0.2, after=0.1)

    assert ranks.processes[1].wait(60) in (-signal.SIGTERM, -signal.SIGKILL)
