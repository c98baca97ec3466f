"""Buckets: the published assignment on request, else a function of the clip alone."""

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidcurate import rng
from vidcurate.errors import InputError, RecipeError
from vidcurate.recipe import recipe
from vidcurate.sampler import buckets
from vidcurate.sampler.bucket_shapes import REASONS, Assignment
from vidcurate.sampler.buckets import BucketSpec
from vidcurate.sampler.resolutions import AREAS, published_sizes

TABLE = {
    "720p": {"1": (0.3, 36), "51": (0.2, 2), "204": (0.0, None)},
    "360p": {"1": (1.0, 141), "51": (0.5, 8), "102": ((0.5, 0.3), 4)},
    "144p": {"1": (1.0, 475), "51": (1.0, 51), "102": ((1.0, 0.33), 27)},
}


def spec_of(**settings: Any) -> BucketSpec:
    return BucketSpec(**settings)


def assign(spec: BucketSpec, clips: list[tuple[str, int, int, int]], seed: int = 42) -> Assignment:
    """Put clips given as (id, frames, height, width) into buckets."""
    ids, frames, heights, widths = zip(*clips, strict=True)
    return buckets.assign(spec, list(ids), np.array(frames), np.array(heights), np.array(widths), seed)


def name(spec: BucketSpec, frames: int, height: int, width: int, seed: int = 42) -> str:
    """Return the bucket of one clip, or the reason for none."""
    found = assign(spec, [("clip", frames, height, width)], seed)
    return found.buckets[found.bucket[0]].name if found.bucket[0] >= 0 else REASONS[found.reason[0]]


def all_certain(table: dict[str, Any]) -> dict[str, Any]:
    return {
        resolution: {frames: (1.0, clips or 1) for frames, (_, clips) in lengths.items()}
        for resolution, lengths in table.items()
    }


# ── against the published tables and rules ──────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def golden(shared: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((shared / "golden" / "tables" / "buckets.json").read_text())
    return found


def published(table: dict[str, Any], **more: Any) -> BucketSpec:
    return BucketSpec.model_validate_json(json.dumps({"table": table, "published": True, **more}))


def same_picks(spec: BucketSpec, picks: list[list[Any]], seed: int, *, is_certain: bool = True) -> None:
    """Compare with reference picks (frames, height, width, bucket or null), each drawn as row 0 of a list."""
    clips = [("", *pick[:3]) for pick in picks]
    found, table = assign(spec, clips, seed), buckets._resolutions_and_buckets(spec)
    numbers = found.bucket
    if not is_certain:
        with pytest.MonkeyPatch.context() as patched:  # the same buckets for thousands of lists of one row
            patched.setattr(buckets, "_resolutions_and_buckets", lambda _: table)
            numbers = [assign(spec, [clip], seed).bucket[0] for clip in clips]
    for number, (frames, height, width, wanted) in zip(numbers, picks, strict=True):
        bucket = found.buckets[number] if number >= 0 else None
        mine = bucket and [bucket.resolution, bucket.num_frames, float(bucket.aspect)]
        assert mine == (wanted and [wanted[0], wanted[1], float(wanted[2])]), (frames, height, width)


def test_the_tables_of_sizes_are_the_published_ones(shared: Path) -> None:
    tables = json.loads((shared / "golden" / "tables" / "aspect_tables.json").read_text())["ASPECT_RATIOS"]
    assert {name: table["num_pixels"] for name, table in tables.items()} == AREAS
    for resolution, table in tables.items():
        wanted = [(float(key), tuple(size)) for key, size in table["sizes"].items()]
        assert [(float(key), size) for key, size in published_sizes(resolution).items()] == wanted


