"""`launch --hostfile`: ranks over a real ssh to a real sshd on a loopback port, with keys of its own."""

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.forked_runs import Forked, Forks
from tests.patched_ranks import ENDLESS, patched, with_variable
from tests.ssh_hosts import Cluster, serving, with_hosts_that_fail
from tests.trainer.shards_for_tests import command_words, make_shards, numbers
from trainer.cluster.hostfile import Host, read_hosts
from vidcurate.errors import InputError

LIMIT_SECONDS = 300.0
STEPS = ("stages.0.steps=3", "stages.0.checkpoint_every=3", "sample=null")
MANY = ("stages.0.steps=100000", "sample=null")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with serving(tmp_path_factory.mktemp("ssh")) as served:
        yield served


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("made") / "shards")


@dataclass(frozen=True)
class Launches:
    """Starts `python -m trainer launch` on hosts of the cluster, in a process that has loaded torch."""

    forks: Forks
    cluster: Cluster
    shards: Path

    def start(
        self, run: Path, hosts: str, *more: str, options: tuple[str, ...] = (), **environment: str
    ) -> Forked:
        hostfile = run.with_suffix(".hosts")
        hostfile.write_text(hosts)
        words = command_words(self.shards, run, "stages.0.data.micro_batches_per_step=2", *more)
        words += ["--hostfile", str(hostfile), "--ssh", self.cluster.ssh, *options]
        return self.forks.start(["launch", *words], NCCL_DEBUG="it is passed on", **environment)


@pytest.fixture
def launches(forks: Forks, cluster: Cluster, shards: Path) -> Launches:
    return Launches(forks=forks, cluster=cluster, shards=shards)


def wait_for_steps(run: Path, launched: Forked, steps: int) -> None:
    until = time.monotonic() + LIMIT_SECONDS
    while len(numbers(run)) < steps:
        assert is_alive(launched.pids[0]), launched.text()
        assert time.monotonic() < until
        time.sleep(0.05)


def ranks(run: Path) -> dict[int, int]:
    """Return rank → process id, as their logs say it."""
    heads = [path.read_text().splitlines()[0] for path in sorted((run / "logs").glob("rank-*.log"))]
    assert len(heads) == 2  # a rank alone keeps its terminal
    return {number: int(head.rpartition(" ")[2]) for number, head in enumerate(heads)}


