"""CPU time of `--help`: every command of vidcurate and of the trainer, beside `python -c pass`.

    python benchmarks/help_seconds.py

The least of three calls, user and system time of the process, so that other work on the machine counts
little. A command that imports torch before its arguments are parsed takes 2 s and more.
"""

import os
import subprocess
import sys
from collections.abc import Sequence

import typer.main
from rows import Row, keep, row

from trainer.__main__ import COMMANDS
from vidcurate.cli import trainer_commands
from vidcurate.cli.main import app

GOAL = "under 0.6 s"
REPEATS = 3


def cpu_seconds(words: Sequence[str]) -> float:
    """Return the least CPU time, s, of a Python process. Raises CalledProcessError when it fails."""
    least = float("inf")
    for _ in range(REPEATS):
        process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, words)
        least = min(least, used.ru_utime + used.ru_stime)
    return least


def main() -> None:
    """Measure every --help and keep a row for each."""
    group = typer.main.get_command(app)
    own = sorted(group.commands)  # type: ignore[attr-defined]
    calls = [["-m", "vidcurate"], *(["-m", "vidcurate", name] for name in own)]
    calls += [["-m", "trainer"], *(["-m", "trainer", name] for name in sorted(COMMANDS))]
    empty = cpu_seconds(["-c", "pass"])
    rows: list[Row] = []
    for words in calls:
        is_started = len(words) == 3 and words[2] in trainer_commands.COMMANDS and words[1] == "vidcurate"
        rows.append(
            row(
                " ".join(["python", *words, "--help"]) + (" (starts the trainer)" if is_started else ""),
                cpu_seconds([*words, "--help"]),
                "CPU s",
                peer="python -c pass",
                peer_value=empty,
                goal=GOAL,
                higher_is_better=False,
            )
        )
    keep("help_seconds", rows)


if __name__ == "__main__":
    main()
