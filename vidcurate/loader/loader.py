"""Loader: the micro-batches of any step, with decoded frames, on one rank.

The loader has no position. `step(t)` returns what the plan says, whatever calls came before, and whatever the
number of workers and ranks. To the order it adds prefetching (limited in bytes, not in batches), and fallback
clips: when a clip does not decode, the loader reads the fallback clip that the plan names and reports an
event.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vidcurate import rng
from vidcurate.errors import MediaError
from vidcurate.executor.shared_memory import SharedArray, SharedArrayPool
from vidcurate.loader import clip_view, fallback_clips
from vidcurate.loader.decode.decode_clip import DecodeTask
from vidcurate.loader.decode.worker_pool import DecodePool
from vidcurate.loader.decode_tasks import decode_task, num_starts
from vidcurate.loader.fallback_clips import Event
from vidcurate.loader.rank_loader import MOST_AHEAD, RankLoader
from vidcurate.loader.remote_clips import FetchingPool, decode_from, pool_for
from vidcurate.loader.spec import LoaderSpec
from vidcurate.sampler import order
from vidcurate.sampler.bucket_shapes import Bucket
from vidcurate.sampler.order_state import LoaderState, state_of
from vidcurate.sampler.plan import MicroBatchPlan, Plan
from vidcurate.shards.index import Index

IMAGE_FPS = 120.0  # frame rate that Open-Sora passes to the model for an image
_BEGUN_AT_ONCE = 2  # steps to start prefetching per step read


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Micro-batch of B clips: `frames` uint8 (B, T, H, W, 3) RGB; `fps` float32 (B,), after the stride.

    Each frame is stored plane by plane, so `frames` moved to (B, T, 3, H, W) is contiguous.
    `level` int32 (B,), `start_frame` int64 (B,) in the clip's frames; `source` is the data set of each clip.
    """

    position: int
    bucket: Bucket
    cell: str
    clip_ids: tuple[str, ...]
    captions: tuple[str, ...]
    frames: NDArray[np.uint8]
    fps: NDArray[np.float32]
    level: NDArray[np.int32]
    source: tuple[str, ...]
    start_frame: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Started:
    """Micro-batch being decoded: a future per slot, or none when this process decodes."""

    plan: MicroBatchPlan
    tasks: list[DecodeTask]
    frames: NDArray[np.uint8]
    buffer: SharedArray | None
    futures: "list[Future[str]]"

    def cancel(self) -> None:
        for future in self.futures:
            future.cancel()


def fps_of(index: Index, bucket: Bucket, rows: Sequence[int]) -> NDArray[np.float32]:
    """Return the frame rates that condition the model for these clips in a bucket, float32 (B,)."""
    if bucket.num_frames == 1:
        return np.full(len(rows), IMAGE_FPS, dtype=np.float32)
    rates = [bucket.fps or index.fps[row] for row in rows]
    return np.array([rate / bucket.frame_stride for rate in rates], dtype=np.float32)


