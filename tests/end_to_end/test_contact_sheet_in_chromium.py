"""The page of some steps as a browser shows it: every picture, no complaint, no request."""

from pathlib import Path

import numpy as np
import pytest

from tests.end_to_end.test_report_in_chromium import LIGHT, chromium, look
from tests.trainer.shards_for_tests import SMOKE, make_shards, settings
from trainer.report.preview import plan_command

__all__ = ["chromium"]  # a fixture


@pytest.mark.engine
def test_a_browser_shows_every_picture_and_asks_for_nothing(
    chromium: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_shards(tmp_path / "shards")
    page = tmp_path / "steps.html"
    given = [word for value in settings(tmp_path / "shards", tmp_path / "run") for word in ("--set", value)]
    assert (
        plan_command.main(["show", str(SMOKE), *given, "--steps", "1:3", "--world", "2", "--html", str(page)])
        == 0
    )
    listed = capsys.readouterr().out

    seen = look(chromium, page, tmp_path / "browser", 1)

    assert seen.dom.count("<figure>") == 12
    assert "rank 1" in seen.dom
    assert all(clip_id in listed for clip_id in ("clip-003", "clip-009"))
    assert seen.complaints == []
    assert seen.asked == []
    assert np.abs(seen.picture[:, :8].astype(int) - LIGHT).max() <= 1
    colours = (220, 40, 40), (40, 200, 60), (50, 70, 220)  # the squares of the clips: they were decoded
    for colour in colours:
        near = np.abs(seen.picture.astype(int) - colour).max(axis=2) < 24
        assert near.sum() > 100, colour
