import io
import re
import time

import pytest
from rich.console import Console

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


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize(
    ("what", "done", "total", "unit"),
    [
        ("score-frames", 1_234_567, 12_345_678, "clips (1,234.56 h of video, 0.1234 h/s, 12,345 failed)"),
        ("build-shards", 999_999, 1_000_000, "clips"),
        ("probe", 3, 320, "files (0 failed)"),
    ],
)
def test_the_bar_keeps_count_total_and_time_left_at_every_width(
    width: int, what: str, done: int, total: int, unit: str
) -> None:
    screen = io.StringIO()
    console = Console(file=screen, width=width, force_terminal=True, color_system=None)
    with progress.Bar(progress._FittedColumn(console), console=console) as bar:
        bar.add_task(what, total=total, completed=done, unit=unit, rate=10.0)
        bar.refresh()

    line = [
        part
        for part in re.split(r"[\r\n]", re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", screen.getvalue()))
        if part
    ][-1]
    assert len(line.rstrip()) <= width
    assert line.startswith(f"{what} ")
    assert f" {done:,}/{total:,} " in line
    assert re.search(r" (\d+:)?\d+:\d\d left$", line.rstrip()), line
    assert ("━" in line) or width == 60
    assert (unit in line) is (unit == "clips" or total == 320 or width == 120)


@pytest.mark.parametrize("failed", ["", " (0 failed)"])
@pytest.mark.parametrize(("done", "total"), [(0, 0), (0, 1), (1, 1)])
def test_none_and_one_are_shown_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], done: int, total: int, failed: str
) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_SECONDS", 0.0)
    with progress.progress_bar("probe") as tell:
        tell(done, total, f"files{failed}")
    screen = io.StringIO()
    console = Console(file=screen, width=80, force_terminal=True, color_system=None)
    with progress.Bar(progress._FittedColumn(console), console=console) as bar:
        bar.add_task("probe", total=total, completed=done, unit=f"files{failed}", rate=0.0)

    assert capsys.readouterr().err == f"probe: {done} of {total} files{failed}, 0.0/s\n"
    assert f" {done}/{total} files{failed}" in screen.getvalue()
    assert progress.fitted(80, "probe", done, total, f"files{failed}", 1e6) == (
        "probe",
        f"{done}/{total} files{failed} 1,000,000.0/s" + (" 0:00 left" if done < total else ""),
    )
