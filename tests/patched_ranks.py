"""Ranks of a real launch that behave as a test asks: a sitecustomize.py on PYTHONPATH, which launchers keep.

It runs in `python -m trainer RECIPE` alone, in no launcher, agent or decode worker.
"""

import os
import queue
import re
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

ONLY_RANKS = """
import sys

arguments = sys.orig_argv
if "-m" in arguments and arguments[arguments.index("-m") + 1] == "trainer" and "launch" not in arguments:
"""

# After the line of each step, wait until the test says that it has read the step's line through the launcher:
# the file GATE/STEP. Before that the next step's line is not written.
LOCK_STEP = """
import os, pathlib, time
from trainer.run_folder import jsonl
from trainer.run_folder import metrics

append = jsonl.append_line


def gated(path, line):
    gate = pathlib.Path(os.environ["PYTHONGATE"]) / str(line["step"] - 1)
    while path.name == metrics.METRICS and line["step"] > 1 and not gate.exists():
        time.sleep(0.005)
    append(path, line)


jsonl.append_line = gated
"""

# A save that takes its time.
SLOW_SAVE = """
import time
from trainer.run_folder.checkpoint import parts

write = parts.write_part


def slow(*arguments):
    written = write(*arguments)
    time.sleep(0.4)
    return written


parts.write_part = slow
"""

# The second rank of the first attempt stands still in its eighth step.
HANG = """
import os, time
from trainer.distributed import mesh

count, sum_gradients = 0, mesh.sum_gradients


def hang(*arguments):
    global count
    count += 1
    while count == 8 and os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        time.sleep(60)
    sum_gradients(*arguments)


mesh.sum_gradients = hang
"""


SLOW = """
import os, time
from trainer.training import micro_batch

add_gradient = micro_batch.add_gradient


def slow(*arguments, **named):
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        time.sleep(0.5)
    return add_gradient(*arguments, **named)


micro_batch.add_gradient = slow
"""

# From the third on, a rank's steps never end.
ENDLESS = """
import time
from itertools import count
from trainer import train

train_step, numbers = train.train_step, count(1)


def step(*arguments, **named):
    while next(numbers) > 2:
        time.sleep(0.1)
    return train_step(*arguments, **named)


train.train_step = step
"""


def patched(folder: Path, program: str, **more: str) -> dict[str, str]:
    """Return what an environment needs so that ranks run `program` first; names in PYTHON… travel."""
    folder.mkdir()
    indented = "".join(f"    {line}\n" for line in program.splitlines())
    (folder / "sitecustomize.py").write_text(ONLY_RANKS + indented)
    path = os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {"PYTHONPATH": path.rstrip(os.pathsep), "OMP_NUM_THREADS": "1", **more}


def with_variable(name: str, value: str) -> list[int]:
    """Return the processes of this machine that were started with this variable, zombies left out."""
    wanted, found = f"{name}={value}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended meanwhile, or of another user
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def read_in_lock_step(
    process: "subprocess.Popen[str]",
    gate: Path,
    *,
    limit_seconds: float,
    on_step: Callable[[int], None] = lambda step: None,
) -> list[str]:
    """Read what a launcher prints (stderr joined to stdout) to its end, and let each next step begin.

    A step's line that is held back on its way is never read, and the next step never begins: that fails
    here after `limit_seconds` without a line.
    """
    assert process.stdout is not None
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        with process.stdout as out:
            for line in out:
                lines.put(line.rstrip("\n"))
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    seen: list[str] = []
    until = time.monotonic() + limit_seconds
    while True:
        try:
            line = lines.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            process.kill()
            raise AssertionError("\n".join(["no line came:", *seen])) from None
        if line is None:
            process.wait()
            return seen
        seen.append(line)
        match = re.search(r"step (\d+)/\d+  loss", line)
        if match:
            on_step(int(match[1]))
            (gate / match[1]).touch()
