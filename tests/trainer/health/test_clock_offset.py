"""Offsets from four time stamps, and who keeps the clock, by programs on PATH and the kernel."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.smi_for_tests import put
from trainer.health import clock_offset
from trainer.health.clock_offset import Stamps

SECOND = 1_000_000_000


@given(
    offset=st.integers(-(10**12), 10**12),
    there=st.integers(0, SECOND),
    back=st.integers(0, SECOND),
    work=st.integers(0, SECOND),
)
def test_the_offset_is_true_within_half_the_round_trip(offset: int, there: int, back: int, work: int) -> None:
    sent = 1_790_000_000 * SECOND
    received = sent + there + offset
    exchange = Stamps(sent, received, received + work, sent + there + work + back)
    found = clock_offset.best([exchange])
    assert found.error_seconds == pytest.approx((there + back) / 2 / SECOND)
    assert abs(found.seconds - offset / SECOND) <= found.error_seconds + 1e-9 * abs(offset / SECOND) + 1e-9


def test_the_quickest_exchange_counts() -> None:
    slow, quick = Stamps(0, 900, 900, 1000), Stamps(0, 60, 60, 100)
    found = clock_offset.best([slow, quick, slow])
    assert found.samples == 3
    assert found.seconds == pytest.approx(10e-9)
    with pytest.raises(ValueError, match="at least one exchange"):
        clock_offset.best([])


# Answers every line with the times of receipt and answer.
ANSWERER = (
    "import sys,time\n"
    "for line in iter(sys.stdin.readline,''):\n"
    " received=time.time_ns()\n"
    " sys.stdout.write(f'{line.strip()} {received} {time.time_ns()}\\n'); sys.stdout.flush()"
)


def test_a_program_at_the_other_end_of_a_pipe_answers() -> None:
    with subprocess.Popen([sys.executable, "-c", ANSWERER], stdin=-1, stdout=-1, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None

        def exchange(line: str) -> str:
            assert other.stdin is not None
            assert other.stdout is not None
            other.stdin.write(line + "\n")
            other.stdin.flush()
            return other.stdout.readline()

        found = clock_offset.measure(exchange, samples=5)
        other.stdin.close()
    assert found.samples == 5
    assert abs(found.seconds) <= found.error_seconds + 1e-6  # one clock; what is left is the way's asymmetry


def test_a_clock_that_is_ahead_is_found_and_a_line_that_is_none_is_refused() -> None:
    def ahead(line: str) -> str:
        now = time.time_ns() + 3 * SECOND
        return f"{line} {now} {now}\n"

    assert clock_offset.measure(ahead, samples=3).seconds == pytest.approx(3, abs=0.5)
    with pytest.raises(ValueError, match="Permission denied"):
        clock_offset.measure(lambda _: "Permission denied")


CHRONY = """\
Reference ID    : A9FEA97B (169.254.169.123)
Stratum         : 4
System time     : 0.000012345 seconds slow of NTP time
Last offset     : -0.000003021 seconds
Leap status     : {leap}
"""


def test_chrony_timedatectl_and_the_kernel_are_asked_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "said").write_text(CHRONY.format(leap="Normal"))
    put(tmp_path, "chronyc", f"cat {tmp_path}/said")
    good = clock_offset.discipline()
    assert (good.daemon, good.is_synchronised, good.advice) == ("chrony", True, "")
    assert good.offset_seconds == pytest.approx(-12.345e-6)

    (tmp_path / "said").write_text(CHRONY.format(leap="Not synchronised"))
    assert clock_offset.discipline().is_synchronised is False

    put(tmp_path, "chronyc", "echo '506 Cannot talk to daemon'; exit 1")
    put(tmp_path, "timedatectl", "printf 'NTP=yes\\nNTPSynchronized=yes\\nTimezone=UTC\\n'")
    polled = clock_offset.discipline()
    assert (polled.daemon, polled.is_synchronised) == ("systemd-timesyncd", True)
    assert "use chrony" in polled.advice

    put(tmp_path, "timedatectl", "sleep 60")
    kernel = clock_offset.discipline(seconds=0.3)
    assert kernel.daemon is None
    assert "kernel" in kernel.said
    assert kernel.advice == "" or "chrony" in kernel.advice
