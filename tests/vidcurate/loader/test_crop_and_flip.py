"""Crops and mirrored pictures: the very pixels, drawn for a place in the order, whoever reads it."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests import loader_runs
from tests.trainer.shards_for_tests import make_shards
from vidcurate.loader.decode import decode_clip
from vidcurate.loader.decode.decode_clip import mentions_left_or_right
from vidcurate.loader.loader import Loader
from vidcurate.loader.spec import LoaderSpec
from vidcurate.media import decode, encode
from vidcurate.recipe.recipe import parse
from vidcurate.sampler import order
from vidcurate.sampler.buckets import BucketSpec
from vidcurate.sampler.build_plan import plan_from
from vidcurate.sampler.plan import Plan
from vidcurate.shards.index import Index, read_index
from vidcurate.shards.read_clip import read_clip_facts

SQUARE = "{sizes: {32px: {'1.00': [32, 32]}}, table: {32px: {4: [1.0, 2]}}}"


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """24 clips; one in three is twice as wide as its bucket; a quarter moves left, a quarter right."""
    return read_index(make_shards(tmp_path_factory.mktemp("crop") / "shards", num_clips=24))


@pytest.fixture(scope="module")
def plan(opened: Index) -> Plan:
    return plan_from(opened, parse(SQUARE, BucketSpec), seed=7, micro_batches_per_step=6)


def test_the_cut_is_that_part_of_the_whole_picture_and_the_mirror_its_mirror(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 255, (3, 32, 96, 3), dtype=np.uint8)
    path = tmp_path / "noise.mp4"
    encode.write_video(path, frames, fps=8.0, crf=18)
    whole = decode.read_frames(path, [0, 1, 2], height=32, width=96)
    middle = decode.read_frames(path, [0, 1, 2], height=32, width=32)
    inside = np.s_[:, :, 6:-6]  # at the edge of a crop colour has no neighbour to be interpolated with
    assert np.array_equal(middle[inside], whole[:, :, 32:64][inside])
    seen = Counter[int]()
    for place in range(0, 1 << 32, (1 << 32) // 99):
        part = decode.read_frames(path, [0, 1, 2], height=32, width=32, place=place)
        left = place * 33 >> 32
        assert np.array_equal(part[inside], whole[:, :, 2 * left : 2 * left + 32][inside])
        seen[left] += 1
    assert set(seen) == set(range(33))
    mirrored = decode.read_frames(path, [0, 1, 2], height=32, width=96, mirror=True)
    assert np.array_equal(mirrored, whole[:, :, ::-1])
    both = decode.read_frames(path, [1], height=32, width=32, place=0, mirror=True)
    assert np.array_equal(both[inside], whole[1:2, :, :32][:, :, ::-1][inside])


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_a_turned_picture_is_mirrored_as_it_is_seen(tmp_path: Path, degrees: int) -> None:
    path = tmp_path / "turned.mp4"
    frames = np.random.default_rng(1).integers(0, 255, (2, 64, 64, 3), dtype=np.uint8)
    encode.write_video(path, frames, fps=8.0, crf=18, rotation_degrees=degrees)
    upright = decode.read_frames(path, [0], height=32, width=48)
    assert np.array_equal(
        decode.read_frames(path, [0], height=32, width=48, mirror=True), upright[:, :, ::-1]
    )


def test_places_and_mirrors_are_drawn_for_each_showing_and_the_share_is_kept(
    opened: Index, plan: Plan
) -> None:
    with Loader(opened, plan, LoaderSpec(), crop="random", flip=0.25) as loader:
        parts = [b for step in range(100) for b in order.step_micro_batches(plan, step)]
        tasks = [loader._task(part, slot, int(row)) for part in parts for slot, row in enumerate(part.rows)]
    places = [task.place for task in tasks if task.place is not None]
    assert len(set(places)) == len(places) == len(tasks)
    assert np.mean(np.array(places) / 2**32) == pytest.approx(0.5, abs=0.03)
    assert np.mean([bool(task.mirror) for task in tasks]) == pytest.approx(0.25, abs=0.04)
    by_half = [np.mean([bool(t.mirror) for t in tasks if (t.place or 0) >> 31 == half]) for half in (0, 1)]
    assert by_half[0] == pytest.approx(by_half[1], abs=0.06)  # the draws know nothing of each other


def test_switched_off_every_task_is_what_it_was(opened: Index, plan: Plan) -> None:
    parts = [b for step in range(20) for b in order.step_micro_batches(plan, step)]
    with Loader(opened, plan, LoaderSpec()) as off, Loader(opened, plan, LoaderSpec(), crop="random") as on:
        for part in parts:
            for slot, row in enumerate(part.rows.tolist()):
                task, other = off._task(part, slot, row), on._task(part, slot, row)
                assert (task.place, task.mirror) == (None, ())
                assert task.first_frame == other.first_frame  # other draws do not move the start frame


def test_any_ranks_and_workers_read_the_same_pictures(opened: Index, plan: Plan) -> None:
    def read(step: int, ranks: int, workers: int) -> dict[int, object]:
        found: dict[int, object] = {}
        for rank in range(ranks):
            spec = LoaderSpec(num_workers=workers)
            with Loader(opened, plan, spec, rank=rank, world_size=ranks, crop="random", flip=0.5) as loader:
                found |= {batch.position: loader_runs.reported(batch) for batch in loader.step(step)}
        return found

    once = read(9, 1, 0)
    assert read(9, 1, 1) == once == read(9, 2, 0)
    with Loader(opened, plan, LoaderSpec()) as plain:
        assert {batch.position: loader_runs.reported(batch) for batch in plain.step(9)} != once


def test_a_clip_whose_caption_names_a_side_is_never_mirrored(opened: Index, plan: Plan) -> None:
    seen = Counter[bool]()
    with Loader(opened, plan, LoaderSpec(), flip=1.0) as loader:
        for part in (b for step in range(3) for b in order.step_micro_batches(plan, step)):
            for slot, row in enumerate(part.rows.tolist()):
                task = loader._task(part, slot, row)
                frames, caption = decode_clip.decode(task)
                plain, _ = decode_clip.decode(Loader(opened, plan, LoaderSpec())._task(part, slot, row))
                is_sided = mentions_left_or_right(str(read_clip_facts(opened, row)["caption"]))
                assert np.array_equal(frames, plain if is_sided else plain[:, :, ::-1])
                assert is_sided == ("left" in caption or "right" in caption)
                seen[is_sided] += 1
    assert min(seen[True], seen[False]) > 5


def test_words_that_name_a_side() -> None:
    for sided in (
        "a man on the left",
        "Right-handed batter",
        "the leftmost car",
        "turns clockwise",
        "leftwards",
    ):
        assert mentions_left_or_right(sided)
    for not_sided in ("a bright light", "she leaves", "copyrighted", "upright", ""):
        assert not mentions_left_or_right(not_sided)
