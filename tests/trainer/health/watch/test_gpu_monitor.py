"""GPU monitor of a run: new Xids and new driver errors are events, old ones are not."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainer.shards_for_tests import events
from trainer.cli import exit_codes
from trainer.health import gpu, xid, xid_log
from trainer.health.watch import gpu_monitor
from trainer.health.xid_log import XidEvent
from trainer.run_folder import process_table

GPU = """<?xml version="1.0" ?><nvidia_smi_log><gpu id="00000000:3B:00.0"><product_name>Fake</product_name>
<remapped_rows><remapped_row_pending>{pending}</remapped_row_pending></remapped_rows></gpu></nvidia_smi_log>"""


LIMIT_SECONDS = 60.0


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs of the driver's names that print smi.xml and kernel.log; without them they fail."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, file in (("nvidia-smi", "smi.xml"), ("dmesg", "kernel.log"), ("journalctl", "none")):
        (folder / name).write_text(
            f"#!/bin/sh\necho >> {tmp_path / name}.asked\nexec cat {tmp_path / file}\n"
        )
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return tmp_path


def has_looked(tools: Path) -> bool:
    """Whether the first look, which says what was so before, is over: the second has begun."""
    asked = tools / "nvidia-smi.asked"
    return asked.exists() and asked.stat().st_size >= 2


def change(tools: Path, pending: str) -> None:
    (tools / "smi.new").write_text(GPU.format(pending=pending))
    (tools / "smi.new").replace(tools / "smi.xml")


def test_a_row_that_waits_to_be_replaced_ends_the_rank_as_a_bad_node(tools: Path) -> None:
    (tools / "smi.xml").write_text(GPU.format(pending="No"))
    (tools / "kernel.log").write_text("[ 1.0] NVRM: Xid (PCI:0000:3b:00): 48, long ago\n")
    ended: list[tuple[int, str]] = []

    def end(code: int, why: str) -> bool:
        ended.append((code, why))
        return True

    thread = gpu_monitor.start(tools, 0.1, step=lambda: 41, end=end)
    until(lambda: has_looked(tools))
    assert events(tools, "xid") == []  # it was so before
    change(tools, "Yes")
    thread.join(LIMIT_SECONDS)

    (event,) = events(tools, "ecc")
    assert (event["gpu"], event["text"], event["step"]) == (0, "a memory row waits to be replaced", 41)
    assert event["action"] == "drain_node"
    ((code, why),) = ended
    assert code == exit_codes.BAD_NODE
    assert why.startswith("a memory row waits to be replaced on ")


def test_of_thousands_of_lines_the_worst_counts_and_a_few_are_events(tools: Path) -> None:
    """A GPU that falls off the bus is followed by what every program on it then complains of."""
    change(tools, "No")
    (tools / "kernel.log").write_text("")
    ended: list[int] = []

    def end(code: int, why: str) -> bool:
        ended.append(code)
        return True

    thread = gpu_monitor.start(tools, 0.1, step=lambda: 41, end=end)
    until(lambda: has_looked(tools))
    lines = [f"[ {at}.0] NVRM: Xid (PCI:0000:3b:00): 45, Ch {at}" for at in range(1000, 1040)]
    lines.insert(0, "[ 999.0] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.")
    (tools / "kernel.new").write_text("\n".join(lines))
    (tools / "kernel.new").replace(tools / "kernel.log")
    thread.join(LIMIT_SECONDS)

    assert ended == [exit_codes.BAD_NODE]
    numbers = [event["number"] for event in events(tools, "xid")]
    assert numbers[0] == 79
    assert len(numbers) == gpu_monitor.MOST_EVENTS


def test_a_gpu_that_gets_too_hot_is_named_on_the_console_and_ends_nothing(
    tools: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Seen on two H200: one at 1,470 MHz held up the other by a tenth, which only the events showed."""
    (tools / "kernel.log").write_text("")
    change(tools, "No")
    ended: list[int] = []

    def end(code: int, why: str) -> bool:
        ended.append(code)
        return True

    thread = gpu_monitor.start(tools, 0.1, step=lambda: 6, end=end)
    until(lambda: has_looked(tools))
    hot = "<clocks_event_reason_sw_thermal_slowdown>Active</clocks_event_reason_sw_thermal_slowdown>"
    rows = "<remapped_rows><remapped_row_pending>No"
    rest = f"<clocks_event_reasons>{hot}</clocks_event_reasons>{rows}"
    change(tools, f"No</remapped_row_pending></remapped_rows>{rest}")
    until(lambda: events(tools, "ecc"))
    time.sleep(0.5)
    assert ended == []
    change(tools, "Yes")
    thread.join(LIMIT_SECONDS)

    said = [line for line in capfd.readouterr().err.splitlines() if "GPU 0" in line]
    host = process_table.host_name()
    assert said == [
        f"step 6: {host}: GPU 0: runs slower (sw_thermal_slowdown); look at its cooling and power",
        f"step 6: {host}: GPU 0: a memory row waits to be replaced; {xid.RESET}",
    ]


def test_what_cannot_be_read_is_said_once(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xid_log.read_xids, "__defaults__", (LIMIT_SECONDS, tools / "no-kmsg"))
    (tools / "smi.xml").write_text(GPU.format(pending="No"))

    thread = gpu_monitor.start(tools, 0.1, step=lambda: 3, end=lambda code, why: True)
    until(lambda: events(tools, "watch"))
    time.sleep(0.5)
    change(tools, "Yes")  # or it would look, ten times a second, for as long as the tests run
    thread.join(LIMIT_SECONDS)

    assert not thread.is_alive()
    (event,) = events(tools, "watch")
    assert event["step"] == 3
    assert event["cannot_read"][0].startswith("Xid events cannot be read here: dmesg: ended with 1")


def test_a_host_without_gpus_has_nothing_to_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpu, "device_files", lambda: 0)
    gpu_monitor.start(tmp_path, 0.1, step=lambda: 0, end=None).join(LIMIT_SECONDS)
    assert list(tmp_path.iterdir()) == []


def test_the_same_line_read_again_is_no_news_and_the_same_fault_later_is() -> None:
    began = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)

    def at(seconds: float) -> XidEvent:
        return XidEvent(number=31, bus_id="0000:3b:00", text="MMU fault", time=began + seconds)

    seen: dict[tuple[int, str, str], float] = {}
    assert len(gpu_monitor._new([at(10.0)], seen)) == 1
    assert gpu_monitor._new([at(10.2)], seen) == []  # the times of the log depend on when the clock was read
    assert len(gpu_monitor._new([at(10.1), at(95.0)], seen)) == 1
