"""The loader gives what the plan says, with the right pixels, whoever decodes them and in whatever order."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.loader_runs import (
    BUCKETS,
    clips,
    plan_of,
    read,
    spec,
    videos,
    wait_until_ready,
    write_shards,
)
from tests.shard_runs import write_table
from vidcurate.errors import ShardError, StorageError, VidcurateError
from vidcurate.loader.loader import Loader
from vidcurate.media import decode
from vidcurate.sampler.build_plan import plan_from
from vidcurate.sampler.order_state import check_state, state_of
from vidcurate.sampler.plan import Plan
from vidcurate.shards.build import run_build_shards
from vidcurate.shards.index import Index, read_index
from vidcurate.shards.layout import ShardSpec

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


def test_closing_with_clips_read_ahead_says_nothing(
    opened: Index, plan: Plan, capfd: pytest.CaptureFixture[str]
) -> None:
    for step in range(6):
        with Loader(opened, plan, spec(num_workers=2)) as loader:
            loader.step(step)

    assert capfd.readouterr().err == ""


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
