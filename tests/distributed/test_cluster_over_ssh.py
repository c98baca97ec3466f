"""`python -m trainer cluster` against hosts that answer, refuse, and never answer, each within its limit.

The hosts are a program that stands for ssh and, in `make test-engines`, real sshds on loopback ports.
"""

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ssh_hosts import Cluster, fake, serving, with_hosts_that_fail
from tests.substitute_ranks import LOOPS, SAVES, WAITS, is_alive, ranks_of
from tests.trainer.smi_for_tests import process, put_smi
from trainer.__main__ import main
from trainer.cluster.nodes import Way

CONNECT_SECONDS = 30.0  # where all say something
BESIDE_SECONDS = 4.0  # where one that never does is asked beside them
SILENT_SECONDS = 1.0  # where it is asked alone
MARGIN_SECONDS = 60.0  # of a machine that does other things; the limits themselves are those of the commands
BANNER = "Authorized use only! {not json} <<<trainer-answer \nno end of line"
NODES = "a,stranger"  # one that answers, one that refuses
SILENT = Way(connect_seconds=SILENT_SECONDS)


@pytest.fixture(
    scope="module", params=[pytest.param("sshd", marks=pytest.mark.engine), "a program that stands for ssh"]
)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The hosts a and b answer, and print before they do; stranger and closed refuse; silent says nothing."""
    folder = tmp_path_factory.mktemp("hosts")
    path = f"{put_smi(folder / 'bin', {'processes': process(1)}, {})}:/usr/bin:/bin"
    if request.param != "sshd":
        yield fake(folder, BANNER, PATH=path)
        return
    with serving(folder, BANNER, PATH=path) as served, with_hosts_that_fail(served) as wider:
        yield wider


class Reported:
    """What a command printed, its exit code, and how long it took."""

    def __init__(self, code: int, out: str, err: str, seconds: float) -> None:
        self.code, self.out, self.err, self.seconds = code, out, err, seconds

    def line(self, begin: str) -> str:
        found = [line for line in self.out.splitlines() if line.startswith(begin)]
        assert len(found) == 1, self.out
        return found[0]


Ask = Callable[..., Reported]


@pytest.fixture
def ask(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Ask:
    def act(command: str, nodes: str, *words: str, connect_seconds: float = CONNECT_SECONDS) -> Reported:
        common = ["--ssh", cluster.ssh, "--connect-seconds", str(connect_seconds)]
        began = time.monotonic()
        code = main(["cluster", command, nodes, *common, *words])
        seconds = time.monotonic() - began
        return Reported(code, *capsys.readouterr(), seconds)

    return act


CheckSilent = Callable[..., None]


@pytest.fixture
def check_silent(ask: Ask) -> CheckSilent:
    """Return a function that checks that a command gives up a host that never answers, at its limit."""

    def check(command: str, *words: str, code: int = 1, limit_seconds: float) -> None:
        reported = ask(command, "silent", *words, connect_seconds=SILENT_SECONDS)
        assert reported.code == code
        assert reported.seconds < limit_seconds + MARGIN_SECONDS
        check_line_of_silent(reported)

    return check


def check_line_of_silent(reported: Reported) -> None:
    line = reported.line("silent")
    assert re.match(r"silent +(bad: )?no answer: .*(did not answer within|timed out|time-?out)", line)


def check_stranger(reported: Reported) -> None:
    assert re.match(r"stranger +(bad: )?no answer: .*Permission denied", reported.line("stranger"))
    # A path that was asked for is never cut.
    assert all(len(line) <= 100 for line in reported.out.splitlines() if not line.startswith("written to"))


def test_status_has_the_gpus_of_a_host_and_a_line_for_each_that_does_not_answer(ask: Ask) -> None:
    reported = ask("status", f"{NODES},silent", "--seconds", "0.2", connect_seconds=BESIDE_SECONDS)

    assert reported.code == 1
    assert reported.seconds < Way(connect_seconds=BESIDE_SECONDS).reach_seconds + MARGIN_SECONDS
    check_stranger(reported)
    check_line_of_silent(reported)
    assert reported.line("a ").startswith("a  2 GPUs, load ")
    assert re.search(r"0 +123/700 +41 +7 +345/1980 +0\.0/140 +- +root 1: ", reported.out)
    assert reported.out.splitlines()[-1] == "1 of 3 nodes answered"


def test_health_calls_a_host_that_does_not_answer_bad(ask: Ask, check_silent: CheckSilent) -> None:
    reported = ask("health", NODES, "--min-disk-gib", "0")

    assert reported.code == 77
    check_stranger(reported)
    assert re.match(r"a  (good|watch): 2 GPUs, NVIDIA H200, driver 580", reported.line("a "))
    assert reported.out.splitlines()[-1] == "1 of 2 nodes are bad: stranger"
    check_silent("health", "--min-disk-gib", "0", code=77, limit_seconds=SILENT.reach_seconds)


def test_stop_lets_the_ranks_save_and_names_the_hosts_that_it_did_not_reach(
    ask: Ask, check_silent: CheckSilent, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with ranks_of(run) as ranks:
        first, second = ranks.start(SAVES, SAVES)
        reported = ask("stop", NODES, "--run", str(run), "--grace-seconds", "60")
        assert not is_alive(first)
        assert not is_alive(second)

    assert reported.code == 1
    check_stranger(reported)
    assert re.match(rf"a  rank 0, pid {first} of \w+: ended after TERM, \d+\.\d s$", reported.line("a "))
    assert f"rank 1, pid {second} of " in reported.out
    assert reported.out.splitlines()[-1].endswith("its newest checkpoint is step-00000007")
    assert "a: TERM to rank 0" in reported.err
    check_silent("stop", "--run", str(run), limit_seconds=SILENT.reach_seconds)


def test_dump_names_the_rank_that_turns_in_a_loop(
    ask: Ask, check_silent: CheckSilent, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with ranks_of(run) as ranks:
        ranks.start(WAITS, LOOPS, WAITS)
        reported = ask(
            "dump", NODES, "--run", str(run), "--apart-seconds", "0.2", "--to", str(tmp_path / "dump")
        )

    assert reported.code == 1
    check_stranger(reported)
    assert re.match(
        r"odd: \S+ rank 1 stands elsewhere than the others, in turns_for_ever ", reported.line("odd")
    )
    assert "rank 0, " in reported.out
    assert "turns_for_ever" in (tmp_path / "dump" / "second.txt").read_text()
    kept = json.loads((tmp_path / "dump" / "dump.json").read_text())
    assert [len(group["processes"]) for group in kept["groups"]] == [2, 1]
    words = ("--run", str(run), "--to", str(tmp_path / "none"))
    check_silent("dump", *words, limit_seconds=SILENT.reach_seconds)