def is_alive(process: int) -> bool:
    with suppress(FileNotFoundError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.engine
def test_a_signal_lets_every_rank_of_two_hosts_save_and_leave(launches: Launches, tmp_path: Path) -> None:
    run = tmp_path / "run"
    launched = launches.start(run, "a slots=1\nb  # the other\n", *MANY)
    wait_for_steps(run, launched, 2)
    processes = ranks(run)

    os.kill(launched.pids[0], signal.SIGINT)

    assert launched.codes() == [75], launched.text()
    assert "SIGTERM: saved " in launched.text()
    assert "2 hosts, 2 ranks, master 127.0.0.1:" in launched.text()
    assert "SIGINT: every rank saves and leaves" in launched.text()
    assert (
        launched.text()
        .rstrip()
        .endswith("interrupted; the same command continues from the newest checkpoint")
    )
    assert not any(map(is_alive, processes.values()))
    saved = (run / "LATEST").read_text().strip()
    assert numbers(run)[-1]["step"] == int(saved.removeprefix("step-"))
    first, second = (path.read_text() for path in sorted((run / "logs").iterdir()))
    assert "rank 0 of 2" in first
    assert re.search(r"step 1/100000  loss", first)
    assert "rank 1 of 2" in second


@pytest.mark.engine
def test_a_second_ctrl_c_ends_the_ranks_of_two_hosts_at_once(launches: Launches, tmp_path: Path) -> None:
    """The ranks are in a step that never ends, and have decode workers: only the second can end them."""
    run = tmp_path / "run"
    marked = patched(tmp_path / "patch", ENDLESS, PYTHONMARK=str(tmp_path))
    launched = launches.start(run, "a slots=1\nb\n", *MANY, "loader.num_workers=1", **marked)
    wait_for_steps(run, launched, 2)
    processes = ranks(run)
    assert len(with_variable("PYTHONMARK", str(tmp_path))) > 4  # ssh, ranks and decode workers

    os.kill(launched.pids[0], signal.SIGINT)
    until = time.monotonic() + LIMIT_SECONDS
    while "SIGINT: every rank saves and leaves; once more kills them" not in launched.text():
        assert time.monotonic() < until, launched.text()
        time.sleep(0.02)
    assert any(map(is_alive, processes.values()))
    os.kill(launched.pids[0], signal.SIGINT)

    assert launched.codes() == [130], launched.text()
    assert not any(map(is_alive, processes.values()))
    assert launched.text().splitlines()[-1] == (
        "interrupted; the same command continues from the newest checkpoint"
    )
    assert "Traceback" not in launched.text()
    assert not (run / "LATEST").exists()
    while left := with_variable("PYTHONMARK", str(tmp_path)):
        assert time.monotonic() < until, left
        time.sleep(0.02)


@pytest.mark.engine
def test_a_run_over_ssh_ends_well(launches: Launches, tmp_path: Path) -> None:
    launched = launches.start(tmp_path / "run", "a\n", *STEPS)

    assert launched.codes() == [0], launched.text()
    assert "done: 3 steps" in launched.text()
    assert "step 3/3" in launched.text()


@pytest.mark.engine
def test_the_first_rank_that_fails_ends_all_and_is_named(launches: Launches, tmp_path: Path) -> None:
    run = tmp_path / "run"
    launched = launches.start(run, "a\nb\n", *MANY, options=("--restarts", "0"))
    wait_for_steps(run, launched, 2)
    processes = ranks(run)

    os.kill(processes[1], signal.SIGKILL)

    assert launched.codes() == [1]
    errors = [line for line in launched.text().splitlines() if line.startswith("error: ")]
    assert errors[0].startswith("error: b rank 1 was killed by SIGKILL")
    assert not any(map(is_alive, processes.values()))


@pytest.mark.engine
def test_a_launcher_that_is_killed_leaves_no_rank_behind(launches: Launches, tmp_path: Path) -> None:
    run = tmp_path / "run"
    launched = launches.start(run, "a slots=2\n", *MANY)
    wait_for_steps(run, launched, 2)
    processes = ranks(run)

    os.kill(launched.pids[0], signal.SIGKILL)
    launched.codes()

    until = time.monotonic() + LIMIT_SECONDS
    while any(map(is_alive, processes.values())) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(map(is_alive, processes.values()))
    assert (run / "LATEST").exists()  # they saved before they left


@pytest.mark.engine
def test_hosts_that_do_not_answer_are_a_line_each_and_nothing_starts(
    launches: Launches, tmp_path: Path
) -> None:
    with with_hosts_that_fail(launches.cluster) as wider:
        began = time.monotonic()
        given = replace(launches, cluster=wider)
        launched = given.start(
            tmp_path / "run", "a\nsilent\nclosed\nstranger\n", options=("--connect-seconds", "6")
        )
        codes = launched.codes()

    assert time.monotonic() - began < LIMIT_SECONDS
    assert codes == [1]
    lines = launched.text().splitlines()
    assert len(lines) == 3, launched.text()
    assert re.match(r"error: silent: (did not answer within 6 s|.*(timed out|timeout|banner).*)", lines[0])
    assert re.match(r"error: closed: .*Connection refused", lines[1])
    assert re.match(r"error: stranger: .*Permission denied", lines[2])
    assert lines[2].endswith("3 of 4 hosts; nothing was started.")
    assert not (tmp_path / "run").exists()


@pytest.mark.engine
def test_a_refusal_of_the_ranks_is_the_launchers_too(launches: Launches, tmp_path: Path) -> None:
    launched = launches.start(tmp_path / "run", "a\n", "stages.0.data.levels=[7]", *STEPS)

    assert launched.codes() == [2]
    assert "no clip of level 7" in launched.text()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no host"),
        ("# nobody\n", "names no host"),
        ("a\na slots=2\n", ":2: a is there twice"),
        ("a slots=eight\n", ":1: 'a slots=eight'; write a host, or a host and slots=8"),
        ("a slots=0\n", ":1: a has no slots"),
        ("-oProxyCommand=x\n", "write a host"),
    ],
)
def test_a_hostfile_that_makes_no_sense_is_refused_by_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "nodes.txt"
    path.write_text(text)

    with pytest.raises(InputError, match=said):
        read_hosts(path)


def test_a_hostfile_says_hosts_and_slots_and_may_have_comments(tmp_path: Path) -> None:
    path = tmp_path / "nodes.txt"
    path.write_text("# the cluster\n\nuser@node1 slots=8\nnode2 # as many ranks as it has GPUs\n")

    assert read_hosts(path) == (Host(name="user@node1", slots=8), Host(name="node2"))
    with pytest.raises(InputError, match="cannot be read"):
        read_hosts(tmp_path / "nowhere")
