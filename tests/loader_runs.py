"""Loader runs: small shards of real videos whose clips are identifiable by their frames."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from vidcurate.errors import MediaError
from vidcurate.loader.decode.decode_clip import DecodeTask
from vidcurate.loader.decode.worker_pool import DecodePool
from vidcurate.loader.loader import Loader, MicroBatch
from vidcurate.loader.spec import LoaderSpec
from vidcurate.media import encode, packets
from vidcurate.recipe.recipe import parse
from vidcurate.sampler import order
from vidcurate.sampler.buckets import BucketSpec
from vidcurate.sampler.build_plan import plan_from
from vidcurate.sampler.plan import Plan
from vidcurate.shards import index, index_file
from vidcurate.shards.index import Index
from vidcurate.storage.checksum import crc32c

BUCKETS = parse(
    """
    sizes: {32px: {"0.50": [24, 48], "1.00": [32, 32]}}
    table: {32px: {4: [1.0, 3], 8: [[1.0, 0.6], 2]}}
    """,
    BucketSpec,
)


def picture(number: int, frame: int, height: int, width: int) -> Any:
    """Return a frame (H, W, 3) whose colours name the clip and the frame."""
    image = np.empty((height, width, 3), dtype=np.uint8)
    image[:, : width // 2] = (37 * number % 200 + 20, 91 * number % 200 + 20, 150)
    image[:, width // 2 :] = 10 + 8 * frame % 230
    return image


def clips(count: int = 24) -> list[dict[str, Any]]:
    """Return the facts of clips of two levels and shapes, 9 to 20 frames long, most with two captions."""
    return [
        {
            "clip_id": f"clip/{number}.0",
            "sample_key": f"clip-{number}",
            "source_id": f"source{number // 2}",
            "source_dataset": "even" if number % 2 == 0 else "odd",
            "fold": "validation" if number % 12 == 11 else "train",
            "level": 1 + number % 2,
            "caption": f"caption of clip {number}, ünï",
            **({"short_caption": f"clip {number}"} if number % 4 else {}),
            "video_extension": "mp4",
            "height": 48 if number % 3 else 40,
            "width": 48 if number % 3 else 80,
            "fps": 24.0,
            "num_frames": 9 + number % 12,
            "number": number,
        }
        for number in range(count)
    ]


def videos(folder: Path, facts: Sequence[dict[str, Any]]) -> dict[str, Path]:
    """Encode one video per clip; return their paths by clip id."""
    folder.mkdir(parents=True, exist_ok=True)
    paths: dict[str, Path] = {}
    for fact in facts:
        path = paths[fact["clip_id"]] = folder / f"{fact['sample_key']}.mp4"
        if not path.exists():
            frames = np.stack(
                [
                    picture(fact["number"], frame, fact["height"], fact["width"])
                    for frame in range(fact["num_frames"])
                ]
            )
            encode.write_video(path, frames, fps=fact["fps"])
    return paths


def frame_map(payload: bytes) -> bytes | None:
    """Return a video's packed frame map, None for what is no video."""
    try:
        found = packets.frame_map_of(payload)
    except MediaError:
        return None
    return found and found.to_bytes()


