"""The loader gives what the plan says, with the right pixels, whoever decodes them and in whatever order."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.loader_runs import (
    BUCKETS,
    clips,
    make,
    plan_of,
    read,
    reported,
    spec,
    tasks_of,
    videos,
    wait_until_ready,
    write_shards,
)
from tests.shard_runs import write_table
from vidcurate.errors import InputError, ShardError, StorageError, VidcurateError
from vidcurate.loader.loader import Loader
from vidcurate.media import decode
from vidcurate.sampler import order
from vidcurate.sampler.build_plan import clips_of_step, plan_from, steps_of_clip
from vidcurate.sampler.order_state import LoaderState, check_state, state_of
from vidcurate.sampler.plan import Plan
from vidcurate.shards.build import run_build_shards
from vidcurate.shards.index import Index, read_index
from vidcurate.shards.layout import ShardSpec


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("loader")


@pytest.fixture(scope="module")
def opened(folder: Path) -> Index:
    return make(folder)


@pytest.fixture(scope="module")
def plan(opened: Index) -> Plan:
    return plan_of(opened)


@pytest.fixture(scope="module")
def undisturbed(opened: Index, plan: Plan) -> dict[int, list[tuple[Any, ...]]]:
    return read(opened, plan, range(6))


# ── what a micro-batch holds ────────────────────────────────────────────────────────────────────────────────


def test_frames_are_those_of_the_files(folder: Path, opened: Index, plan: Plan) -> None:
    paths = videos(folder / "videos", clips())
    facts = {fact["clip_id"]: fact for fact in clips()}
    starts = set()
    with Loader(opened, plan, spec()) as loader:
        for step in range(3):
            for batch in loader.step(step):
                bucket = batch.bucket
                size = (bucket.num_frames, bucket.height, bucket.width, 3)
                assert batch.frames.shape == (len(batch.clip_ids), *size)
                assert batch.frames.dtype == np.uint8
                for slot, clip_id in enumerate(batch.clip_ids):
                    fact = facts[clip_id]
                    start = int(batch.start_frame[slot])
                    starts.add(start)
                    assert 0 <= start <= fact["num_frames"] - bucket.num_frames
                    wanted = decode.read_frames(
                        paths[clip_id],
                        range(start, start + bucket.num_frames),
                        height=bucket.height,
                        width=bucket.width,
                    )
                    assert np.array_equal(batch.frames[slot], wanted)
                    assert batch.captions[slot] == fact["caption"]
                    assert batch.level[slot] == fact["level"]
                    assert batch.source[slot] == fact["source_dataset"]
                    assert fact["fold"] == "train"
                assert batch.fps.dtype == np.float32
                assert batch.fps.tolist() == [24.0] * len(batch.clip_ids)
                assert batch.cell == f"level-{batch.level[0]}/{bucket.name}"
    assert len(starts) > 3


def test_shards_of_build_shards_are_read_and_a_copy_of_their_folder_is_the_same(
    tmp_path: Path, undisturbed: dict[int, Any]
) -> None:
    facts = clips()
    table_rows = []
    for clip_id, path in videos(tmp_path / "videos", facts).items():
        fact = next(fact for fact in facts if fact["clip_id"] == clip_id)
        known = {name: value for name, value in fact.items() if name not in ("number", "video_extension")}
        table_rows.append(
            {**known, "video_path": path.name, "is_kept": True, "probe_status": "ok", "duration_seconds": 1.0}
        )
    run = write_table(tmp_path / "run", table_rows)
    run_build_shards(
        run, ShardSpec(max_clips=5), videos=tmp_path / "videos", out=tmp_path / "shards", num_workers=1
    )
    built = read_index(tmp_path / "shards")
    assert read(built, plan_of(built), range(3), num_workers=1) == {
        step: undisturbed[step] for step in range(3)
    }
    (tmp_path / "shards").rename(tmp_path / "elsewhere")
    moved = read_index(tmp_path / "elsewhere")
    check_state(state_of(built, plan_of(built), 1), moved, plan_of(moved))
    assert read(moved, plan_of(moved), [2]) == {2: undisturbed[2]}


def test_a_frame_stride_takes_every_nth_frame_at_a_lower_rate(folder: Path, opened: Index) -> None:
    paths = videos(folder / "videos", clips())
    strided = plan_from(
        opened, BUCKETS.model_copy(update={"frame_stride": 2}), seed=1, micro_batches_per_step=2
    )
    with Loader(opened, strided, spec()) as loader:
        for batch in loader.step(0):
            start, count = int(batch.start_frame[0]), batch.bucket.num_frames
            wanted = decode.read_frames(
                paths[batch.clip_ids[0]],
                range(start, start + 2 * count, 2)[:count],
                height=batch.bucket.height,
                width=batch.bucket.width,
            )
            assert np.array_equal(batch.frames[0], wanted)
            assert batch.fps.tolist() == [12.0] * len(batch.clip_ids)


def test_pixels_become_numbers_from_minus_one_to_one(opened: Index, plan: Plan) -> None:
    torch = pytest.importorskip("torch")
    from vidcurate.loader.torch import pixels

    with Loader(opened, plan, spec(num_workers=1)) as loader:
        batch = loader.step(0)[0]
    tensor = pixels(batch)
    clips, frames, height, width, _ = batch.frames.shape
    assert tensor.shape == (clips, 3, frames, height, width)
    assert tensor.is_contiguous()
    assert tensor.dtype == torch.float32
    assert -1 <= float(tensor.min()) < float(tensor.max()) <= 1
    assert float(tensor[1, 2, 3, 4, 5]) == pytest.approx(batch.frames[1, 3, 4, 5, 2] / 127.5 - 1, abs=1e-6)
    assert pixels(batch, dtype=torch.bfloat16).dtype == torch.bfloat16


# ── whoever reads ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("num_workers", [1, 4])
def test_workers_and_prefetching_change_nothing(
    opened: Index, plan: Plan, undisturbed: dict[int, Any], num_workers: int
) -> None:
    assert read(opened, plan, range(6), num_workers=num_workers) == undisturbed
    assert read(opened, plan, range(2), num_workers=num_workers, prefetch_bytes=0) == {
        step: undisturbed[step] for step in range(2)
    }


@pytest.fixture(scope="module")
def wide(opened: Index) -> tuple[Plan, dict[int, list[tuple[Any, ...]]]]:
    """Steps of twelve micro-batches, and what one rank without workers reads in the first two."""
    made = plan_of(opened, micro_batches_per_step=12)
    return made, read(opened, made, range(2))


@pytest.mark.parametrize(
    ("world_size", "num_workers"), [(2, 1), (2, 0), (3, 0), (5, 0), (8, 0), (12, 0), (64, 0)]
)
def test_ranks_together_read_the_step(
    opened: Index, wide: tuple[Plan, dict[int, Any]], world_size: int, num_workers: int
) -> None:
    found = read(opened, wide[0], range(2), world_size=world_size, num_workers=num_workers)
    assert found == wide[1]


@given(
    world_size=st.sampled_from((1, 2, 3, 5, 8, 12, 64)) | st.integers(1, 200),
    per_step=st.integers(1, 48),
    step=st.integers(0, 10**12),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=25, deadline=None)
def test_the_tasks_of_all_ranks_are_those_of_one(
    opened: Index, world_size: int, per_step: int, step: int, seed: int
) -> None:
    """Each clip, start frame, caption and size, at any step: what workers are given is all that they read."""
    made = plan_of(opened, micro_batches_per_step=per_step, seed=seed)
    alone = tasks_of(opened, made, step, 1)
    assert [position for position, _ in alone] == list(range(step * per_step, (step + 1) * per_step))
    assert tasks_of(opened, made, step, world_size) == alone


def test_every_step_of_a_plan_can_be_resumed_at(opened: Index, plan: Plan) -> None:
    steps = range(3 * order.steps_for_epochs(plan, 1))
    whole = read(opened, plan, steps)
    for step in steps:
        saved = LoaderState.from_json(state_of(opened, plan, step).to_json())
        again = plan_of(opened)
        check_state(saved, opened, again)
        for world_size in (1, 3):
            assert read(opened, again, [saved.step], world_size=world_size) == {step: whole[step]}
            for later in (step + 1, step + 2):
                assert tasks_of(opened, again, later, world_size) == tasks_of(opened, plan, later, 1)


def test_any_step_may_be_asked_for_in_any_order(
    opened: Index, plan: Plan, undisturbed: dict[int, Any]
) -> None:
    with Loader(opened, plan, spec(num_workers=2)) as loader:
        for step in (3, 3, 0, 5, 1, 4, 3, 2):
            assert sorted(map(reported, loader.step(step))) == undisturbed[step]


def test_a_rank_without_a_micro_batch_gets_an_empty_list(opened: Index, plan: Plan) -> None:
    with Loader(opened, plan, spec(num_workers=1), rank=8, world_size=9) as loader:
        assert [loader.step(step) for step in range(3)] == [[], [], []]
    with pytest.raises(InputError, match="rank 2 of 2"):
        Loader(opened, plan, spec(), rank=2, world_size=2)


def test_resharded_and_moved_clips_are_read_as_before(
    folder: Path, opened: Index, plan: Plan, undisturbed: dict[int, Any]
) -> None:
    facts = clips()[::-1]
    payloads = {name: path.read_bytes() for name, path in videos(folder / "videos", facts).items()}
    moved = write_shards(folder / "moved" / "shards", facts, payloads, per_shard=5)
    other = plan_of(moved)
    check_state(state_of(opened, plan, 3), moved, other)
    assert read(moved, other, range(6)) == undisturbed


def test_evaluation_reads_every_clip_of_its_fold_once(opened: Index) -> None:
    held_out = plan_of(opened, fold="validation")
    seen: list[str] = []
    for rank in range(2):
        with Loader(opened, held_out, spec(num_workers=1)) as loader:
            for part in order.one_epoch(held_out, rank, 2):
                (batch,) = loader.load([part])
                assert len(batch.clip_ids) == len(batch.frames) == len(part.rows)
                seen += batch.clip_ids
    assert sorted(seen) == ["clip/11.0", "clip/23.0"]


def test_prefetching_is_bounded_in_bytes(opened: Index, plan: Plan) -> None:
    two = 2 * max(3 * cell.cost for cell in plan.cells)
    with Loader(opened, plan, spec(num_workers=1, prefetch_bytes=two)) as loader:
        for step in range(3):
            loader.step(step)
            waiting = sum(started.frames.nbytes for started in loader._started.values())
            assert 0 < waiting <= two


def test_workers_hold_neither_torch_nor_polars_nor_the_main_module(opened: Index, plan: Plan) -> None:
    with Loader(opened, plan, spec(num_workers=2)) as loader:
        loader.step(0)
        wait_until_ready(loader)
        for process in loader.process_ids():
            mapped = Path(f"/proc/{process}/maps").read_text()
            assert "libav" in mapped
            assert not re.search(r"torch|polars|pyarrow|libcuda", mapped)
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, vidcurate.loader.decode.decode_clip; print(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert not {"torch", "polars", "pyarrow", "av", "pydantic"} & set(loaded)


def test_the_workers_end_with_the_loader(opened: Index, plan: Plan) -> None:
    with Loader(opened, plan, spec(num_workers=2)) as loader:
        batches = loader.step(0)
        processes = loader.process_ids()
        assert len(processes) == 2
    assert not any(Path(f"/proc/{process}").exists() for process in processes)
    assert batches[0].frames.sum() > 0  # what was handed out stays usable
    loader.close()


# ── the plan of an index ────────────────────────────────────────────────────────────────────────────────────


def test_closing_with_clips_read_ahead_says_nothing(
    opened: Index, plan: Plan, capfd: pytest.CaptureFixture[str]
) -> None:
    for step in range(6):
        with Loader(opened, plan, spec(num_workers=2)) as loader:
            loader.step(step)

    assert capfd.readouterr().err == ""


def test_every_clip_is_in_one_cell_or_left_out_with_a_reason(folder: Path) -> None:
    facts = clips(12)
    facts[0] |= {"height": 9, "width": 9}
    facts[1] |= {"num_frames": 3}
    facts[2] |= {"fps": None}
    facts[3] |= {"width": None}
    payloads = {fact["clip_id"]: b"not read here" for fact in facts}
    small = write_shards(folder / "left_out", facts, payloads)
    made = plan_of(small, fold=None)
    ids = small.words("clip_id").to_pylist()
    left = {reason: [ids[row] for row in rows] for reason, rows in made.left_out.items()}
    assert left == {
        "too_small": ["clip/0.0", "clip/3.0"],
        "too_short": ["clip/1.0"],
        "not_drawn": [],
        "unknown_fps": ["clip/2.0"],
    }
    held = [ids[row] for cell in made.cells for row in cell.rows]
    assert sorted(held) == sorted(set(ids) - {name for names in left.values() for name in names})


def test_clips_are_shown_equally_often_without_weights_and_by_weight_with_them(opened: Index) -> None:
    even = plan_of(opened)
    steps = order.steps_for_epochs(even, 20)
    shown = [
        n * cell.micro_batch_size / len(cell.rows)
        for n, cell in zip(order.micro_batches_before(even, steps), even.cells, strict=True)
    ]
    assert max(shown) - min(shown) < 1.5
    assert sum(shown) / len(shown) == pytest.approx(20, abs=1)
    skewed = plan_of(opened, weights={"1": 3.0, "2": 1.0})
    clips_of = {1: 0, 2: 0}
    for n, cell in zip(order.micro_batches_before(skewed, 1000), skewed.cells, strict=True):
        clips_of[int(cell.name[6])] += n * cell.micro_batch_size
    assert clips_of[1] / clips_of[2] == pytest.approx(3, rel=0.01)


def test_levels_are_chosen_by_name_or_by_weight(opened: Index) -> None:
    for chosen in ({"levels": [2]}, {"weights": {"2": 1.0}}, {"weights": {"1": 0.0, "2": 0.5}}):
        assert {cell.name[:7] for cell in plan_of(opened, **chosen).cells} == {"level-2"}
    with pytest.raises(InputError, match=r"no clip of level 4 in fold train; known levels: 1, 2\."):
        plan_of(opened, levels=[1, 4])
    with pytest.raises(InputError, match="no clip of level 3"):
        plan_of(opened, weights={"3": 1.0})
    with pytest.raises(InputError, match="above 0 for a level with clips"):
        plan_of(opened, weights={"1": 0.0})
    with pytest.raises(InputError, match="a level is a whole number"):
        plan_of(opened, weights={"hard": 1.0})
    with pytest.raises(InputError, match="no clip is in the fold"):
        plan_of(opened, fold="test")


def test_a_step_names_its_clips_and_a_clip_its_steps(opened: Index, plan: Plan) -> None:
    for step in (0, 7, 10**6):
        found = clips_of_step(plan, opened, step)
        assert [(clip.position, clip.slot) for clip in found] == [
            (batch.position, slot)
            for batch in order.step_micro_batches(plan, step)
            for slot in range(len(batch.rows))
        ]
        for clip in found:
            assert clip.caption == f"caption of clip {int(clip.clip_id[5:-2])}, ünï"
    shown = [
        step for step in range(40) for clip in clips_of_step(plan, opened, step) if clip.clip_id == "clip/4.0"
    ]
    assert steps_of_clip(plan, opened, "clip/4.0", count=len(shown)) == tuple(shown)
    assert steps_of_clip(plan, opened, "clip/11.0") == ()  # of the other fold
    with pytest.raises(ShardError, match=r"no clip 'clip/99.0'"):
        steps_of_clip(plan, opened, "clip/99.0")


# ── shards that are not what the index says stop the run ────────────────────────────────────────────────────


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_shard_that_is_gone_or_cut_or_of_another_set_stops_the_run(
    folder: Path, tmp_path: Path, num_workers: int
) -> None:
    facts = clips(6)
    payloads = {name: path.read_bytes() for name, path in videos(folder / "videos", facts).items()}
    broken = write_shards(tmp_path, facts, payloads, per_shard=6)
    made = plan_of(broken)
    shard = tmp_path / broken.shards[0]
    whole = shard.read_bytes()

    def fails(kind: type[VidcurateError], words: str) -> None:
        with Loader(broken, made, spec(num_workers=num_workers)) as loader, pytest.raises(kind, match=words):
            loader.step(0)

    shard.write_bytes(whole.replace(b"clip/", b"clap/"))
    fails(ShardError, r"holds clip 'clap/\d.0' at the position that the index gives for 'clip/\d.0'")
    shard.write_bytes(whole[: broken.video_offset[0]])
    fails(ShardError, r"ends \d+ bytes before clip 'clip/\d.0' does")
    shard.unlink()
    fails(StorageError, r"cannot read clip 'clip/\d.0' \(No such file")
