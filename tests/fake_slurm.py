"""The outside of Slurm as programs on PATH: sbatch, srun, scontrol and scancel of a cluster of one host.

sbatch runs the script, and runs it again when `scontrol requeue` asked for it. When the file
FOLDER/time-limit appears, it sends the signal of the script's `#SBATCH --signal` line to whom Slurm would:
with "B:" to the script alone, without to every task and not to the script. When FOLDER/cancel appears, it
sends SIGTERM to whom the file names: tasks, script. srun does with signals what Slurm's does: it passes
SIGUSR1 on, makes SIGKILL of SIGTERM, prints a line at the first Ctrl-C, and at the second sends the tasks
SIGINT, SIGCONT and SIGTERM (Slurm: if it comes within a second). It takes no --cpus-per-task from sbatch
(Slurm 22.05).
"""

import os
import sys
from pathlib import Path

SBATCH = """
import os, re, signal, subprocess, sys, time
from pathlib import Path

folder = Path(os.environ["FAKE_SLURM"])
options = [word for word in sys.argv[1:] if word.startswith("--")][: int(os.environ["SBATCH_OPTIONS"])]
script, *arguments = sys.argv[1 + len(options) :]
given = re.findall(r"^#SBATCH (--\\S+)", Path(script).read_text(), re.M) + options
settings = dict((option.partition("=")[::2]) for option in given)
assert "--requeue" in settings, "the script does not allow to be requeued"
environment = os.environ | {"SLURM_JOB_ID": os.environ["FAKE_JOB"], "SLURM_JOB_NODELIST": "127.0.0.1"}
environment["SLURM_NTASKS"] = settings["--ntasks-per-node"]
environment["SLURM_CPUS_PER_TASK"] = settings["--cpus-per-task"]
for turn in range(9):
    (folder / "requeue").unlink(missing_ok=True)
    environment["SLURM_RESTART_COUNT"] = str(turn)
    batch = subprocess.Popen(["bash", script, *arguments], env=environment, start_new_session=True)
    while batch.poll() is None:
        time.sleep(0.02)
        if (folder / "time-limit").exists():
            (folder / "time-limit").unlink()
            to, _, name = settings["--signal"].partition("@")[0].rpartition(":")
            tasks = (folder / "tasks").read_text().split()
            for pid in [batch.pid] if to == "B" else map(int, tasks):
                os.kill(pid, signal.Signals["SIG" + name])
        if (folder / "cancel").exists():
            whom = (folder / "cancel").read_text().split()
            (folder / "cancel").unlink()
            tasks = (folder / "tasks").read_text().split() if "tasks" in whom else []
            for pid in [*map(int, tasks), *([batch.pid] if "script" in whom else [])]:
                os.kill(pid, signal.SIGTERM)
    with (folder / "turns").open("a") as turns:
        turns.write(f"{batch.returncode}\\n")
    if not (folder / "requeue").exists():
        sys.exit(batch.returncode)
"""

SRUN = """
import os, signal, subprocess, sys, threading
from pathlib import Path

arguments = sys.argv[1:]
assert f"--cpus-per-task={os.environ['SLURM_CPUS_PER_TASK']}" in arguments, arguments
while arguments[0].startswith("-"):
    arguments.pop(0)


def copy(pipe, to):
    while data := os.read(pipe.fileno(), 1 << 16):
        os.write(to, data)


tasks, copiers = [], []
for number in range(int(os.environ["SLURM_NTASKS"])):
    place = {"SLURM_PROCID": str(number), "SLURM_LOCALID": str(number), "SLURM_STEP_ID": "0"}
    place["SLURM_STEP_NODELIST"] = "127.0.0.1"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    task = subprocess.Popen(arguments, env=os.environ | place, start_new_session=True, **pipes)
    tasks.append(task)
    for pipe, to in ((task.stdout, 1), (task.stderr, 2)):
        copiers.append(threading.Thread(target=copy, args=(pipe, to), daemon=True))
        copiers[-1].start()
signal.signal(signal.SIGUSR1, lambda n, _: [task.send_signal(n) for task in tasks])
signal.signal(signal.SIGTERM, lambda n, _: [task.kill() for task in tasks])
pressed = []


def interrupt(number, frame):
    pressed.append(number)
    if len(pressed) == 1:
        os.write(2, b"srun: interrupt (one more within 1 sec to abort)\\n")
        return
    os.write(2, b"srun: sending Ctrl-C to StepId=1.0\\n")
    for name in (signal.SIGINT, signal.SIGCONT, signal.SIGTERM):
        for task in tasks:
            task.send_signal(name)


if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as it is for what a script has in the background
    signal.signal(signal.SIGINT, interrupt)
started = Path(os.environ["FAKE_SLURM"]) / ".tasks"
started.write_text(" ".join(str(task.pid) for task in tasks))
started.rename(started.with_name("tasks"))
codes = [task.wait() for task in tasks]
for copier in copiers:
    copier.join(5)
sys.exit(max(code if code >= 0 else 128 - code for code in codes))
"""

SCONTROL = """
import os, sys
from pathlib import Path

assert sys.argv[1:] == ["requeue", os.environ["FAKE_JOB"]], sys.argv
(Path(os.environ["FAKE_SLURM"]) / "requeue").touch()
"""

SCANCEL = """
import os, sys
from pathlib import Path

(Path(os.environ["FAKE_SLURM"]) / "cancelled").write_text(" ".join(sys.argv[1:]))
"""


def install(folder: Path, job: int) -> dict[str, str]:
    """Write the programs to FOLDER/bin and return the environment that finds them."""
    programs = folder / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    for name, text in (("sbatch", SBATCH), ("srun", SRUN), ("scontrol", SCONTROL), ("scancel", SCANCEL)):
        (programs / name).write_text(f"#!{sys.executable}\n{text}")
        (programs / name).chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "FAKE_SLURM": str(folder), "FAKE_JOB": str(job), "PYTHON": sys.executable}
