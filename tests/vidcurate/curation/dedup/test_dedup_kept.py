"""Of the copies that dedup has found, the one that is kept, why, and what the filter makes of the others."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import polars as pl
import pytest

from tests.frame_clips import Frames, barred, panned, still
from tests.vidcurate.curation.dedup.hashed_clips import LOOK, copies, found_in, looks, make_run
from vidcurate.curation.clip_table import table
from vidcurate.curation.dedup.preference import BARS
from vidcurate.curation.dedup.spec import DedupSpec, PerceptualSpec
from vidcurate.curation.dedup.stage import run_dedup
from vidcurate.curation.filter.spec import FilterSpec, Limit
from vidcurate.curation.filter.stage import run_filter
from vidcurate.curation.frame_scores.scorers import SCORES, ClipFile, measure
from vidcurate.curation.frame_scores.spec import FramesSpec
from vidcurate.errors import ColumnError
from vidcurate.media import encode


def test_a_chain_of_likeness_is_not_followed(tmp_path: Path) -> None:
    # a ~ b ~ c and a is not like c: a takes b, and c stays by itself.
    rows = [
        {"clip_id": name, "perceptual_hashes": looks(*[bits] * 5)}
        for name, bits in (("a", 0), ("b", 8), ("c", 16))
    ]
    run = make_run(tmp_path / "run", rows)
    run_dedup(run, DedupSpec(perceptual=PerceptualSpec(max_bits=8)))
    assert copies(run) == {"b": "a"}


def test_copies_of_copies_go_to_the_one_that_is_kept(tmp_path: Path) -> None:
    rows = [
        {"clip_id": "a", "width": 64, "height": 64, "perceptual_hashes": LOOK, "packet_hash": "x"},
        {
            "clip_id": "b",
            "width": 128,
            "height": 64,
            "perceptual_hashes": looks(2, 2, 2, 2, 2),
            "packet_hash": "y",
        },
        {"clip_id": "c", "width": 32, "height": 64, "perceptual_hashes": None, "packet_hash": "x"},
    ]
    run = make_run(tmp_path / "run", rows)
    run_dedup(run, DedupSpec())
    found = found_in(run)
    assert copies(run) == {"a": "b", "c": "b"}
    assert {row["duplicate_cluster"] for row in found.values()} == {"a"}
    assert {name: row["duplicate_rank"] for name, row in found.items()} == {"b": 1, "a": 2, "c": 3}


def test_the_kept_copy_is_whole_larger_longer_richer_and_says_why(tmp_path: Path) -> None:
    def kept(**columns: list[Any]) -> tuple[str, str]:
        rows = [
            {"clip_id": name, "packet_hash": "p"}
            | {column: values[place] for column, values in columns.items()}
            for place, name in enumerate("ab")
        ]
        run = make_run(tmp_path / f"run{len(list(tmp_path.iterdir()))}", rows)
        run_dedup(run, DedupSpec())
        ((copy, of),) = copies(run).items()
        return of, found_in(run)[copy]["duplicate_kept_because"]

    assert kept() == ("a", "the smaller clip_id")
    sizes = {"width": [1280, 1920], "height": [720, 1080]}
    assert kept(**sizes) == ("b", "pixels 2073600 > 921600")
    assert kept(**sizes, probe_status=["ok", "truncated"]) == ("a", "without a problem")
    assert kept(**sizes, num_frames_damaged=[0, 3]) == ("a", "without a problem")
    assert kept(duration_seconds=[4.0, 6.02], bit_rate=[900, 100]) == ("b", "duration_seconds 6 > 4")
    assert kept(duration_seconds=[4.01, 4.0], bit_rate=[100, 900]) == ("b", "bit_rate 900 > 100")
    assert kept(sharpness_median=[0.5, 0.7]) == ("b", "sharpness_median 0.7 > 0.5")
    assert kept(bit_rate=[None, 5]) == ("b", "bit_rate 5 > unknown")


def test_the_clean_original_is_kept_over_its_copies_with_bars_or_with_cuts(tmp_path: Path) -> None:
    def kept(one: dict[str, Any], other: dict[str, Any]) -> tuple[str, str]:
        rows = [{"clip_id": name, "packet_hash": "p"} | row for name, row in (("a", one), ("b", other))]
        run = make_run(tmp_path / f"run{len(list(tmp_path.iterdir()))}", rows)
        run_dedup(run, DedupSpec())
        ((copy, of),) = copies(run).items()
        return of, found_in(run)[copy]["duplicate_kept_because"]

    clean = {"width": 640, "height": 540, "bit_rate": 100, "num_cuts": 0}
    # 640 x 720 with the same picture between bars; the bars are found to within a few px.
    for top in (90, 89, 88):
        barred = {"width": 640, "height": 720, "bit_rate": 900, "num_cuts": 0}
        barred |= {"letterbox_top_px": top, "letterbox_bottom_px": top}
        assert kept(barred, clean)[0] == "b"
    # The picture is dark at its lower edge: only the upper bar is found. Both clips have bars at the sides.
    sides = {"letterbox_left_px": 80, "letterbox_right_px": 80}
    barred |= {"letterbox_top_px": 90, "letterbox_bottom_px": 0, **sides}
    assert kept(barred, clean | sides) == ("b", "pixels 224473.7847 > 194400")
    larger = {"width": 1280, "height": 1280, "letterbox_top_px": 100, "letterbox_bottom_px": 100}
    assert kept(larger, clean) == ("a", "pixels 1269815.483 > 345600")
    # A splice of a clip and another is longer, and is not the one to keep.
    spliced = {"width": 640, "height": 540, "num_cuts": 1, "duration_seconds": 8.0}
    assert kept(spliced, clean | {"duration_seconds": 4.0}) == ("b", "fewer_cuts 0 < 1")


def _seen(path: Path, frames: Frames) -> dict[str, Any]:
    """Return the columns of the clip that dedup uses, measured on its file."""
    encode.write_video(path, frames, fps=24)
    scorers = {name: SCORES[name] for name in ("hashes", "letterbox", "cuts")}
    columns = measure(ClipFile(path=str(path)), FramesSpec(), scorers)
    height, width = frames.shape[1:3]
    return {"clip_id": path.stem, "height": height, "width": width} | {
        name: value for name, value in columns.items() if name not in ("num_frames_decoded", "packet_hash")
    }


def _seen_without_bars(tmp_path: Path, made: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the scored row of each clip; the scores find bars in none."""
    rows = {name: _seen(tmp_path / f"{name}.mp4", np.ascontiguousarray(part)) for name, part in made.items()}
    assert {row[side] for row in rows.values() for side in BARS} == {0}
    return rows


