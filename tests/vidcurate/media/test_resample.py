import base64
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.loader_runs import BUCKETS, make, plan_of, read, spec
from vidcurate.errors import RecipeError
from vidcurate.loader.decode import decode_clip
from vidcurate.loader.decode_tasks import decode_task
from vidcurate.loader.loader import Loader
from vidcurate.media import decode, packets, resample
from vidcurate.media.frame_map import FrameMap
from vidcurate.media.frame_map import parse as parse_map
from vidcurate.recipe.recipe import parse
from vidcurate.sampler.buckets import BucketSpec
from vidcurate.sampler.build_plan import plan_from
from vidcurate.shards.index import Index

RATES = st.sampled_from([8.0, 12.5, 15.0, 23.976, 24.0, 25.0, 29.97, 30.0, 48.0, 59.94, 60.0])


@given(st.integers(2, 500), RATES, RATES, st.integers(1, 4))
def test_a_sample_that_a_clip_is_long_enough_for_ends_inside_it(
    num_frames: int, clip_fps: float, fps: float, stride: int
) -> None:
    ticks = int(resample.num_ticks(np.array([num_frames]), np.array([clip_fps]), fps)[0])

    longest = (ticks - 1) // stride + 1
    for length in {1, 2, longest // 2, longest} & set(range(1, longest + 1)):
        numbers = resample.frame_numbers(0, length, stride, clip_fps=clip_fps, fps=fps)
        assert len(numbers) == length
        assert numbers[-1] + 1 == resample.num_source_frames(length, stride, clip_fps, fps) <= num_frames
        exact = np.arange(length) * stride * clip_fps / fps
        assert np.abs(np.array(numbers) - exact).max() <= 0.5 + 1e-9
    if ticks:  # and one tick more would not
        assert resample.num_source_frames(ticks + 1, 1, clip_fps, fps) > num_frames


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=40), RATES, st.integers(0, 39), st.integers(1, 30))
def test_with_a_map_every_frame_is_the_nearest_in_time(
    steps: list[int], fps: float, first: int, length: int
) -> None:
    pts = np.cumsum(np.array([7, *steps], dtype=np.int64))
    first = min(first, len(pts) - 1)
    frame_map = FrameMap(time_base=Fraction(1, 12_800), pts=pts, key_frames=np.array([0]))

    numbers = resample.frame_numbers(first, length, 1, fps=fps, frame_map=frame_map)

    times = [Fraction(int(value), 12_800) for value in pts[first:] - pts[first]]
    rate = Fraction(fps).limit_denominator(1001)
    for tick, number in enumerate(numbers):
        far = [abs(time - tick / rate) for time in times]
        nearest = min(far)
        assert number == first + max(place for place, value in enumerate(far) if value == nearest)


def test_a_constant_rate_gives_the_same_frames_with_a_map_and_without() -> None:
    pts = np.arange(200, dtype=np.int64) * 1001
    frame_map = FrameMap(time_base=Fraction(1, 30_000), pts=pts, key_frames=np.array([0]))

    for fps in (8.0, 15.0, 24.0, 60.0):
        rated = resample.frame_numbers(3, 40, 1, clip_fps=30_000 / 1001, fps=fps)
        assert resample.frame_numbers(3, 40, 1, fps=fps, frame_map=frame_map) == rated


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return make(tmp_path_factory.mktemp("resample"))


@pytest.mark.parametrize("fps", [12.0, 16.0, 36.0])
def test_a_loader_reads_at_the_rate_asked_for_and_says_so(opened: Index, fps: float) -> None:
    spec_at = BUCKETS.model_copy(update={"fps": fps})
    plan = plan_from(opened, spec_at, seed=1, micro_batches_per_step=2)
    needed = {
        row: resample.num_source_frames(cell.bucket.num_frames, 1, 24.0, fps)
        for cell in plan.cells
        for row in cell.rows.tolist()
    }
    assert needed
    assert all(opened.num_frames[row] >= span for row, span in needed.items())
    with Loader(opened, plan, spec()) as loader:
        for batch in (batch for step in range(3) for batch in loader.step(step)):
            assert batch.fps.tolist() == [fps] * len(batch.clip_ids)
            assert batch.bucket.name.endswith(f"-{fps:g}fps")
            for frames, clip_id, first in zip(batch.frames, batch.clip_ids, batch.start_frame, strict=True):
                ticks = np.arange(batch.bucket.num_frames)
                wanted = (first + np.floor(ticks * 24 / fps + 0.5)).astype(int).tolist()
                path = opened.folder.parent / "videos" / f"clip-{clip_id.split('/')[1].split('.')[0]}.mp4"
                shape = {"height": batch.bucket.height, "width": batch.bucket.width}
                assert np.array_equal(frames, decode.read_frames(path, wanted, **shape))


def test_a_rate_is_a_plan_of_its_own_and_no_rate_leaves_the_plan_as_it_was(opened: Index) -> None:
    plain = plan_of(opened)
    buckets = BUCKETS.model_copy(update={"fps": 24.0})
    at_24 = plan_from(opened, buckets, seed=5, micro_batches_per_step=4, small_cells="shrink")

    assert "fps" not in repr(plain.cells[0].bucket)
    assert at_24.fingerprint != plain.fingerprint
    # All clips have that rate already: only the names differ.
    assert [cell.rows.tolist() for cell in at_24.cells] == [cell.rows.tolist() for cell in plain.cells]
    assert read(opened, plain, [0])[0][0][6] is not None


def test_a_rate_beside_the_published_rule_is_refused() -> None:
    with pytest.raises(RecipeError, match="leave out fps"):
        parse("{table: {144p: {8: [1.0, 2]}}, published: true, fps: 24}", BucketSpec)


def test_at_a_variable_rate_the_times_decide(make_video) -> None:  # type: ignore[no-untyped-def]
    frame_map = packets.frame_map_of(make_video("constant.mp4", num_frames=12))
    assert frame_map is not None
    late = FrameMap(
        time_base=frame_map.time_base,
        pts=np.where(np.arange(12) < 6, frame_map.pts, frame_map.pts * 2 - frame_map.pts[6]),
        key_frames=frame_map.key_frames,
    )

    assert resample.frame_numbers(0, 9, 1, fps=24.0, frame_map=late) == [0, 1, 2, 3, 4, 5, 6, 7, 7]


def test_a_worker_is_reported_the_frame_map_of_the_index(opened: Index) -> None:
    plan = plan_of(opened)
    rows = [(cell.bucket, row) for cell in plan.cells for row in cell.rows.tolist()]
    maps = 0
    for bucket, row in rows:
        task = decode_task(opened, row, bucket, first_frame=1)
        data = base64.b64decode(task.frame_map)
        assert data == (opened.words("frame_map")[row].as_py() or b"")
        maps += bool(data)
        assert not data or len(parse_map(data)) == opened.num_frames[row]
        frames, _ = decode_clip.decode(task)
        assert np.array_equal(frames, decode_clip.decode(replace(task, frame_map=""))[0])
    assert 0 < maps < len(rows)
