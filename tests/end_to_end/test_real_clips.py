"""The whole curation, every stage, on real clips and captions: every planted problem is found by name.

The clips are not part of the project; without them the demo data's planted problems cover the same ground
(tests/docs: the tutorial; tests/vidcurate/test_synthetic.py).
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.docs.test_documented import DOCS, ROOT, console, run, squeezed
from vidcurate.curation.clip_table import table

# Six minutes of black in 1080p each: to decode them takes longer than all others together.
LONG = ("media3_long_1080p_h264.mp4", "media3_long_1080p_av1.mp4")
# What the clips' own page says was planted: clip, stage and rule that must name it.
PLANTED = {
    "ft_hiker#2": ("ingest", "duplicate_id"),
    "dn_uuid540": ("ingest", "empty_caption"),
    "tc_h265_10bit": ("ingest", "empty_caption"),
    "missing_1": ("ingest", "missing_file"),
    "missing_2": ("ingest", "missing_file"),
    "empty": ("ingest", "extra_file"),
    "not_a_video": ("ingest", "extra_file"),
    "trunc_moov_first_60pct": ("probe", "unreadable"),
    "trunc_moov_last_60pct": ("probe", "unreadable"),
    "trunc_bbb.webm": ("probe", "truncated"),
    "libwebm_invalid_cluster.mkv": ("probe", "truncated"),
    "opencv_tree.avi": ("probe", "frame_count_mismatch"),
    "decord_corrupted": ("probe", "damaged_packets"),
    "bitflip_h264": ("probe", "damaged_frames"),
    "media3_mdat_too_long": ("dedup", "duplicate"),
    "media3_portrait": ("dedup", "duplicate"),
    "media3_sample.flv": ("dedup", "duplicate"),
}
# Almost the same picture under several names.
TWINS = [
    {"dn_uuid540.mp4", "dn_xmp480qt.mov"},
    {"dn_mpeg2.m2v", "dn_sample_mpeg4.mp4"},
    {"tc_h264_10bit.mp4", "tc_h265_10bit.mp4"},
    {"tc_bt709_full.mp4", "bitflip_h264.mp4"},
    {"moviepy_bbb_432_433.webm", "trunc_bbb.webm"},
    {
        "media3_mdat_too_long.mp4", "media3_mpeg2.ts", "media3_portrait.mp4", "media3_rotate_reflect.mp4",
        "media3_sample.flv",
    },
]  # fmt: skip
LOOSER = {"max_bits": 10, "max_thumbnail_distance": 16}

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Path:
    """A folder with the clips and their captions, as docs/real-clips.md has them."""
    folder = tmp_path_factory.mktemp("real")
    (folder / "recipes").symlink_to(ROOT / "recipes")
    (folder / "openvid" / "videos").mkdir(parents=True)
    for path in (shared / "data" / "clips").iterdir():
        if path.name not in LONG:
            shutil.copy(path, folder / "openvid" / "videos")
    captions = pl.read_csv(shared / "data" / "captions_openvid.csv")
    captions.filter(~pl.col("video").is_in(list(LONG))).write_csv(folder / "openvid" / "captions.csv")
    return folder


@pytest.fixture(scope="module")
def pipeline(home: Path) -> list[tuple[str, list[str], str]]:
    """The page's commands, run in their order: (command, the lines shown, what was printed)."""
    return [(command, shown, run(command, home)) for command, shown in console(DOCS / "real-clips.md")]


@pytest.fixture(scope="module")
def clips(home: Path, pipeline: list[Any]) -> dict[str, dict[str, Any]]:
    """Every row of the table behind the page's commands, by clip id."""
    rows = table.scan(home / "run", "split").collect()
    return {row["clip_id"]: row for row in rows.iter_rows(named=True)}


def test_the_real_clips_go_the_pipeline_as_the_page_shows(pipeline: list[tuple[str, list[str], str]]) -> None:
    missing = [
        f"{command}: {line!r} in {printed!r}"
        for command, shown, printed in pipeline
        for line in shown
        if squeezed(line) not in squeezed(printed)
    ]
    assert not missing, "\n".join(missing)


