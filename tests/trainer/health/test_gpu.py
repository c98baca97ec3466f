"""GPU facts, through real programs on PATH that answer, lie or hang; and the Xids of a kernel log."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.trainer.smi_for_tests import process, put, put_dmesg, put_smi
from trainer.cluster.node import processes
from trainer.health import gpu as health_gpu
from trainer.health import timed_command, xid, xid_log


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that comes first on PATH."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def test_a_host_without_the_tool_is_no_fault(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tools))
    if health_gpu.device_files():
        pytest.skip("this host has GPUs")
    found = health_gpu.read_gpus()
    assert (found.has_tool, found.gpus, found.problem) == (False, (), "")
    assert health_gpu.concerns(found) == ()


def test_every_fact_of_a_healthy_gpu_is_read(tools: Path) -> None:
    put_smi(tools, {"processes": process(os.getpid()) + process(4_000_000, memory="N/A")}, {})
    found = health_gpu.read_gpus()
    assert (found.driver, found.cuda, found.problem, len(found.gpus)) == ("580.159.04", "13.0", "", 2)
    gpu = found.gpus[0]
    assert (gpu.name, gpu.bus_id) == ("NVIDIA H200", "00000000:41:00.0")
    assert (gpu.power_watts, gpu.power_limit_watts) == (123.45, 700.0)
    assert (gpu.temperature_celsius, gpu.utilisation_percent) == (41.0, 7.0)
    assert (gpu.sm_clock_mhz, gpu.max_sm_clock_mhz) == (345.0, 1980.0)
    assert gpu.throttle_reasons == ("gpu_idle",)
    assert (gpu.memory_total_bytes, gpu.memory_used_bytes) == (143771 << 20, 4 << 20)
    assert (gpu.ecc_corrected, gpu.ecc_uncorrected, gpu.ecc_uncorrected_ever) == (3, 0, 3)
    assert (gpu.rows_remapped, gpu.remap_pending, gpu.remap_failed) == (1, False, False)
    assert (gpu.pcie_gen, gpu.pcie_gen_max, gpu.pcie_width, gpu.pcie_width_max) == (1, 5, 16, 16)
    ours, theirs = gpu.processes
    assert ours.user is not None
    assert (ours.pid, ours.memory_bytes) == (os.getpid(), 1024 << 20)
    assert (theirs.user, theirs.memory_bytes) == (None, None)
    assert health_gpu.concerns(found) == ()


@pytest.mark.parametrize(
    ("field", "value", "action", "word"),
    [
        ("remap_pending", "Yes", "drain_node", "waits to be replaced"),
        ("remap_failure", "Yes", "drain_node", "could not be replaced"),
        ("reset", "Yes", "drain_node", "asks for a reset"),
        ("uncorrected", "2", "drain_node", "2 memory errors"),
        ("temperature", "GPU is lost", "drain_node", "lost"),
        ("power", "Unknown Error", "warn", "cannot read power_draw"),
        ("hw_slowdown", "Active", "warn", "hw_slowdown"),
        ("width", "8x", "warn", "PCIe x8 of x16"),
    ],
)
def test_what_is_wrong_with_a_gpu_is_named_with_its_policy(
    tools: Path, field: str, value: str, action: str, word: str
) -> None:
    put_smi(tools, {}, {field: value})
    (concern,) = health_gpu.concerns(health_gpu.read_gpus())
    assert (concern.gpu, concern.action) == (1, action)
    assert word in concern.text


def test_missing_and_unsupported_fields_are_none(tools: Path) -> None:
    put(tools, "nvidia-smi", "echo '<?xml version=\"1.0\" ?><nvidia_smi_log><gpu/></nvidia_smi_log>'")
    (gpu,) = health_gpu.read_gpus().gpus
    assert gpu.name == "?"
    assert {gpu.power_watts, gpu.ecc_uncorrected, gpu.remap_pending, gpu.pcie_width} == {None}
    put_smi(tools, {"power": "[N/A]", "uncorrected": "N/A", "remap_pending": "N/A", "width": "N/A"})
    (gpu,) = health_gpu.read_gpus().gpus
    assert (gpu.power_watts, gpu.remap_pending, gpu.pcie_width) == (None, None, None)


@pytest.mark.parametrize(
    ("script", "seconds", "word"),
    [
        ("sleep 600", 0.3, "no answer within 0.3 s"),
        ("sleep 600 & sleep 600", 0.3, "no answer within 0.3 s"),
        ("echo 'Unable to determine the device handle: GPU is lost.'; exit 15", 60, "ended with 15 (Unable"),
        ("echo nonsense", 60, "no XML (nonsense)"),
        ("true", 60, "no XML (empty)"),
    ],
)
def test_a_tool_that_hangs_or_lies_is_one_line_and_drains(
    tools: Path, script: str, seconds: float, word: str
) -> None:
    put(tools, "nvidia-smi", script)
    began = time.monotonic()
    found = health_gpu.read_gpus(seconds=seconds)
    assert time.monotonic() - began < 300
    assert word in found.problem
    assert "\n" not in found.problem
    (concern,) = health_gpu.concerns(found)
    assert (concern.gpu, concern.action) == (None, "drain_node")


def processes_with(word: str) -> list[str]:
    """Return the command lines of the processes that have a word in theirs."""
    return [one.command for one in processes.everything().values() if word in one.command]


def test_nothing_of_a_program_that_hung_is_left(tmp_path: Path) -> None:
    (tmp_path / "quiet").touch()
    said = timed_command.run_command(
        ["sh", "-c", f"tail -f {tmp_path}/quiet & tail -f {tmp_path}/quiet"], 0.5
    )
    assert said.kind == "hung"
    until = time.monotonic() + 30
    while (left := processes_with(str(tmp_path))) and time.monotonic() < until:
        time.sleep(0.05)
    assert left == []


class Dying(subprocess.Popen[bytes]):
    """A process that does not end as it is killed, as one that waits for a dead disk."""

    def kill(self) -> None:
        pass


def test_a_process_that_is_left_behind_is_waited_for_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_command, "LEFT_BEHIND_SECONDS", 0.05)
    dying = Dying(["sleep", "600"])

    timed_command.kill(dying)

    assert dying.returncode is None
    super(Dying, dying).kill()
    until = time.monotonic() + 60
    while os.path.exists(f"/proc/{dying.pid}"):  # not as a zombie either
        assert time.monotonic() < until
        time.sleep(0.01)


XID_79 = "NVRM: Xid (PCI:0000:41:00): 79, pid=1234, name=python, GPU has fallen off the bus."
XID_45 = "NVRM: Xid (PCI:0000:c1:00): 45, pid='<unknown>', name=<unknown>, Ch 00000008"


def test_xids_are_read_with_their_time_and_policy(tools: Path) -> None:
    put_dmesg(tools, "[    1.250000] usb 1-1: new device", f"[  100.500000] {XID_79}", f"[101.0] {XID_45}")
    log = xid_log.read_xids()
    lost, noise = log.events
    assert (log.source, log.problem) == ("dmesg", "")
    assert (lost.number, lost.bus_id, lost.policy.action) == (79, "0000:41:00", "drain_node")
    assert "fallen off the bus" in lost.text
    assert (noise.number, noise.policy.action) == (45, "ignore")
    assert lost.time is not None
    assert noise.time is not None
    assert noise.time - lost.time == pytest.approx(0.5)


def test_where_no_log_may_be_read_that_is_one_line(tools: Path, tmp_path: Path) -> None:
    put(tools, "dmesg", "echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1")
    put(tools, "journalctl", "echo '-- No entries --' >&2")
    log = xid_log.read_xids(kmsg=tmp_path / "none")
    assert (log.events, log.source) == ((), None)
    for word in ("Operation not permitted", "journalctl", "may not be read"):
        assert word in log.problem
    assert "\n" not in log.problem


def test_the_journal_and_the_kernels_ring_substitute_for_dmesg(tools: Path, tmp_path: Path) -> None:
    put(tools, "dmesg", "exit 1")
    put(tools, "journalctl", f'echo "1790000000.250000 node7 kernel: {XID_79}"')
    log = xid_log.read_xids()
    assert (log.source, log.events[0].number, log.events[0].time) == ("journalctl -k", 79, 1790000000.25)
    put(tools, "journalctl", "exit 1")
    ring = tmp_path / "kmsg"
    ring.write_text(f"4,1,5000000,-;{XID_79}\n")
    log = xid_log.read_xids(kmsg=ring)
    assert (log.source, log.events[0].number) == (str(ring), 79)


@pytest.mark.parametrize(
    ("numbers", "action"),
    [
        ((45,), "ignore"),
        ((63, 92, 9999), "warn"),
        ((13, 31, 94), "restart_job"),
        ((48, 64, 79, 95, 119, 120, 154), "drain_node"),
    ],
)
def test_the_policy_table_says_what_an_xid_asks_for(numbers: tuple[int, ...], action: str) -> None:
    assert {xid.policy(number).action for number in numbers} == {action}
    assert all(xid.policy(number).meaning and xid.policy(number).advice for number in numbers)
    assert xid.worst(["warn", action, "ignore"]) == (action if action != "ignore" else "warn")  # type: ignore[list-item]


def test_the_policy_table_is_on_the_page() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "preflight.md").read_text(encoding="utf-8")
    for number, policy in xid.POLICIES.items():
        assert f"| {number} | {policy.meaning} | `{policy.action}` | {policy.advice} |" in page


def test_the_command_prints_json_and_its_example_runs(tools: Path) -> None:
    put_smi(tools, {"remap_pending": "Yes"})
    put_dmesg(tools, f"[1.0] {XID_79}")
    command = [sys.executable, "-m", "trainer", "gpus"]
    shown = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
    assert "python -m trainer gpus --json" in shown
    said = json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout)
    assert said["gpus"][0]["name"] == "NVIDIA H200"
    assert [concern["action"] for concern in said["concerns"]] == ["drain_node"]
    assert said["xids"][0]["meaning"] == "the GPU has fallen off the bus"
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "drain_node: GPU 0: a memory row waits" in text
    assert "drain_node: Xid 79 on 0000:41:00" in text