class Loader(RankLoader[_Started]):
    """Loader of rank `rank` of `world_size`. Use as a context manager, or call `close`.

    `num_views` and `captions` (names of captions, or keys of the clips' JSON): which frames and caption of a
    clip each epoch shows, see `clip_view`; with `caption_weights`, one for each of `captions`, every showing
    draws its caption. `caption_weights_from`: step (from 0) → other weights from there on. `crop` random: a
    new random crop at every showing; `flip`: the share of showings that are mirrored left to right, unless
    one of the `captions` names a side. Not with `num_views`.

    `on_event` is called, from `step` and `load`, with {"event": "clip_substituted", step, position, clip_id,
    fallback, kind, reason} and {"event": "worker_replaced", reason, clip_id, exit_status, phase,
    seconds_in_phase, state, stack}: see `worker_heartbeat.WorkerState`; for shards at a URL also with
    {"event": "request_retried", url, reason}.
    """

    def __init__(
        self,
        index: Index,
        plan: Plan,
        spec: LoaderSpec,
        *,
        rank: int = 0,
        world_size: int = 1,
        num_views: int | None = None,
        captions: Sequence[str] = ("caption",),
        caption_weights: Sequence[float] | None = None,
        caption_weights_from: Mapping[int, Sequence[float]] | None = None,
        crop: Literal["center", "random"] = "center",
        flip: float = 0.0,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        super().__init__(plan, spec, rank=rank, world_size=world_size, on_event=on_event)
        self.index = index
        self._num_views, self._captions = num_views, tuple(captions)
        self._caption_weights, self._later_weights = caption_weights, caption_weights_from or {}
        self._crop, self._flip = crop, flip
        self._decode_here = decode_from(index, self._on_event)
        self._pool: DecodePool | FetchingPool | None = None
        self._buffers = SharedArrayPool(spec.prefetch_bytes // 4)
        if spec.num_workers:
            pool = DecodePool(
                spec.num_workers,
                deadline_seconds=spec.deadline_seconds,
                max_worker_clips=spec.max_worker_clips,
                max_worker_bytes=spec.max_worker_bytes,
            )
            self._pool = pool_for(index, pool)

    def step(self, step: int) -> list[MicroBatch]:
        """Return this rank's micro-batches of optimizer step `step`, in the order in which to run them.

        Any step may be requested, any number of times, with the same result. The loader prefetches the
        following steps. Raises VidcurateError when too many clips fail, ShardError or StorageError when a
        shard cannot be read.
        """
        current = [self._take_or_start(position) for position in self._positions(step)]
        self._prefetch(step + 1)
        return self._finish_all(current)

    def load(self, parts: Sequence[MicroBatchPlan]) -> list[MicroBatch]:
        """Return these micro-batches (of `order.one_epoch`, for evaluation). Errors as for `step`."""
        return self._finish_all([self._start(part) for part in parts])

    def state(self, step: int, rolling_hash: str = "") -> LoaderState:
        """Return the loader state before step `step`."""
        return state_of(self.index, self.plan, step, rolling_hash)

    def process_ids(self) -> list[int]:
        """Return the process ids of the decode workers."""
        return self._pool.process_ids() if self._pool else []

    def close(self) -> None:
        """End the workers. Frames of returned micro-batches stay valid."""
        if self._pool:
            self._pool.close()
        self._started.clear()
        self._buffers.close()

    def _prefetch(self, step: int) -> None:
        """Start decoding from `step` on, up to `prefetch_bytes`; cancel all other started micro-batches.

        Each call starts at most two steps, so that the first batch does not wait for many others.
        """
        if self._pool is None:
            return
        kept: dict[int, _Started] = {}
        size, left = 0, _BEGUN_AT_ONCE * max(1, len(self._positions(step)))
        for position in self._positions_ahead(step):
            cell = self.plan.cells[order.cell_at(self.plan, position)[0]]
            size += 3 * cell.cost
            if size > self.spec.prefetch_bytes or len(kept) == MOST_AHEAD:
                break
            left -= position not in self._started
            if left < 0:
                break
            kept[position] = self._take_or_start(position)
        for started in self._started.values():
            started.cancel()
        self._started = kept

    def _finish_all(self, current: list[_Started]) -> list[MicroBatch]:
        try:
            return [self._finish(started) for started in current]
        except BaseException:
            for started in current:
                started.cancel()
            raise
        finally:
            for event in self._pool.take_events() if self._pool else ():
                self._on_event(event)

    def _start(self, part: MicroBatchPlan) -> _Started:
        tasks = [self._task(part, slot, int(row)) for slot, row in enumerate(part.rows)]
        bucket = self.plan.cells[part.cell].bucket
        shape = (len(tasks), bucket.num_frames, 3, bucket.height, bucket.width)
        if self._pool is None:
            frames = np.moveaxis(np.empty(shape, dtype=np.uint8), 2, -1)
            return _Started(plan=part, tasks=tasks, frames=frames, buffer=None, futures=[])
        buffer = SharedArray(shape, self._buffers)
        futures = [self._pool.submit(task, buffer, slot * task.size_bytes) for slot, task in enumerate(tasks)]
        frames = np.moveaxis(buffer.array, 2, -1)
        return _Started(plan=part, tasks=tasks, frames=frames, buffer=buffer, futures=futures)

    def _task(self, part: MicroBatchPlan, slot: int, row: int) -> DecodeTask:
        bucket, number = self.plan.cells[part.cell].bucket, int(part.epochs[slot])
        starts = num_starts(self.index, row, bucket)
        if self._num_views is None:
            first = rng.scale_to_range(self._draw(part, slot, "start_frame"), starts)
        else:
            view = clip_view.view_number(number, self._num_views)
            first = clip_view.first_frame(self.index.word("clip_id", row), view, starts)
        if self._caption_weights is None:
            turn = clip_view.caption_number(number, self._num_views, len(self._captions))
        else:
            step = order.step_of(self.plan, part.position)
            weights = clip_view.weights_at(self._caption_weights, self._later_weights, step)
            turn = clip_view.drawn_caption(self._draw(part, slot, "caption"), weights)
        is_mirrored = self._flip and self._draw(part, slot, "flip") < self._flip * 2.0**64
        return decode_task(
            self.index,
            row,
            bucket,
            first_frame=first,
            caption=self._captions[turn],
            place=self._draw(part, slot, "crop") >> 32 if self._crop == "random" else None,
            mirror=self._captions if is_mirrored else (),
        )

    def _draw(self, part: MicroBatchPlan, slot: int, purpose: str) -> int:
        return order.slot_seed(self.plan.seed, part.position, slot, purpose)

    def _decode(self, started: _Started, slot: int, task: DecodeTask, *, is_fallback: bool) -> str:
        """Wait for the frames of one slot and return the caption. Raises MediaError."""
        if self._pool is None or started.buffer is None:
            frames, caption = self._decode_here(task)
            started.frames[slot] = frames
            return caption
        if is_fallback:
            offset = slot * task.size_bytes
            return self._pool.submit(task, started.buffer, offset, is_urgent=True).result()
        return started.futures[slot].result()

    def _finish(self, started: _Started) -> MicroBatch:
        part = started.plan
        rows = part.rows.tolist()
        tasks = list(started.tasks)
        captions: list[str] = []
        for slot, task in enumerate(started.tasks):
            try:
                captions.append(self._decode(started, slot, task, is_fallback=False))
            except MediaError as error:
                # Drop the traceback: it references this frame and would keep the buffer alive until the
                # next garbage collection.
                known = error.with_traceback(None)
                rows[slot], (tasks[slot], caption) = self._substitute(started, slot, rows, known)
                captions.append(caption)
        self._failures.add_read(len(rows))
        index, cell = self.index, self.plan.cells[part.cell]
        return MicroBatch(
            position=part.position,
            bucket=cell.bucket,
            cell=cell.name,
            clip_ids=tuple(task.clip_id for task in tasks),
            captions=tuple(captions),
            frames=started.frames,
            fps=fps_of(index, cell.bucket, rows),
            level=index.level[rows].astype(np.int32),
            source=tuple(index.word("source_dataset", row) for row in rows),
            start_frame=np.array([task.first_frame for task in tasks], dtype=np.int64),
        )

    def _substitute(
        self, started: _Started, slot: int, rows: list[int], error: MediaError
    ) -> tuple[int, tuple[DecodeTask, str]]:
        """Return row, task and caption of the first fallback clip that decodes."""

        def read(row: int) -> tuple[DecodeTask, str]:
            task = self._task(started.plan, slot, row)
            return task, self._decode(started, slot, task, is_fallback=True)

        return fallback_clips.substitute_clip(
            self.plan,
            started.plan,
            slot,
            rows,
            failed=(started.tasks[slot].clip_id, error),
            clip_id_of=lambda row: self.index.word("clip_id", row),
            read=read,
            failures=self._failures,
            on_event=self._on_event,
        )