@pytest.mark.parametrize("stage", ["stage1", "stage2", "stage3"])
def test_the_published_stages_pick_the_published_buckets(golden: dict[str, Any], stage: str) -> None:
    table, rows = golden[stage]["bucket_config"], golden[stage]
    certain = all_certain(table)
    same_picks(published(certain), rows["picks_forced_prob1"], 42)
    same_picks(published(certain, frame_stride=2), rows["picks_forced_prob1_frame_interval2"], 42)
    for seed, picks in rows.get("picks_real_prob", {}).items():
        same_picks(published(table), picks, int(seed), is_certain=False)
    mine = [
        (b.resolution, b.num_frames, float(b.aspect), b.height, b.width, b.micro_batch_size)
        for b in buckets.all_buckets(published(table))
    ]
    wanted = [(r[0], r[1], float(r[2]), r[4], r[5], r[6]) for r in rows["buckets"] if r[6] is not None]
    assert mine == wanted


def test_each_resolution_alone_picks_the_published_buckets(golden: dict[str, Any]) -> None:
    for resolution, picks in golden["single_resolution"].items():
        same_picks(published({resolution: {t: [1.0, 1] for t in ("1", "51", "102", "204")}}), picks, 42)


def test_published_draws_are_numpys_by_row_and_length() -> None:
    """The rule, written out: a fresh generator per row and length, seeded by their running numbers."""
    table = {"240p": {"51": [0.4, 20], "102": [[0.7, 0.33], 10]}, "144p": {"51": [0.8, 51]}}
    spec = published(table)
    clips = [(f"{row}", 103 if row % 2 else 60, 240, 426) for row in range(200)]
    found = assign(spec, clips, seed=7)
    stride = 17 * 3  # aspect ratios of all lengths
    for row, (_, frames, _, _) in enumerate(clips):
        first = 7 + row * stride
        wanted = ""
        long, short, small = (np.random.default_rng(first + number) for number in range(3))
        if frames > 102 and long.random() <= 0.33:
            wanted = "240p-102f-0.56" if long.random() < 0.7 else ""
        else:
            wanted = "240p-51f-0.56" if short.random() < 0.4 else ""
        if not wanted:
            wanted = "144p-51f-0.56" if small.random() < 0.8 else "not_drawn"
        number = found.bucket[row]
        assert (found.buckets[number].name if number >= 0 else REASONS[found.reason[row]]) == wanted


def test_published_needs_one_frame_more() -> None:
    table = {"144p": {"51": (1.0, 4)}}
    assert name(spec_of(table=table), 51, 144, 256) == "144p-51f-0.56"
    assert name(spec_of(table=table, published=True), 51, 144, 256) == "too_short"
    assert name(spec_of(table=table, published=True), 52, 144, 256) == "144p-51f-0.56"


# ── the rules, by hand ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("frames", "height", "width", "wanted"),
    [
        (51, 144, 256, "144p-51f-0.56"),
        (50, 144, 256, "too_short"),
        (1, 144, 256, "144p-1f-0.56"),  # an image
        (2, 144, 256, "too_short"),  # a video never becomes an image
        (200, 256, 144, "144p-102f-1.78"),
        (200, 128, 230, "too_small"),  # 29,440 pixels; 0.8 x 36,864 = 29,491.2
        (200, 128, 231, "144p-102f-0.56"),
        (200, 640, 640, "360p-102f-1.00"),
        (200, 0, 640, "too_small"),
        (203, 720, 1280, "720p-51f-0.56"),
        (204, 720, 1280, "720p-204f-0.56"),
    ],
)
def test_a_clip_goes_to_the_largest_resolution_it_fills_and_the_longest_length_it_has(
    frames: int, height: int, width: int, wanted: str
) -> None:
    assert name(spec_of(table=all_certain(TABLE)), frames, height, width) == wanted


def test_a_length_that_is_turned_away_goes_to_a_smaller_resolution() -> None:
    table = {"720p": {"51": (1.0, 1), "204": (0.0, None)}, "144p": {"51": (1.0, 9)}}
    assert name(spec_of(table=table), 203, 720, 1280) == "720p-51f-0.56"
    assert name(spec_of(table=table), 204, 720, 1280) == "144p-51f-0.56"
    assert name(spec_of(table={"720p": table["720p"]}), 204, 720, 1280) == "not_drawn"


def test_a_frame_stride_needs_so_many_more_frames() -> None:
    spec = spec_of(table={"144p": {"51": (1.0, 4)}}, frame_stride=3)
    assert name(spec, 151, 144, 256) == "144p-51f-0.56"
    assert name(spec, 150, 144, 256) == "too_short"
    assert buckets.all_buckets(spec)[0].num_source_frames == 151


