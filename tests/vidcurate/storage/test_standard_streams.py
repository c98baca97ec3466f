"""Commands whose standard streams are closed, on a full disk, or of a locale without their letters."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PRESETS = ("-m", "vidcurate", "presets")
PROGRAM = """
import os, sys
from vidcurate.storage.standard_streams import open_standard_streams
open_standard_streams()
file = open(sys.argv[1], "w")
os.system("echo of a child; echo of a child >&2")
print("of the command", file=sys.stderr)
print("\\N{RIGHTWARDS ARROW} \\udcff of the command")
file.write(str(file.fileno()))
"""
SHORT = """
import sys
from trainer.cli import commands
sys.exit(commands.run_short_command(lambda: print("the answer")))
"""
LONG = """
import argparse, sys
from trainer.cli import commands
given = argparse.Namespace(traceback=False)
sys.exit(commands.run_long_command(lambda given: print("the answer") or 0, given, "later"))
"""
LINES = """
import sys
from vidcurate.storage.standard_streams import open_standard_streams
open_standard_streams()
for _ in range(2000):
    print("one whole line", file=getattr(sys, sys.argv[1]))
"""


def run(*words: object, streams: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run this Python with `words`, its streams redirected as a shell does."""
    command = ["sh", "-c", f'exec "$0" "$@" {streams}', sys.executable, *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, **environment}
    )


@pytest.mark.parametrize("streams", ["<&- >&- 2>&-", ">&-", "2>&-", "<&-"])
def test_what_a_command_and_its_children_print_lands_in_no_file_of_the_command(
    tmp_path: Path, streams: str
) -> None:
    file = tmp_path / "file"
    ended = run("-c", PROGRAM, file, streams=streams)

    assert ended.returncode == 0, ended.stderr
    assert int(file.read_text()) > 2


def test_letters_that_the_locale_lacks_are_escapes(tmp_path: Path) -> None:
    ended = run("-c", PROGRAM, tmp_path / "file", PYTHONIOENCODING="ascii")

    assert ended.stdout.splitlines()[-1] == r"\u2192 \udcff of the command"


@pytest.mark.parametrize("streams", ["<&- >&-", ">&- 2>&-"])
def test_a_command_with_closed_streams_does_its_work(streams: str) -> None:
    ended = run(*PRESETS, streams=streams)

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("act", [PRESETS, ("-c", SHORT), ("-c", LONG)])
def test_an_answer_on_a_full_disk_is_one_line(act: tuple[str, ...], unbuffered: str) -> None:
    ended = run(*act, streams="> /dev/full", PYTHONUNBUFFERED=unbuffered)

    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1
    assert "No space left on device" in ended.stderr


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_processes_without_buffers_break_no_line_of_each_other(name: str) -> None:
    read, write = os.pipe()
    both = [
        subprocess.Popen([sys.executable, "-u", "-c", LINES, name], stdout=write, stderr=write)
        for _ in range(2)
    ]
    os.close(write)
    with open(read, encoding="utf-8") as pipe:
        lines = pipe.read().splitlines()

    assert [process.wait() for process in both] == [0, 0]
    assert lines == ["one whole line"] * 4000
