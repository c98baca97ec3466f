"""Ranks that train nothing and end as a test asks, started by the real supervisor and its agents."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainer.cluster.hostfile import Host
from trainer.cluster.launch import supervisor
from trainer.cluster.launch.connection import HERE
from trainer.cluster.launch.supervisor import Terms
from trainer.run_folder import jsonl, metrics

# For each attempt a rank gets the step that it reaches, what it writes, and how it ends. Log and
# heartbeats are those of a trainer's rank. What has to come before is waited for: `when`, files of the run
# (process-ATTEMPT-RANK is there when that rank has written all it writes), and `outlives`, a rank whose end
# the agent has seen.
RANK = """
import json, os, pathlib, signal, sys, time

run, rank = pathlib.Path(sys.argv[1]), int(os.environ["RANK"])
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
attempts = json.loads(sys.argv[2])
what = attempts[min(attempt, len(attempts) - 1)].get(str(rank), {})


def wait_for(condition):
    until = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


if rank == 0:
    with open(run / "metrics.jsonl", "a") as log:
        log.write(json.dumps({"step": what.get("step", 0)}) + "\\n")
for name, text in what.get("writes", {}).items():
    (run / name).write_text(text)
mine = f"process-{attempt}-{rank}"
(run / f".{mine}").write_text(str(os.getpid()))
(run / f".{mine}").replace(run / mine)
for name in what.get("when", []):
    wait_for((run / name).exists)
if "outlives" in what:  # its parent has waited for it: it is no process any more
    other = run / f"process-{attempt}-{what['outlives']}"
    wait_for(other.exists)
    wait_for(lambda: not os.path.exists(f"/proc/{other.read_text()}"))
if "beats" in what:
    heard = lambda *_: (run / f"rank-{rank}-heard").touch()
    signal.signal(signal.SIGTERM, heard if what["beats"] == "deaf" else signal.SIG_DFL)
    (run / "heartbeats").mkdir(exist_ok=True)
    for step in range(3):
        beat = {"time": time.time(), "step": attempt * 10 + step, "phase": "step"}
        beat |= {"seconds_in_phase": 0.0, "seconds_since_progress": 0.0}
        partial = run / "heartbeats" / f".{rank}"
        partial.write_text(json.dumps(beat))
        partial.replace(run / "heartbeats" / f"rank-{rank:05d}.json")
    time.sleep(600)
if "leaves" in what:
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(what["leaves"]))
    (run / f"rank-{rank}-waits").touch()
    time.sleep(600)
time.sleep(what.get("after", 0))
print(what.get("says", f"attempt {attempt} rank {rank} says something last"), file=sys.stderr)
if what.get("kills_agent"):
    os.kill(os.getppid(), signal.SIGKILL)
os._exit(what.get("exit", 0)) if what.get("exit", 0) >= 0 else os.kill(os.getpid(), -what["exit"])
"""

Attempts = list[dict[str, dict[str, Any]]]


def launch(
    run: Path,
    attempts: Attempts,
    *,
    ranks: int = 2,
    hosts: Sequence[Host] = (HERE,),
    fits: Callable[[int], str] = lambda ranks: "",
    **terms: Any,
) -> int:
    """Launch `ranks` a host; of `attempts` the last is repeated. Return what the supervisor ends with."""
    run.mkdir(exist_ok=True)
    command = [sys.executable, "-u", "-c", RANK, str(run), json.dumps(attempts)]
    wanted = replace(Terms(per_host=ranks, backoff_seconds=0.1), **terms)
    return supervisor.supervise(run, hosts, command, wanted, environment=os.environ, fits=fits)


def log_file(run: Path, event: str | None = None) -> list[dict[str, Any]]:
    """Return the lines of RUN/launch.jsonl; the run's events must have the same ones."""
    lines = metrics.read_metrics(run / supervisor.LOG_FILE)
    assert [line["event"] for line in metrics.read_metrics(run / jsonl.EVENTS)] == [
        line["event"] for line in lines
    ]
    return [line for line in lines if event in (None, line["event"])]