def test_own_sizes_stand_beside_the_published_ones() -> None:
    spec = recipe.parse(
        """
        sizes: {32px: {"1.00": [32, 32], "0.50": [24, 48]}}
        table: {32px: {8: [1.0, 6]}, 144p: {8: [[0.5, 0.5], 2]}}
        """,
        BucketSpec,
    )
    assert name(spec, 8, 40, 40) == "32px-8f-1.00"
    assert name(spec, 8, 40, 80) == "32px-8f-0.50"
    assert name(spec, 8, 30, 30) == "too_small"  # of 24 x 48


@given(st.integers(1, 300), st.integers(1, 2000), st.integers(1, 2000))
def test_the_aspect_ratio_is_the_nearest(frames: int, height: int, width: int) -> None:
    spec = spec_of(table=all_certain(TABLE))
    found = assign(spec, [("clip", frames, height, width)])
    if found.bucket[0] >= 0:
        bucket = found.buckets[found.bucket[0]]
        keys = [float(key) for key in published_sizes(bucket.resolution)]
        assert abs(float(bucket.aspect) - height / width) == min(abs(key - height / width) for key in keys)
        assert height * width >= 0.8 * AREAS[bucket.resolution]
        assert frames >= bucket.num_frames


# ── draws depend on the clip ────────────────────────────────────────────────────────────────────────────────

clips = st.lists(
    st.tuples(
        st.text(min_size=1, max_size=12),
        st.integers(1, 250),
        st.sampled_from([144, 240, 360, 720]),
        st.sampled_from([144, 256, 640, 1280]),
    ),
    min_size=1,
    max_size=40,
    unique_by=lambda clip: clip[0],
)


@given(clips, st.randoms(use_true_random=False))
def test_the_bucket_of_a_clip_does_not_depend_on_the_others(
    rows: list[tuple[str, int, int, int]],
    random: Random,
) -> None:
    spec = spec_of(table=TABLE)
    together = assign(spec, rows)
    alone = [assign(spec, [row]) for row in rows]
    assert together.bucket.tolist() == [int(one.bucket[0]) for one in alone]
    assert together.reason.tolist() == [int(one.reason[0]) for one in alone]
    order = list(range(len(rows)))
    random.shuffle(order)
    assert assign(spec, [rows[i] for i in order]).bucket.tolist() == together.bucket[order].tolist()
    hashes = rng.id_hashes([row[0] for row in rows])
    _, frames, heights, widths = (np.array(column) for column in zip(*rows, strict=True))
    assert np.array_equal(buckets.assign(spec, hashes, frames, heights, widths, 42).bucket, together.bucket)
    assert all(
        (reason > 0) == (bucket < 0) for bucket, reason in zip(together.bucket, together.reason, strict=True)
    )


def test_a_draw_is_not_moved_by_other_buckets_of_the_table() -> None:
    rows = [(f"clip{i}", 60, 360, 640) for i in range(500)]
    small = {"360p": {"51": (0.5, 8)}}
    large = {"1080p": {"51": (0.5, 1)}, "360p": {"51": (0.5, 8), "816": (1.0, 1)}}
    taken = [assign(spec_of(table=table), rows).bucket >= 0 for table in (small, large)]
    assert np.array_equal(taken[0], taken[1])


def test_chances_come_true() -> None:
    count = 70_000  # more than one chunk
    ids = [f"clip{i}" for i in range(count)]
    spec = spec_of(table={"360p": {"51": (0.3, 8), "102": ((0.5, 0.4), 4)}, "144p": {"51": (0.5, 51)}})
    full = np.full(count, 120)
    found = buckets.assign(spec, ids, full, np.full(count, 360), np.full(count, 640), 1)
    names = [bucket.name for bucket in found.buckets]
    share = {n: np.mean(found.bucket == names.index(n)) for n in names if n.endswith("0.56")}
    assert share["360p-102f-0.56"] == pytest.approx(0.4 * 0.5, abs=0.01)
    assert share["360p-51f-0.56"] == pytest.approx(0.6 * 0.3, abs=0.01)
    assert share["144p-51f-0.56"] == pytest.approx((1 - 0.2 - 0.18) * 0.5, abs=0.01)
    assert found.counts() == {"too_small": 0, "too_short": 0, "not_drawn": int(np.sum(found.bucket < 0))}
    other = buckets.assign(spec, ids, full, np.full(count, 360), np.full(count, 640), 2)
    assert 0.2 < np.mean(other.bucket != found.bucket) < 0.8