def write_shards(
    folder: Path,
    facts: Sequence[dict[str, Any]],
    payloads: dict[str, bytes],
    *,
    per_shard: int = 7,
) -> Index:
    """Write files that hold JSON and video of each clip at an offset, and their index; open it."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[Any]] = {name: [] for name in index_file.COLUMNS if not name.endswith("_hash")}
    for first in range(0, len(facts), per_shard):
        shard = f"train-{first // per_shard:06d}.tar"
        data = bytearray(512)
        for fact in facts[first : first + per_shard]:
            names = [name for name in ("clip_id", "caption", "short_caption") if name in fact]
            said = json.dumps({name: fact[name] for name in names}).encode()
            payload = payloads[fact["clip_id"]]
            places = {
                "shard": shard,
                "json_offset": len(data),
                "json_size": len(said),
                "json_crc32c": crc32c(said),
                "video_offset": len(data) + len(said) + 512,
                "video_size": len(payload),
                "video_crc32c": crc32c(payload),
                "frame_map": frame_map(payload) if fact["number"] % 4 else None,
            }
            data += said + bytes(512) + payload + bytes(512)
            for name, values in rows.items():
                values.append({**fact, **places}.get(name))
        (folder / shard).write_bytes(data)
    index_file.write_index(folder, rows)
    return index.read_index(folder)


def make(folder: Path, *, count: int = 24, per_shard: int = 7) -> Index:
    """Return the opened index of small shards; videos are encoded once per folder."""
    facts = clips(count)
    payloads = {name: path.read_bytes() for name, path in videos(folder / "videos", facts).items()}
    return write_shards(folder / "shards", facts, payloads, per_shard=per_shard)


def plan_of(opened: Index, **more: Any) -> Plan:
    settings = {"seed": 5, "micro_batches_per_step": 4, "small_cells": "shrink", **more}
    return plan_from(opened, BUCKETS, **settings)


def spec(**settings: Any) -> LoaderSpec:
    return LoaderSpec(**settings)


def reported(batch: MicroBatch) -> tuple[Any, ...]:
    """Return all that a micro-batch says, with a hash in place of the frames."""
    return (
        batch.position,
        batch.bucket,
        batch.cell,
        batch.clip_ids,
        batch.captions,
        batch.frames.shape,
        hashlib.sha256(batch.frames.tobytes()).hexdigest(),
        batch.fps.tolist(),
        batch.level.tolist(),
        batch.source,
        batch.start_frame.tolist(),
    )


def read(
    opened: Index, plan: Plan, steps: Sequence[int], *, world_size: int = 1, **settings: Any
) -> dict[int, list[tuple[Any, ...]]]:
    """Return step → what all ranks together read in it, in the order of positions."""
    found: dict[int, list[tuple[Any, ...]]] = {step: [] for step in steps}
    for rank in range(world_size):
        with Loader(opened, plan, spec(**settings), rank=rank, world_size=world_size) as loader:
            for step in steps:
                found[step] += [reported(batch) for batch in loader.step(step)]
    return {step: sorted(batches, key=lambda batch: batch[0]) for step, batches in found.items()}


def tasks_of(opened: Index, plan: Plan, step: int, world_size: int) -> list[tuple[int, list[DecodeTask]]]:
    """Return (position, what workers are given) of all ranks' micro-batches of a step; none is decoded."""
    found = []
    for rank in range(world_size):
        with Loader(opened, plan, spec(), rank=rank, world_size=world_size) as loader:
            for position in loader._positions(step):
                found.append((position, loader._start(order.micro_batch(plan, position)).tasks))
    return sorted(found, key=lambda one: one[0])


def shard_of(opened: Index, clip_id: str) -> Path:
    row = opened.words("clip_id").to_pylist().index(clip_id)
    path: Path = opened.folder / opened.shards[opened.shard_number[row]]
    return path


def first_clip(opened: Index, plan: Plan, step: int = 0) -> str:
    return opened.word("clip_id", int(order.step_micro_batches(plan, step)[0].rows[0]))


def wait_until_ready(loader: Loader) -> None:
    """Wait until all workers are there and wait for work, with their signals set."""
    assert isinstance(loader._pool, DecodePool)
    until = time.monotonic() + 120
    while [worker.is_ready for worker in loader._pool._workers] != [True] * loader.spec.num_workers:
        assert time.monotonic() < until
        time.sleep(0.02)


def wait_until_one_reads(loader: Loader, clip_id: str, seconds: float) -> int:
    """Wait until a worker has been reading a clip for so long; return its process id."""
    until = time.monotonic() + 120
    while True:
        assert time.monotonic() < until
        for worker in loader._pool._workers if isinstance(loader._pool, DecodePool) else ():
            with suppress(OSError, ValueError):  # it has ended, or has said nothing yet
                phase, since, clip = json.loads(os.pread(worker.page, 1024, 0).split(b"\0")[0])
                if (phase, clip) == ("read", clip_id) and time.monotonic() - since >= seconds:
                    return worker.process.pid
        time.sleep(0.02)


@contextmanager
def blocked(opened: Index, clip_id: str) -> Iterator[Callable[[], None]]:
    """Make the shard of a clip a pipe that nobody writes to: a read that never ends, until it is released."""
    path = shard_of(opened, clip_id)
    kept = path.with_suffix(".kept")
    path.rename(kept)
    os.mkfifo(path)

    def release() -> None:
        if kept.exists():
            kept.replace(path)

    try:
        yield release
    finally:
        release()
