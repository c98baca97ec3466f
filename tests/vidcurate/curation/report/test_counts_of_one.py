"""Counts in the report and the card: none, one and several clips, and totals of nothing."""

from pathlib import Path
from typing import Any

import pytest

from tests.shard_runs import SMALL, make_run, rows
from tests.vidcurate.curation.report.made import read_page
from vidcurate.curation.report import card
from vidcurate.curation.report.build import run_report
from vidcurate.curation.report.card import CardSpec
from vidcurate.shards.build import run_build_shards


def filtered(count: int) -> list[dict[str, Any]]:
    """Return kept rows as the filter leaves them."""
    verdict = dict.fromkeys(("reject_stage", "reject_rule", "reject_value", "reject_threshold"))
    return [row | verdict | {"is_kept": True, "level": 1, "fold": "train"} for row in rows(count)]


def reported(folder: Path, unprobed: int, of: int) -> tuple[str, str]:
    """Build shards of `of` clips, the first `unprobed` of them never probed; return (report, card)."""
    found = filtered(of)
    for row in found[:unprobed]:
        row |= {"probe_status": None, "integrity_level": None}
    run = make_run(folder, found)
    videos = folder / "videos"
    run_build_shards(run, SMALL, videos=videos, out=run / "shards", is_unprobed_allowed=True)
    run_report(run, videos=videos)
    return read_page(run).words(), card.run_card(run, CardSpec()).read_text()


@pytest.mark.parametrize(
    ("unprobed", "said", "levels", "in_card"),
    [
        (0, "", "keyframes 8.", '{"keyframes": 8}'),
        (1, "1 clip was never probed.", "keyframes 7, none 1.", '{"keyframes": 7, "none": 1}'),
        (8, "8 clips were never probed.", "none 8.", '{"none": 8}'),
    ],
)
def test_report_and_card_say_how_many_clips_were_never_probed(
    tmp_path: Path, unprobed: int, said: str, levels: str, in_card: str
) -> None:
    page, text = reported(tmp_path, unprobed, 8)

    assert f"Checked by probe up to the level: {levels} {said}".rstrip() in page
    assert ("never probed" in page) is bool(said)
    assert f"integrity_levels: {in_card}" in text


def test_a_run_of_one_clip_has_no_plural(tmp_path: Path) -> None:
    page, text = reported(tmp_path, 1, 1)

    assert "1 of 1 clips kept (100.0 %)" in page
    assert "from 1 source of openvid" in page
    assert "1 clip was never probed." in page
    assert "\n\n1 clip without an ingest problem (no filter has been run) of 1, " in text
    for words in (page, text):
        assert " 1 clips" not in words.replace("of 1 clips", "")
        assert " 1 rows" not in words


def test_a_run_that_keeps_nothing_is_reported_without_a_share_of_nothing(tmp_path: Path) -> None:
    verdict = {"reject_stage": "filter", "reject_rule": "min_caption_words", "reject_value": "1"}
    verdict |= {"reject_threshold": ">= 3", "level": None, "fold": None}
    run = make_run(tmp_path, [row | verdict | {"is_kept": False} for row in filtered(3)])
    run_report(run, videos=tmp_path / "videos")
    page, text = read_page(run).words(), card.text(run, CardSpec())

    assert "0 of 3 clips kept (0.0 %)" in page
    assert "\n\n0 clips without an ingest problem (no filter has been run) of 3, 0 hours." in text
    assert "nan" not in page.lower().split()