def _why_kept(tmp_path: Path, clip: dict[str, Any], copy: dict[str, Any]) -> str:
    """Return why the clip is kept over its copy, which dedup must find."""
    run = make_run(tmp_path / f"run-{copy['clip_id']}", [clip, copy])
    run_dedup(run, DedupSpec())
    assert copies(run) == {copy["clip_id"]: clip["clip_id"]}
    return str(found_in(run)[copy["clip_id"]]["duplicate_kept_because"])


def test_bars_that_no_edge_shows_are_distinguished_from_the_copy_without_them(tmp_path: Path) -> None:
    # Lights on black: no bar has a straight edge here, so the scores find none in any copy.
    light, rng = np.zeros((96, 160, 3), np.uint8), np.random.default_rng(3)
    for y, x in rng.integers([[20], [20]], [[76], [140]], (2, 5)).T.tolist():
        cv2.circle(light, (x, y), 9, rng.integers(90, 255, 3).tolist(), -1)
    lights = np.stack([cv2.GaussianBlur(light, (0, 0), 4)] * 12)
    padding = {"top": (0, 0), "a-top": (8, 0), "a-side": (0, 8)}
    made = {name: np.pad(lights, ((0, 0), (y, y), (x, x), (0, 0))) for name, (y, x) in padding.items()}
    made["a-turned"] = np.rot90(made["a-top"], 1, (1, 2))
    made["larger"] = np.stack([cv2.resize(picture, (192, 128)) for picture in lights])
    rows = _seen_without_bars(tmp_path, made)

    for name in ("a-top", "a-side", "a-turned"):
        assert _why_kept(tmp_path, rows["top"], rows[name]).startswith("pixels 15360 > 14")
    # A squeezed copy has another shape too, and no bars.
    run = make_run(tmp_path / "run", [rows["top"], rows["larger"]])
    run_dedup(run, DedupSpec())
    assert copies(run) == {"top": "larger"}


