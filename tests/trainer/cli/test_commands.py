"""Answers of the trainer's commands on a terminal and in a file."""

import json
import os
import pty
import struct
import subprocess
import sys
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

import pytest

from vidcurate.errors import counted

ROOT = Path(__file__).resolve().parents[3]
LINES = (
    "first: 50 steps of 2 micro-batches, 4.08 epochs of 1,234,567 clips of run/shards, lr 9.09e-05 → 0.001",
    "  level-1/64px-8f-1.00                    30 clips         61 micro-batches of 2, 4.07 epochs",
    "short",
    "",
    "  first clips: " + ", ".join(f"shapes-{number:04}_1_24to48.webm" for number in range(4)),
)
PROGRAM = (
    f"from trainer.cli import commands; commands.print_answer([1], {chr(10).join(LINES)!r}, as_json=JSON)"
)


def printed(columns: int | None, *, as_json: bool = False) -> list[str]:
    """Return the lines that the program prints on a terminal of so many columns; None: into a pipe."""
    command = [sys.executable, "-c", PROGRAM.replace("JSON", str(as_json))]
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    if columns is None:
        found = subprocess.run(command, capture_output=True, check=True, cwd=ROOT, env=environment).stdout
    else:
        ours, theirs = pty.openpty()
        ioctl(theirs, TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        subprocess.run(command, stdout=theirs, check=True, cwd=ROOT, env=environment)
        found = os.read(ours, 1 << 16)
        os.close(theirs)
        os.close(ours)
    return found.decode().replace("\r\n", "\n").rstrip("\n").split("\n")


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_a_long_answer_is_wrapped_between_words_on_a_terminal(columns: int) -> None:
    lines = printed(columns)

    assert max(map(len, lines)) <= columns
    assert " ".join(lines).split() == " ".join(LINES).split()
    assert "short" in lines


def test_an_answer_is_whole_in_a_pipe() -> None:
    assert printed(None) == list(LINES)


@pytest.mark.parametrize("columns", [None, 40])
def test_an_answer_as_json_is_the_report(columns: int | None) -> None:
    assert json.loads("".join(printed(columns, as_json=True))) == [1]


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 clips"), (1, "1 clip"), (2, "2 clips"), (2000, "2,000 clips")]
)
def test_one_of_a_thing_is_singular(number: int, said: str) -> None:
    assert counted(number, "clip") == said
