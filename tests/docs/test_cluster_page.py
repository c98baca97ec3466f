"""docs/cluster.md shows what its commands print, of a real training on three hosts."""

import getpass
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.test_documented import DOCS, console
from tests.ssh_hosts import named
from tests.trainer.shards_for_tests import TINY, make_shards, settings
from tests.trainer.smi_for_tests import process, put, put_dmesg, xml
from trainer.__main__ import main
from trainer.run_folder import metrics, process_records

NODES = ("node1", "node2", "node3")
LIMIT_SECONDS = 300.0
GOOD = {"power": "655.10 W", "temperature": "58 C"}
HOT = {"power": "410.25 W", "temperature": "86 C", "hw_slowdown": "Active", "remap_pending": "Yes"}


def put_gpus(folder: Path, gpu: dict[str, str], pid: int) -> None:
    """Write tools of a node with one GPU, which the process is on."""
    put_dmesg(folder)
    (folder / "smi.xml").write_text(xml(gpu | {"processes": process(pid)}))
    put(folder, "nvidia-smi", f"cat {folder}/smi.xml")


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> "Iterator[subprocess.Popen[bytes]]":
    """A folder with nodes.txt, and runs/first in training on three nodes, of which node3 has become hot."""
    # A short name, so that no line of the page is cut.
    with tempfile.TemporaryDirectory(prefix="c-", ignore_cleanup_errors=True) as name:
        yield from training_in(named(Path(name)), monkeypatch)


def training_in(path: Path, monkeypatch: pytest.MonkeyPatch) -> "Iterator[subprocess.Popen[bytes]]":
    run = path / "runs" / "first"
    for name in NODES:
        (path / name).mkdir()
    (path / "nodes.txt").write_text("node1 slots=1\nnode2 slots=1\nnode3 slots=1\nnode4 slots=1\n")
    (path / "three.txt").write_text("node1\nnode2\nnode3\n")
    monkeypatch.chdir(path)
    monkeypatch.setenv("PYTHONPATH", str(TINY.parents[1]))
    monkeypatch.setenv("PATH", f"{path}:{os.environ['PATH']}")
    shards = make_shards(path / "shards")
    given = settings(
        shards, run, "stages.0.steps=1000000", "stages.0.data.micro_batches_per_step=3", "sample=null"
    )
    words = [word for value in given for word in ("--set", value)]
    launch = [sys.executable, "-m", "trainer", "launch", str(TINY), "--hostfile", "three.txt", *words]
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    with (path / "said").open("w") as said:
        launched = subprocess.Popen(launch, stdout=said, stderr=said, env=environment)
    try:
        until = time.monotonic() + LIMIT_SECONDS
        while not (run / metrics.METRICS).exists() or len(metrics.read_metrics(run / metrics.METRICS)) < 3:
            assert launched.poll() is None, (path / "said").read_text()
            assert time.monotonic() < until
            time.sleep(0.1)
        for record in process_records.read_records(run):
            put_gpus(path / record.host, HOT if record.host == "node3" else GOOD, record.pid)
        yield launched
    finally:
        launched.kill()
        launched.wait()
        for record in filter(
            process_records.is_alive, process_records.read_records(run)
        ):  # of a test that failed
            os.kill(record.pid, signal.SIGKILL)


def plain(text: str) -> str:
    """Return the text with every number, its unit's thousands and its signs as one, and single spaces."""
    text = re.sub(r"\d[\d.,]*", "0", text)
    text = re.sub(r"[KMGT]i?B\b", "B", text)
    return " ".join(re.sub(r"[+-]0", "0", text).split())


CODES = {"status": 1, "health": 77, "dump": 1, "stop": 1}


@pytest.mark.soak
def test_the_commands_of_the_page_print_what_it_shows(
    launched: "subprocess.Popen[bytes]", capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path.cwd()
    commands = console(DOCS / "cluster.md")
    assert [line.split()[4] for line, _ in commands] == list(CODES)

    for line, shown in commands:
        python, flag, module, *words = shlex.split(line)
        assert (python, flag, module) == ("python", "-m", "trainer")
        if words[1] == "dump":
            os.kill(process_records.read_records(folder / "runs" / "first")[1].pid, signal.SIGSTOP)
            time.sleep(1.0)  # until the others wait for it
        assert main(words) == CODES[words[1]]
        out = capsys.readouterr().out
        print(f"$ {line}\n{out}")
        printed = plain(out.replace(str(folder), "/data").replace(getpass.getuser(), "alice"))
        assert shown
        for wanted in filter(None, shown):
            parts = [re.escape(plain(part)) for part in wanted.split("…")]
            assert re.search(".*".join(parts), printed), f"{line}: the page shows {wanted!r}"
    assert launched.wait(LIMIT_SECONDS) == 75, (folder / "said").read_text()
