"""`cluster status` and `cluster health`: whose GPU, how hard it works, which node is odd, which is bad."""

import copy
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.substitute_ranks import LEAVES_A_CHILD, WAITS, Ranks, ranks_of
from tests.trainer.smi_for_tests import process, put, put_dmesg, put_smi
from trainer.__main__ import main
from trainer.cluster import compare, health, status
from trainer.cluster.ask_nodes import Answer
from trainer.cluster.node import facts
from trainer.cluster.node import health as node_health
from trainer.cluster.node import processes as node_processes
from trainer.cluster.nodes import Node, Way
from trainer.run_folder import process_table

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on PATH, before all others, with a `dmesg` that is silent."""
    folder = put_dmesg(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    with ranks_of(tmp_path / "run") as made:
        yield made


def asked(capsys: Capture, *words: str) -> dict[str, Any]:
    main(["cluster", *words, "--json"])
    node: dict[str, Any] = json.loads(capsys.readouterr().out)["nodes"][0]
    return node


def test_a_process_on_a_gpu_has_its_run_rank_and_user(tools: Path, ranks: Ranks, capsys: Capture) -> None:
    first, second = ranks.start(WAITS, LEAVES_A_CHILD)
    child = int((ranks.run / "child").read_text())
    put_smi(
        tools, {"processes": process(first)}, {"processes": process(second) + process(child) + process(1)}
    )

    node = asked(capsys, "status", "local", "--seconds", "0", "--run", str(ranks.run))

    shown = [
        (one["pid"], one["run"], one["rank"], one["worker_of"])
        for gpu in node["gpus"]
        for one in gpu["processes"]
    ]
    run = str(ranks.run)
    assert shown == [
        (first, run, 0, None),
        (second, run, 1, None),
        (child, run, 1, second),
        (1, None, None, None),
    ]
    # Other runs may train on this machine.
    mine = [(one["rank"], one["num_workers"]) for one in node["runs"] if one["run"] == run]
    assert mine == [(0, 0), (1, 1)]
    assert node["gpus"][0]["processes"][0]["user"] == process_table.user_name(os.getuid())
    main(["cluster", "status", "local", "--seconds", "0", "--run", run])
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 100 for line in lines if run not in line)
    assert any(f"{child}: worker of rank 1 of " in line for line in lines)


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("python3 -u -m trainer recipes/smoke.yaml --set output=runs/a", ("runs/a", None)),
        ("/x/.venv/bin/python -m trainer recipes/smoke.yaml", ("recipes/smoke.yaml", None)),
        ("python3 -m trainer --set output=runs/b recipes/smoke.yaml", ("runs/b", None)),
        ("python -m trainer cluster status local", None),
        ("python -m trainer launch recipes/smoke.yaml --set output=runs/a", None),
        ("python -m trainer inspect runs/a", None),
        ("vim -m trainer.yaml", None),
    ],
)
def test_a_run_without_records_is_recognised_by_its_command_line(command: str, named: Any) -> None:
    seen = node_processes.Process(
        pid=2**22 + 1, start_time=1, parent=1, state="S", user="alice", command=command
    )
    assert node_processes.named_run(seen) == named


def test_a_launcher_is_not_taken_for_its_ranks() -> None:
    words = "python -m trainer recipes/smoke.yaml --set output=runs/a"
    seen = {
        pid: node_processes.Process(
            pid=pid, start_time=1, parent=parent, state="S", user="alice", command=command
        )
        for pid, parent, command in (
            (2**22 + 1, 1, words),
            (2**22 + 2, 2**22 + 1, words),
            (2**22 + 3, 2**22 + 2, "python -c worker"),
        )
    }
    found = node_processes.trainings(seen, [])
    assert {
        pid - 2**22: named["worker_of"] and named["worker_of"] - 2**22 for pid, named in found.items()
    } == {2: None, 3: 2}


# ── what is off the others ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def document(tools: Path, capsys: Capture) -> dict[str, Any]:
    """What a node with two GPUs at work answers."""
    put_smi(tools, {}, {})
    node = asked(capsys, "status", "local", "--seconds", "0")
    for gpu in node["gpus"]:
        gpu.update(sm_clock_mhz=1755.0, power_watts=650.0, temperature_celsius=60.0, utilisation_percent=98.0)
    node["machine"]["load"] = 0.2 * node["machine"]["cores"]
    node["network"] = {
        "mlx5_0/1": {"kind": "infiniband", "state": "ACTIVE", "new_errors": {}}
        | {"received_bytes_per_second": 9e9, "sent_bytes_per_second": 9e9}
    }
    return node


def off(document: dict[str, Any], **changes: Any) -> list[str]:
    """Return what is off the node `odd` among three that are equal but for the changes to its GPU 1."""
    odd = copy.deepcopy(document)
    odd["gpus"][1].update(changes)
    found = compare.off_the_median({"a": document, "b": document, "odd": odd})
    assert found["a"] == found["b"] == []
    return found["odd"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"sm_clock_mhz": 1200.0, "throttle_reasons": ["hw_thermal_slowdown"]},
            "GPU 1: SM clock 1,200 MHz, the others' median is 1,755 (hw_thermal_slowdown)",
        ),
        ({"power_watts": 90.0}, "GPU 1: power 90 W, the others' median is 650"),
        ({"temperature_celsius": 81.0}, "GPU 1: temperature 81 C, the others' median is 60"),
        ({"utilisation_percent": 0.0}, "GPU 1: utilisation 0 %, the others' median is 98"),
        ({"memory_used_bytes": 80 * 2**30}, "GPU 1: memory held 80 GiB, the others' median is 0.00391"),
    ],
)
def test_a_gpu_off_the_median_of_the_other_nodes_is_named_with_its_reason(
    document: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    assert off(document, **changes) == [said]


def test_small_differences_and_readings_that_are_not_there_are_not_odd(document: dict[str, Any]) -> None:
    assert off(document, sm_clock_mhz=1710.0, power_watts=610.0, temperature_celsius=70.0) == []
    assert off(document, sm_clock_mhz=None, power_watts=None) == []


def test_a_node_with_another_driver_load_network_or_a_link_down_is_odd(document: dict[str, Any]) -> None:
    odd = copy.deepcopy(document)
    odd["driver"] = "535.1"
    odd["gpus"].pop()
    odd["machine"]["load"] = 3.0 * odd["machine"]["cores"]
    odd["network"]["mlx5_0/1"] |= {"state": "DOWN", "received_bytes_per_second": 1e6}

    assert compare.off_the_median({"a": document, "b": document, "odd": odd})["odd"] == [
        "load per core 3, the others' median is 0.2",
        "received 1 MB/s, the others' median is 9,000",
        "driver 535.1, the others have 580.159.04",
        "number of GPUs 1, the others have 2",
        "mlx5_0/1: the link is DOWN",
    ]


def test_of_two_nodes_neither_is_odd(document: dict[str, Any]) -> None:
    cold = copy.deepcopy(document)
    cold["gpus"][0]["sm_clock_mhz"] = 300.0
    assert compare.off_the_median({"a": document, "b": cold}) == {"a": [], "b": []}


def test_the_odd_node_is_marked_in_the_table(document: dict[str, Any]) -> None:
    document["off"] = ["GPU 1: power 90 W, the others' median is 650"]
    text = status.to_text([Answer(node=Node(name="n1", through="ssh"), document=document, seconds=1.0)])
    assert "\n  ! GPU 1: power 90 W, the others' median is 650\n" in text
    assert "net mlx5_0/1: 8.4 GiB/s in, 8.4 GiB/s out" in text


# ── health ──────────────────────────────────────────────────────────────────────────────────────────────────


def verdict(capsys: Capture, *words: str) -> tuple[int, str]:
    code = main(["cluster", "health", "local", "--min-disk-gib", "0", *words])
    return code, capsys.readouterr().out


@pytest.mark.parametrize(
    ("gpu", "code", "said"),
    [
        ({}, 0, "no node is bad"),
        ({"remap_pending": "Yes"}, 77, "drain_node: GPU 0: a memory row waits to be replaced"),
        ({"remap_failure": "Yes"}, 77, "drain_node: GPU 0: a memory row could not be replaced"),
        ({"uncorrected": "2"}, 77, "drain_node: GPU 0: 2 memory errors that ECC could not correct"),
        ({"hw_slowdown": "Active"}, 0, "warn: GPU 0: runs slower (hw_slowdown)"),
        ({"width": "8x"}, 0, "warn: GPU 0: PCIe x8 of x16"),
    ],
)
def test_the_verdict_follows_the_policy_of_what_the_driver_says(
    tools: Path, capsys: Capture, gpu: dict[str, str], code: int, said: str
) -> None:
    put_smi(tools, gpu)
    ended, out = verdict(capsys)
    assert ended == code
    assert said in out


def test_xids_of_the_kernel_log_are_counted_and_checked(tools: Path, capsys: Capture) -> None:
    put_smi(tools, {})
    put_dmesg(
        tools,
        "[  100.000000] NVRM: Xid (PCI:0000:41:00): 31, pid=1, name=python, Ch 00000008, intr 00000000.",
        "[  200.000000] NVRM: Xid (PCI:0000:41:00): 31, pid=1, name=python, Ch 00000008, intr 00000000.",
        "[  300.000000] NVRM: Xid (PCI:0000:41:00): 45, pid=1, name=python, Ch 00000008",
        "[  400.000000] NVRM: Xid (PCI:0000:42:00): 79, GPU has fallen off the bus.",
    )
    code, out = verdict(capsys)

    assert code == 77
    text = " ".join(out.split())
    assert re.search(r"restart_job: Xid 31 2 times on 0000:41:00, last .+ ago: a program read or wrote", text)
    assert re.search(r"drain_node: Xid 79 on 0000:42:00, last .+ ago: the GPU has fallen off the bus", text)
    assert "Xid 45" not in text


def test_a_driver_that_hangs_costs_its_limit_and_the_node_is_bad(tools: Path, capsys: Capture) -> None:
    put(tools, "nvidia-smi", "exec sleep 1000")
    began = time.monotonic()

    code, out = verdict(capsys, "--limit-seconds", "1", "--connect-seconds", "2.5")

    assert code == 77
    assert "drain_node: nvidia-smi: no answer within" in out
    assert time.monotonic() - began < 300


def test_a_disk_that_is_too_full_makes_a_node_bad(capsys: Capture, tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free / 2**30
    code = main(["cluster", "health", "local", "--min-disk-gib", str(free + 1000), "--run", str(tmp_path)])
    assert code == 77
    assert "GiB free of " in " ".join(capsys.readouterr().out.split())


def answered(name: str, num_gpus: int, slots: int | None = None) -> Answer:
    said = {"num_gpus": num_gpus, "concerns": [], "gpu_name": "NVIDIA H200", "driver": "1", "not_read": []}
    return Answer(node=Node(name=name, through="ssh", slots=slots), document=said, seconds=1.0)


@pytest.mark.parametrize(
    ("counts", "slots", "bad"),
    [
        ((8, 8, 7), None, ["n2"]),
        ((8, 8, 0), None, ["n2"]),
        ((8, 7, 7), 8, ["n1", "n2"]),  # the hostfile says it, whatever the others have
        ((0, 0, 0), 8, []),  # ranks on CPUs
        ((8, 4), None, []),  # two different machines: neither is wrong
    ],
)
def test_a_node_with_fewer_gpus_than_the_others_or_its_slots_is_bad(
    monkeypatch: pytest.MonkeyPatch, counts: tuple[int, ...], slots: int | None, bad: list[str]
) -> None:
    given = [answered(f"n{number}", count, slots) for number, count in enumerate(counts)]
    monkeypatch.setattr(health, "ask_nodes", lambda *_, **__: given)

    answers = health.health([], Way(), [], 0, 1.0)

    assert health.bad_nodes(answers) == bad


# ── what the kernel tells ───────────────────────────────────────────────────────────────────────────────────


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")


def test_ports_are_read_in_bytes_and_become_rates_and_new_errors(tmp_path: Path) -> None:
    write(tmp_path / "class/net/lo/statistics", rx_bytes="9")
    write(
        tmp_path / "class/net/eth0/statistics", rx_bytes="1000", tx_bytes="500", rx_errors="3", rx_dropped="0"
    )
    (tmp_path / "class/net/eth0/operstate").write_text("up\n")
    write(tmp_path / "class/net/eth1/statistics", rx_bytes="1")
    (tmp_path / "class/net/eth1/operstate").write_text("down\n")
    port = tmp_path / "class/infiniband/mlx5_0/ports/1"
    write(port, state="4: ACTIVE", rate="400 Gb/sec (4X NDR)")
    write(port / "counters", port_rcv_data="250", port_xmit_data="100", symbol_error="1")
    before = facts.ports(tmp_path)
    (tmp_path / "class/net/eth0/statistics/rx_bytes").write_text("3000\n")
    (tmp_path / "class/net/eth0/statistics/tx_bytes").write_text("100\n")  # it began anew
    (port / "counters/port_rcv_data").write_text("750\n")
    (port / "counters/symbol_error").write_text("5\n")

    rates = facts.port_rates(before, facts.ports(tmp_path), 2.0)

    assert set(rates) == {"eth0", "mlx5_0/1"}
    assert rates["eth0"]["received_bytes_per_second"] == 1000.0
    assert rates["eth0"]["sent_bytes_per_second"] is None
    assert rates["eth0"]["new_errors"] == {}
    assert rates["mlx5_0/1"]["received_bytes_per_second"] == 500 * 4 / 2.0
    assert rates["mlx5_0/1"]["new_errors"] == {"symbol_errors": 4}
    assert rates["mlx5_0/1"]["state"] == "ACTIVE"


def test_a_card_that_is_gone_from_the_bus_is_seen_without_the_driver(tmp_path: Path) -> None:
    devices = tmp_path / "bus/pci/devices"
    write(devices / "0000:41:00.0", vendor="0x10de", **{"class": "0x030200", "revision": "0xa1"})
    write(devices / "0000:42:00.0", vendor="0x10de", **{"class": "0x030200", "revision": "0xff"})
    write(devices / "0000:43:00.0", vendor="0x10de", **{"class": "0x068000", "revision": "0xa1"})  # a switch
    write(devices / "0000:44:00.0", vendor="0x8086", **{"class": "0x030000", "revision": "0x01"})

    assert node_health.pci_gpus(tmp_path) == {"0000:41:00.0": True, "0000:42:00.0": False}


def test_the_kernels_memory_and_cpu_are_read(tmp_path: Path) -> None:
    memory = facts.memory()
    assert 0 < memory["available_bytes"] < memory["total_bytes"]
    worked, total = facts.cpu_ticks()
    assert 0 < worked < total
    assert facts.disk(tmp_path)["free_bytes"] > 0
    assert facts.disk(tmp_path / "not" / "yet")["is_writable"] is True
