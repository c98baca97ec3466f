"""Pictures of clips, on the page and on sheets."""

import base64
import io
import json
import re
from pathlib import Path

import av
import numpy as np
import polars as pl
from numpy.typing import NDArray

from tests.vidcurate.curation.report.made import read_page, text_of
from vidcurate.curation.clip_table import table
from vidcurate.curation.report import contact_sheet
from vidcurate.curation.report.build import run_report


def _decoded(uri: str) -> NDArray[np.uint8]:
    data = base64.b64decode(uri.removeprefix("data:image/jpeg;base64,"))
    with av.open(io.BytesIO(data), format="image2") as container:
        image: NDArray[np.uint8] = next(container.decode(video=0)).to_ndarray(format="rgb24")
        return image


def test_a_strip_shows_three_frames_of_its_clip(run: Path) -> None:
    images = read_page(run).named("img")
    easy = [
        image
        for image in images
        if re.search(r": A red \w+ moves (up|down|to the \w+)\.$", image["alt"] or "")
    ]
    assert easy
    for image in easy:
        strip = _decoded(image["src"] or "")
        assert strip.shape[:2] == (int(image["height"] or 0), int(image["width"] or 0))
        assert strip.shape[0] == contact_sheet.STRIP_HEIGHT
        for part in np.array_split(strip, 3, axis=1):
            red = (part[..., 0] > 150) & (part[..., 1] < 110) & (part[..., 2] < 110)
            assert red.mean() > 0.02, image["alt"]


def test_a_clip_without_a_picture_says_why(run: Path) -> None:
    page = read_page(run)
    reasons = [drawing["aria-label"] or "" for drawing in page.named("svg")]
    assert any("there is no file" in reason for reason in reasons)
    assert any("not a video that FFmpeg opens" in reason for reason in reasons)


def test_damage_that_no_header_tells_is_seen_on_the_sheet(demo: Path) -> None:
    truth = json.loads((demo / "truth.json").read_text())["clips"]
    name = next(name for name, clip in truth.items() if clip["planted"] == "truncated_faststart")
    card = contact_sheet.card({**truth[name], "video_path": name, "clip_id": name}, demo / "videos")
    assert card.image is not None
    assert card.why is not None
    assert "of 3 wanted frames decoded" in card.why


def test_a_link_to_itself_has_no_picture_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "loop.mp4").symlink_to("loop.mp4")
    card = contact_sheet.card({"clip_id": "loop", "video_path": "loop.mp4"}, tmp_path)
    assert card.image is None
    assert card.why


def test_a_path_that_leaves_the_folder_is_not_read(demo: Path, tmp_path: Path) -> None:
    clip = {"clip_id": "x", "num_frames": 4, "width": 64, "height": 64}
    name = next((demo / "videos").glob("*.webm")).name
    inside = contact_sheet.card({**clip, "video_path": name}, demo / "videos")
    (tmp_path / "link.webm").symlink_to(demo / "videos" / name)
    assert inside.image is not None
    for path, folder in ((f"../videos/../videos/../../{demo.name}/captions.csv", demo / "videos"),):
        assert (
            contact_sheet.card({**clip, "video_path": path}, folder).why
            == "the path leaves the folder of videos"
        )
    assert (
        contact_sheet.card({**clip, "video_path": "link.webm"}, tmp_path).why
        == "the path leaves the folder of videos"
    )


def test_a_long_clip_is_sought_and_an_interval_kept(make_video) -> None:  # type: ignore[no-untyped-def]
    path = make_video("long.mp4", num_frames=200, gop=20)
    whole = {
        "clip_id": "x",
        "video_path": path.name,
        "num_frames": 200,
        "width": 96,
        "height": 64,
        "fps": 24.0,
    }
    assert contact_sheet._frame_numbers(whole) == [33, 100, 166]
    part = {**whole, "start_seconds": 5.0, "num_frames": 24}
    assert contact_sheet._frame_numbers(part) == [124, 132, 140]
    shown = contact_sheet.card(whole, path.parent)
    assert shown.image is not None
    assert shown.why is None
    assert (shown.image_width, shown.image_height) == (3 * 144 + 2 * 2, 96)


def test_without_videos_the_page_has_words_only(run: Path, tmp_path: Path) -> None:
    (tmp_path / "ingest.parquet").write_bytes((run / "ingest.parquet").read_bytes())
    assert run_report(tmp_path).clips_shown
    assert not read_page(tmp_path).named("img")
    assert "no folder of videos was given" in text_of(tmp_path)


def test_the_sheets_show_every_level_and_every_rule(run: Path) -> None:
    checked = table.scan(run, "split")
    clips = checked.collect()
    rules = [step["rule"] for step in json.loads((run / "funnel.json").read_text())]
    kept = contact_sheet.choose_kept(checked, 8)
    chosen = clips.filter(pl.col("clip_id").is_in(kept))
    assert len(kept) == len(set(kept)) == 8
    assert chosen["level"].value_counts().sort("level")["count"].to_list() == [4, 4]
    assert chosen["is_kept"].all()

    dropped = contact_sheet.choose_rejected(checked, rules, len(rules))
    assert [clips.filter(pl.col("clip_id") == clip_id)["reject_rule"].item() for clip_id in dropped] == rules
    assert contact_sheet.choose_rejected(checked, rules, 3) == dropped[:3]
    assert (
        len(contact_sheet.choose_rejected(checked, rules, 10_000)) == clips.filter(~pl.col("is_kept")).height
    )