@pytest.mark.parametrize(("down", "across"), [(6, 10), (10, 16)])
def test_a_dark_clip_is_kept_over_its_copy_with_unseen_bars_on_all_sides(
    tmp_path: Path, down: int, across: int
) -> None:
    y, x = np.mgrid[-1:1:96j, -1:1:160j]
    glow = (still(12, 96, 160, 4) * np.exp(-4 * (x * x + y * y))[:, :, None]).astype(np.uint8)
    boxed = np.pad(glow, ((0, 0), (down, down), (across, across), (0, 0)))
    scaled = np.stack([cv2.resize(picture, (160, 96), interpolation=cv2.INTER_AREA) for picture in boxed])
    made = {"glow": glow, "a-boxed": boxed, "a-scaled": scaled, "a-turned": np.rot90(boxed, 1, (1, 2))}
    rows = _seen_without_bars(tmp_path, made)

    for name in ("a-boxed", "a-scaled", "a-turned"):
        assert _why_kept(tmp_path, rows["glow"], rows[name]).startswith("pixels 15360 > ")


@pytest.mark.parametrize("own", [(0, 0), (4, 0), (4, 4)])
@pytest.mark.parametrize("bars", [(20, 0), (0, 30), (18, 30)])
def test_a_clip_with_thin_bars_of_its_own_is_kept_over_its_copy_with_more_bars(
    tmp_path: Path, own: tuple[int, int], bars: tuple[int, int]
) -> None:
    clip = barred(panned(3, 1, 12, 152, 256), own[0], own[0], own[1], own[1])
    more = np.pad(clip, ((0, 0), (bars[0],) * 2, (bars[1],) * 2, (0, 0)))
    run = make_run(
        tmp_path / "run", [_seen(tmp_path / "clip.mp4", clip), _seen(tmp_path / "a-barred.mp4", more)]
    )

    run_dedup(run, DedupSpec())

    assert copies(run) == {"a-barred": "clip"}


def test_more_picture_between_bars_is_kept_over_less_without(tmp_path: Path) -> None:
    small = panned(3, 1, 12, 144, 256)
    large = np.stack([cv2.resize(picture, (512, 288)) for picture in small])
    boxed = np.pad(large, ((0, 0), (36, 36), (64, 64), (0, 0)))
    run = make_run(
        tmp_path / "run", [_seen(tmp_path / "a-small.mp4", small), _seen(tmp_path / "boxed.mp4", boxed)]
    )

    run_dedup(run, DedupSpec())

    assert copies(run) == {"a-small": "boxed"}


def test_any_numeric_column_can_be_preferred_and_no_other(tmp_path: Path) -> None:
    rows = [
        {"clip_id": "a", "packet_hash": "p", "aesthetic_score": 4.0, "bit_rate": 9},
        {"clip_id": "b", "packet_hash": "p", "aesthetic_score": 5.0, "bit_rate": 1},
    ]
    run = make_run(tmp_path / "run", rows)
    run_dedup(run, DedupSpec(prefer=("aesthetic_score",)))
    assert copies(run) == {"a": "b"}
    with pytest.raises(ColumnError, match="prefer names the column colour, which does not exist"):
        run_dedup(run, DedupSpec(prefer=("colour",)))
    with pytest.raises(ColumnError, match="prefer needs numeric columns; caption"):
        run_dedup(run, DedupSpec(prefer=("caption",)))


def test_the_next_best_copy_is_kept_when_the_best_is_rejected(tmp_path: Path) -> None:
    rows = [
        {"clip_id": name, "packet_hash": "p", "duration_seconds": seconds, "width": 64, "height": 64}
        for name, seconds in (("a", 3.0), ("b", 60.0), ("c", 5.0))
    ]
    run = make_run(tmp_path / "run", [*rows, {"clip_id": "d", "duration_seconds": 1.0}])
    run_dedup(run, DedupSpec())
    assert copies(run) == {"a": "b", "c": "b"}

    def verdicts(spec: FilterSpec) -> dict[str, tuple[str, str, str]]:
        run_filter(run, spec)
        checked = table.scan(run, "filter").filter(~pl.col("is_kept")).collect()
        return {
            row["clip_id"]: (row["reject_stage"], row["reject_rule"], row["reject_value"])
            for row in checked.to_dicts()
        }

    assert verdicts(FilterSpec()) == {
        "a": ("dedup", "duplicate", "copy of b"),
        "c": ("dedup", "duplicate", "copy of b"),
    }
    assert verdicts(FilterSpec(limits={"duration_seconds": Limit(max=10)})) == {
        "a": ("dedup", "duplicate", "copy of c"),
        "b": ("filter", "max_duration_seconds", "60.0"),
    }
