"""A slow rank, a clock that is set, an Xid: each is an event with rank, host and step, and acts as asked."""

import os
import time
from pathlib import Path

import pytest

from tests.forked_runs import Forks, program
from tests.trainer.shards_for_tests import command_words, events, make_shards
from tests.watch_faults import faulty, wait_for_steps
from trainer.cli import exit_codes
from trainer.run_folder import layout as run_folder_layout
from trainer.run_folder import metrics, process_table
from trainer.run_folder.checkpoint import checkpoint

SPEC = ("sample=null", "stages.0.checkpoint_every=1000", "loader.num_workers=0", "watch.stall_seconds=8")
SMI = """<?xml version="1.0" ?><nvidia_smi_log><driver_version>570.1</driver_version>
<gpu id="00000000:3B:00.0"><product_name>NVIDIA Fake</product_name></gpu></nvidia_smi_log>"""


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("watched") / "shards", num_clips=6)


def test_a_rank_slower_than_the_others_is_named_with_what_it_is_slow_at(
    forks: Forks, shards: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    words = command_words(shards, run, *SPEC, "stages.0.steps=16")
    with faulty(forks, words, "is_slow", rank=1, ranks=3, slow_rank_steps=8) as started:
        started.succeed()

    (slow,) = events(run, "slow_rank")  # one event for two windows
    assert (slow["rank"], slow["host"], slow["by"]) == (1, process_table.host_name(), "compute")
    assert (slow["step"], slow["steps"], slow["policy"]) == (8, 8, "warn")
    assert slow["factor"] > 1.5
    assert slow["compute_seconds"] > 0.4
    lines = metrics.read_metrics(run / metrics.METRICS)
    slowest = [line["rank_seconds"]["slowest"] for line in lines]
    assert slowest.count(1) > len(lines) / 2  # not in every one: other work may hold up any rank once
    least, middle, most = lines[-1]["rank_seconds"]["compute"]
    assert least <= middle < most
    assert f"step 8: rank 1 on {slow['host']} takes {slow['factor']:.2f} times as long" in started.text()


@pytest.mark.parametrize(("policy", "code"), [("restart", exit_codes.RESTART), ("stop", exit_codes.HALT)])
def test_a_slow_rank_can_end_the_run_with_all_of_it_saved(
    forks: Forks, shards: Path, tmp_path: Path, policy: str, code: int
) -> None:
    more = ("stages.0.steps=24", f"watch.on_slow_rank={policy}")
    with faulty(
        forks,
        command_words(shards, tmp_path / "run", *SPEC, *more),
        "is_slow",
        rank=0,
        ranks=2,
        slow_rank_steps=4,
    ) as started:
        assert started.codes() == [code, code], started.text()
    (stop,) = events(tmp_path / "run", "stop")
    assert (stop["signal"], stop["step"]) == ("slow_rank", 5)
    assert checkpoint.load(tmp_path / "run").path.name == run_folder_layout.folder_name(5)


def test_a_clock_that_steps_back_is_reported_with_its_host_and_what_to_do(
    forks: Forks, shards: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    words = command_words(shards, run, *SPEC, "stages.0.steps=60")
    with faulty(forks, words, "has_a_clock_that_is_set_back", rank=0, ranks=2) as started:
        started.succeed()
    (step,) = events(run, "clock_step")
    assert step["seconds"] == pytest.approx(-17.0, abs=0.1)
    assert step["host"] == process_table.host_name()
    assert "chronyd" in step["advice"]
    assert 0 < step["step"] < 60
    assert "the clock was set back by 17.0" in started.text()


@pytest.mark.soak
@pytest.mark.parametrize(
    ("number", "action", "codes"),
    [
        (79, "drain_node", [exit_codes.BAD_NODE, exit_codes.RESTART]),
        (94, "restart_job", [exit_codes.RESTART, exit_codes.RESTART]),
    ],
)
def test_an_xid_in_the_kernels_log_ends_the_run_as_its_policy_says(
    forks: Forks, shards: Path, tmp_path: Path, number: int, action: str, codes: list[int]
) -> None:
    run, tools, log = tmp_path / "run", tmp_path / "bin", tmp_path / "kernel.log"
    tools.mkdir()
    log.write_text("[    1.5] NVRM: Xid (PCI:0000:3b:00): 13, of before the run\n")
    (tmp_path / "smi.xml").write_text(SMI)
    for name, file in (("nvidia-smi", tmp_path / "smi.xml"), ("dmesg", log)):
        (tools / name).write_text(f"#!/bin/sh\necho >>{tmp_path / name}.looks\nexec cat {file}\n")
        (tools / name).chmod(0o755)
    words = command_words(shards, run, *SPEC, "stages.0.steps=4000", "preflight.at_start=false")
    given = program("from trainer.health.watch import spec; spec.HARDWARE_SECONDS = 0.5", words)
    started = forks.start(given, ranks=2, PATH=f"{tools}:{os.environ['PATH']}")
    wait_for_steps(run, 3)
    looks = tmp_path / "dmesg.looks"
    until = time.monotonic() + 300
    while (looks.stat().st_size if looks.exists() else 0) < 2:  # the watcher has looked once to its end
        assert time.monotonic() < until, started.text()
        time.sleep(0.05)

    with log.open("a") as kernel:
        kernel.write(f"[    2.5] NVRM: Xid (PCI:0000:3b:00): {number}, pid=7, it broke\n")

    assert started.codes() == codes, started.text()
    (event,) = events(run, "xid")
    assert (event["number"], event["action"], event["bus_id"]) == (number, action, "0000:3b:00")
    assert event["host"] == process_table.host_name()
    assert event["step"] >= 1
    assert f"error: rank 0 ends: Xid {number} on 0000:3b:00 on {process_table.host_name()}" in started.text()