def test_every_stage_has_seen_every_row(home: Path, clips: dict[str, dict[str, Any]]) -> None:
    for stage in ("ingest", "probe", "score", "frames", "dedup", "filter", "split"):
        assert len(table.scan(home / "run", stage).collect()) == len(clips) == 65


@pytest.mark.parametrize("clip", PLANTED)
def test_a_planted_problem_is_found_by_name(clip: str, clips: dict[str, dict[str, Any]]) -> None:
    row = clips[clip]

    assert (row["reject_stage"], row["reject_rule"]) == PLANTED[clip], row["reject_value"]


def test_a_box_that_is_longer_than_its_file_is_noted(clips: dict[str, dict[str, Any]]) -> None:
    assert clips["media3_mdat_too_long"]["probe_findings"] == "short_container"


def test_the_page_names_every_planted_problem_as_it_was_found(clips: dict[str, dict[str, Any]]) -> None:
    page = (DOCS / "real-clips.md").read_text(encoding="utf-8")
    reported = {
        clip: (stage, rule) for clip, stage, rule in re.findall(r"\| `(\S+)` \| (\w+) \| `(\w+)` \|", page)
    }

    assert reported.keys() >= PLANTED.keys()
    assert reported == {clip: (clips[clip]["reject_stage"], clips[clip]["reject_rule"]) for clip in reported}


def test_the_page_of_the_run_names_every_planted_problem(home: Path, pipeline: list[Any]) -> None:
    html = (home / "run" / "report.html").read_text(encoding="utf-8")

    assert len(html) < 3_000_000
    for clip in PLANTED:
        assert f"<bdi>{clip}</bdi>" in html, clip


def test_no_damaged_clip_reaches_the_training(home: Path, pipeline: list[Any]) -> None:
    lines = (home / "first" / "events.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line)["event"] for line in lines]

    assert events
    assert "clip_substituted" not in events


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> dict[str, set[str]]:
    """The clusters that dedup finds among the planted twins when all of them are let through."""
    folder = tmp_path_factory.mktemp("twins")
    (folder / "videos").mkdir()
    names = sorted(name for names in TWINS for name in names)
    for name in names:
        shutil.copy(shared / "data" / "clips" / name, folder / "videos")
    pl.DataFrame({"video": names, "caption": [f"A clip, {name}." for name in names]}).write_csv(
        folder / "captions.csv"
    )
    recipe = {
        "run": "run",
        "workers": 2,
        "ingest": {"metadata": "captions.csv", "videos": "videos"},
        "probe": {"level": "header", "reject": []},
        "frames": {},
        "dedup": {"perceptual": LOOSER},
    }
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    run("vidcurate curate recipe.yaml --until dedup --json", folder)
    found: dict[str, set[str]] = {}
    for row in table.scan(folder / "run", "dedup").collect().iter_rows(named=True):
        found.setdefault(row["duplicate_cluster"] or row["clip_id"], set()).add(row["video_path"])
    return found


def test_the_planted_twins_are_clusters_and_nothing_else_is(twins: dict[str, set[str]]) -> None:
    assert sorted(map(sorted, twins.values())) == sorted(map(sorted, TWINS))


def test_six_minutes_of_black_are_seen_as_black(tmp_path: Path, shared: Path) -> None:
    (tmp_path / "videos").mkdir()
    for name in LONG:
        shutil.copy(shared / "data" / "clips" / name, tmp_path / "videos")
    captions = pl.read_csv(shared / "data" / "captions_openvid.csv")
    captions.filter(pl.col("video").is_in(list(LONG))).write_csv(tmp_path / "captions.csv")
    run("vidcurate ingest captions.csv --videos videos --out run", tmp_path)
    run("vidcurate probe run --level full --set time_limit_seconds=1200", tmp_path)
    run("vidcurate score-frames run --set time_limit_seconds=1200", tmp_path)
    rows = table.scan(tmp_path / "run", "frames").collect()

    assert rows["probe_status"].to_list() == ["ok", "ok"]
    assert rows["num_frames_from_decode"].to_list() == rows["num_frames_from_index"].to_list()
    assert rows["black_share"].min() > 0.99  # type: ignore[operator]
