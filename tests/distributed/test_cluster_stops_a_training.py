"""A real training on two ranks is seen, looked into and stopped over ssh, and has saved."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forked_runs import Forks
from tests.ssh_hosts import fake, serving
from tests.trainer.shards_for_tests import TINY, make_shards, settings
from trainer.__main__ import main
from trainer.health.watch import heartbeat
from trainer.run_folder import metrics, process_records


@pytest.fixture(params=[pytest.param("sshd", marks=pytest.mark.engine), "a program that stands for ssh"])
def ssh(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The ssh command that knows the host a."""
    folder = tmp_path_factory.mktemp("hosts")
    if request.param != "sshd":
        yield fake(folder).ssh
        return
    with serving(folder) as cluster:
        yield cluster.ssh


def test_a_training_is_seen_looked_into_and_stopped_and_has_saved(
    ssh: str, forks: Forks, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(*words: str) -> str:
        assert main(["cluster", words[0], "a", "--ssh", ssh, "--run", str(run), *words[1:]]) == 0
        return capsys.readouterr().out

    run = tmp_path / "run"
    shards = make_shards(tmp_path / "shards")
    many = settings(shards, run, "stages.0.steps=1000000", "sample=null")
    started = forks.start([str(TINY), *(word for value in many for word in ("--set", value))], ranks=2)
    until = time.monotonic() + 300
    while len(metrics.read_metrics(run / metrics.METRICS)) < 2 or len(heartbeat.read_heartbeat(run)) < 2:
        assert time.monotonic() < until, started.text()
        time.sleep(0.05)

    lines = " ".join(ask("status", "--seconds", "0").split())
    assert re.search(rf"rank 0 pid {started.pids[0]} \w+ (\d+ children )?step \d+ ", lines)
    ask("dump", "--apart-seconds", "0.5", "--to", str(tmp_path / "dump"))
    assert "trainer/train.py" in (tmp_path / "dump" / "first.txt").read_text()
    reported = ask("stop", "--grace-seconds", "60")

    assert started.codes() == [75, 75]
    last = int((run / "LATEST").read_text().removeprefix("step-"))
    assert metrics.read_metrics(run / metrics.METRICS)[-1]["step"] == last
    assert (
        reported.splitlines()[-1] == f"nothing of the run is left; its newest checkpoint is step-{last:08d}"
    )
    assert process_records.read_records(run) == []