def test_the_golden_draws_of_the_default_mode_never_change() -> None:
    rows = [(f"clip{i}", 40 + 10 * i, 360, 640) for i in range(12)]
    assert assign(spec_of(table=TABLE), rows).bucket.tolist() == [
        -1,
        -1,
        108,
        57,
        57,
        57,
        108,
        57,
        57,
        57,
        91,
        108,
    ]


# ── bad tables ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("table: {}", "table is empty"),
        ("table: {144p: {}}", "table is empty"),
        ("table: {150p: {51: [1.0, 8]}}", "table.150p is no resolution; known are 144p"),
        ("table: {144p: {51: [1.5, 8]}}", "table.144p.51 has the chance 1.5; it must lie in 0 to 1"),
        ("table: {144p: {51: [-0.1, 8]}}", "table.144p.51 has the chance -0.1"),
        ("table: {144p: {51: [0.5, 0]}}", "table.144p.51 has the micro-batch size 0"),
        ("table: {144p: {51: [0.5, null]}}", "table.144p.51 has no micro-batch size"),
        ("table: {144p: {long: [0.5, 2]}}", "table.144p.long is no number of frames"),
        ("table: {144p: {0: [0.5, 2]}}", "table.144p.0 is no number of frames"),
        ("table: {144p: {1: [[0.5, 0.5], 2]}}", "table.144p.1 is for images"),
        ("table: {144p: {51: [0.5]}}", "table.144p.51"),
        ("{table: {9px: {8: [1.0, 2]}}, sizes: {9px: {}}}", "9px has no sizes"),
        ("{table: {9px: {8: [1.0, 2]}}, sizes: {9px: {wide: [9, 9]}}}", "sizes.9px.wide is no aspect ratio"),
        (
            "{table: {9px: {8: [1.0, 2]}}, sizes: {9px: {'1.0': [9, 9], '1.00': [8, 8]}}}",
            "gives one aspect ratio twice",
        ),
        ("{table: {9px: {8: [1.0, 2]}}, sizes: {9px: {1.0: [0, 9]}}}", "a height and a width above 0"),
        ("{table: {9px: {8: [1.0, 2]}}, sizes: {9px: {nan: [9, 9]}}}", "sizes.9px.nan is no aspect ratio"),
        ("{table: {9px: {8: [1.0, 2]}}, sizes: {9px: {1.0: [65537, 9]}}}", "at most 65,536 px"),
        ("{table: {144p: {8: [1.0, 2]}}, sizes: {144p: {1.0: [9, 9]}}}", "144p is a published resolution"),
        ("{table: {144p: {8: [1.0, 2]}}, frame_stride: 0}", "frame_stride"),
        ("{table: {144p: {8: [1.0, 2]}}, publish: true}", "Did you mean published?"),
    ],
)
def test_a_bad_table_is_refused_in_one_line(text: str, complaint: str) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe.parse(text, BucketSpec)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_side_beyond_floating_point_is_refused() -> None:
    sizes = {"9px": {"1.0": (10**400, 9)}}  # as a recipe in JSON may hold it; YAML's integers are shorter
    with pytest.raises(ValueError, match="at most 65,536 px"):
        BucketSpec.model_validate({"table": {"9px": {"8": (1.0, 2)}}, "sizes": sizes})


def test_columns_of_different_length_are_refused() -> None:
    with pytest.raises(InputError, match=r"have \[1, 2\] rows"):
        buckets.assign(spec_of(table=TABLE), ["a"], np.array([1, 2]), np.array([1]), np.array([1]), 0)
