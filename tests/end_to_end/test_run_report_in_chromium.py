"""The run report as a browser shows it: light and dark, wide and narrow, no complaint, no request."""

from pathlib import Path

import numpy as np
import pytest

from tests.end_to_end.test_report_in_chromium import SCHEMES, chromium, look
from trainer.report import command as report_command
from trainer.run_folder import jsonl, metrics

__all__ = ["chromium"]  # a fixture


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run with two attempts, validation, and an event that no one knows."""
    run = tmp_path_factory.mktemp("run")
    jsonl.append_line(
        run / jsonl.EVENTS,
        {"event": "start", "step": 0, "time": 100.0, "process_began": 95.0, "stage": "one"},
    )
    for step in range(1, 61):
        at = 100.0 + step + (40 if step > 30 else 0)
        line = {"step": step, "stage": "one", "time": at, "seconds": 1.0, "data_seconds": 0.2, "lr": 1e-4}
        line |= {
            "loss": 2.0 / step**0.3,
            "grad_norm": 1.0 + 9 * (step == 40),
            "tokens_per_second": 900.0 + step,
        }
        line |= {"loss_by_bucket": {"144p": 1.0, "240p": 2.0}, "loss_by_level": {"1": 1.0, "2": 1.5}}
        jsonl.append_line(run / metrics.METRICS, line)
    for step in (0, 30, 60):
        round_ = {
            "step": step,
            "time": 100.5 + step + (40 if step > 30 else 0),
            "seconds": 0.5,
            "loss": 2.0 - step / 60,
        }
        jsonl.append_line(
            run / metrics.VALIDATION, {**round_, "standard_error": 0.1, "weights": "ema", "loss_by_clip": {}}
        )
    for name, step, at in (
        ("guard", 20, 120.0),
        ("comet", 25, 125.0),
        ("resume", 30, 165.0),
        ("done", 60, 201.0),
    ):
        facts = {"process_began": 160.0} if name == "resume" else {"reason": f"<b>{name}</b>"}
        jsonl.append_line(run / jsonl.EVENTS, {"event": name, "step": step, "time": at, **facts})
    assert report_command.main([str(run)]) == 0
    return run / report_command.PAGE


@pytest.mark.engine
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_browser_shows_every_section_of_a_run_and_asks_for_nothing(
    page: Path, chromium: str, scheme: str, tmp_path: Path
) -> None:
    number, paper = SCHEMES[scheme]
    seen = look(chromium, page, tmp_path, number)

    for section in ("goodput", "curves", "events", "slowest"):
        assert f'<section id="{section}">' in seen.dom
    for title in ("Loss by bucket", "Loss by level", "Validation loss", "Gradient norm", "Data wait"):
        assert f"<h3>{title}" in seen.dom
    assert '<svg class="times"' in seen.dom
    assert "comet" in seen.dom
    assert "&lt;b&gt;comet&lt;/b&gt;" in seen.dom
    assert seen.complaints == []
    assert seen.asked == []
    assert np.abs(seen.picture[:, :8].astype(int) - paper).max() <= 1
    assert np.abs(seen.picture.astype(int) - paper).sum(axis=2).max() > 400
