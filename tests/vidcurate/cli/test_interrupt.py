"""Ctrl-C is one line in every command, at every moment."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.forked_runs import Forks
from vidcurate.cli.interrupt import INTERRUPTED
from vidcurate.curation.demo_data import write as demo_data_write
from vidcurate.executor import child_processes

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


# Send this process a Ctrl-C when the function of PYTHONINTERRUPT (MODULE:NAME) is called.
AT_CALL = """
import os, signal, sys

def profile(frame, event, argument):
    called = f"{frame.f_globals.get('__name__')}:{frame.f_code.co_name}"
    if event == "call" and called == os.environ["PYTHONINTERRUPT"]:
        sys.setprofile(None)
        os.kill(os.getpid(), signal.SIGINT)

if "vidcurate" in sys.orig_argv:
    sys.setprofile(profile)
"""


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Path:
    """A run of one row without a video."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "table.csv").write_text("path,text\na.mp4,a red ball\n")
    forks.call("vidcurate ingest table.csv --out run", folder)
    return folder / "run"


@pytest.mark.parametrize(
    ("command", "function"),
    [
        ("inspect", "vidcurate.cli.main:main"),
        ("inspect", "typer.core:parse_args"),
        ("inspect", "vidcurate.cli.common:invoke"),
        ("inspect", "polars.io.scan_options.cast_options:_default"),  # polars calls it from Rust
        # while a class is made in an import of the command: Python makes a RuntimeError of the exception
        ("what-if", "pydantic._internal._decorators:__set_name__"),
    ],
)
def test_ctrl_c_in_a_function_is_one_line(
    tmp_path: Path, run_folder: Path, command: str, function: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(AT_CALL)

    ended = subprocess.run(
        [sys.executable, "-m", "vidcurate", command, str(run_folder)],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PYTHONINTERRUPT": function},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert (ended.returncode, ended.stderr) == (130, f"{INTERRUPTED}\n")


# Send this process a Ctrl-C when Python imports its site module, before the program's first line.
AT_SITE = """
import os, signal
os.kill(os.getpid(), signal.SIGINT)
"""


def test_ctrl_c_before_the_first_line_of_a_worker_or_of_the_trainer_is_held_back(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(AT_SITE)
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}

    child = child_processes.start_child(
        lambda _: ["-c", child_processes.ignoring([signal.SIGINT]) + "print('runs')"], env=environment
    )
    assert child["process"].wait(60) == 0
    child["channel"].close()

    program = "from vidcurate.cli import trainer_commands; trainer_commands.start(['--help'])"
    trainer = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {program}"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (trainer.returncode, trainer.stderr) == (130, f"{INTERRUPTED}\n")


def test_ctrl_c_in_a_stage_and_in_its_starting_workers_is_one_line(tmp_path: Path, forks: Forks) -> None:
    """A terminal sends Ctrl-C to the whole process group: the workers, too, while Python starts in them."""
    demo_data_write.write_demo_data(tmp_path / "data", clips=12)
    run = tmp_path / "run"
    forks.call("vidcurate ingest data/captions.csv --videos data/videos --out run", tmp_path)

    process = subprocess.Popen(
        [sys.executable, "-m", "vidcurate", "probe", str(run), "--level", "full", "--workers", "4"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    until = time.monotonic() + 300
    while len(children.read_text().split()) < 2 and time.monotonic() < until:
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGINT)

    assert process.communicate(timeout=300)[1] == f"{INTERRUPTED}\n"
    assert process.returncode == 130
    assert not (run / "probe.parquet").exists()
    forks.call("vidcurate probe run", tmp_path)


# Send the process group a Ctrl-C when a worker of joblib's pool imports its first module.
AT_POOL = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "joblib.externals.loky":
            os.killpg(os.getpgrp(), signal.SIGINT)

if "joblib.externals.loky.backend.popen_loky_posix" in sys.orig_argv:
    sys.meta_path.insert(0, Finder())
"""


@pytest.fixture(scope="module")
def probed_run(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Path:
    """A run of demo clips that are probed and in shards."""
    folder = tmp_path_factory.mktemp("probed")
    demo_data_write.write_demo_data(folder / "data", clips=12)
    for command in (
        "ingest data/captions.csv --videos data/videos --out run",
        "probe run",
        "score run",
        "filter run",
        "split-by-difficulty run --levels 1",
        "build-shards run --set max_clips=2",
    ):
        forks.call(f"vidcurate {command}", folder)
    return folder / "run"


@pytest.mark.parametrize("words", ["build-shards RUN --out RUN/other --set max_clips=2", "verify RUN/shards"])
def test_ctrl_c_in_a_starting_pool_is_one_line(
    tmp_path: Path, probed_run: Path, forks: Forks, words: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(AT_POOL)
    command = words.replace("RUN", str(probed_run))

    ended = subprocess.run(
        [sys.executable, "-m", "vidcurate", *command.split(), "--workers", "4"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        start_new_session=True,
        check=False,
    )

    assert (ended.returncode, ended.stderr) == (130, f"{INTERRUPTED}\n")
    forks.call(f"vidcurate {command}", tmp_path)
