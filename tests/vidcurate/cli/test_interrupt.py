"""Ctrl-C is one line in every command, at every moment."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vidcurate.cli.interrupt import INTERRUPTED
from vidcurate.curation.demo_data import write as demo_data_write

ROOT = Path(__file__).resolve().parents[3]
# Send this process a Ctrl-C when the module of PYTHONINTERRUPT is imported.
AT_IMPORT = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name == os.environ["PYTHONINTERRUPT"]:
            os.kill(os.getpid(), signal.SIGINT)

if "vidcurate" in sys.orig_argv:
    sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize(
    ("command", "module"),
    [
        (["version"], "typer"),
        (["version"], "vidcurate.cli.scores"),
        (["inspect", "nowhere"], "polars"),
        (["report", "nowhere"], "vidcurate.curation.report.build"),
    ],
)
def test_ctrl_c_during_an_import_is_one_line(tmp_path: Path, command: list[str], module: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(AT_IMPORT)

    ended = subprocess.run(
        [sys.executable, "-m", "vidcurate", *command],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PYTHONINTERRUPT": module},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert (ended.returncode, ended.stderr) == (130, f"{INTERRUPTED}\n")


def test_ctrl_c_in_a_stage_and_in_its_starting_workers_is_one_line(tmp_path: Path) -> None:
    """A terminal sends Ctrl-C to the whole process group: the workers, too, while Python starts in them."""
    demo_data_write.write_demo_data(tmp_path / "data", clips=12)
    run = tmp_path / "run"
    table = [str(tmp_path / "data/captions.csv"), "--videos", str(tmp_path / "data/videos")]
    command = [sys.executable, "-m", "vidcurate"]
    subprocess.run([*command, "ingest", *table, "--out", str(run)], check=True, capture_output=True)

    process = subprocess.Popen(
        [*command, "probe", str(run), "--level", "full", "--workers", "4"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    until = time.monotonic() + 60
    while len(children.read_text().split()) < 2 and time.monotonic() < until:
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGINT)

    assert process.communicate(timeout=60)[1] == f"{INTERRUPTED}\n"
    assert process.returncode == 130
    assert not (run / "probe.parquet").exists()
    again = subprocess.run([*command, "probe", str(run)], capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
