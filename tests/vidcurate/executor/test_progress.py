import re
import time

import pytest

from vidcurate.executor import progress


def test_a_line_says_rate_and_time_left_without_what_was_done_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_SECONDS", 0.0)

    with progress.progress_bar("probe") as tell:
        tell(900, 1000, "files (3 failed)")
        time.sleep(0.2)
        tell(910, 1000, "files (4 failed)")

    first, last = capsys.readouterr().err.splitlines()
    assert first == "probe: 900 of 1,000 files (3 failed), 0.0/s"
    found = re.fullmatch(r"probe: 910 of 1,000 files \(4 failed\), ([\d.]+)/s, (\d+):(\d\d) left", last)
    assert found, last
    rate, left = float(found[1]), 60 * int(found[2]) + int(found[3])
    assert 0 < rate <= 50
    least, most = 90 / (rate + 0.06), 90 / (rate - 0.06)  # the log shows one decimal
    assert least - 1 <= left <= most + 1


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.progress_bar("probe", quiet=True) as tell:
        tell(1, 2, "files")

    assert capsys.readouterr().err == ""
