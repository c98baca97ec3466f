"""Latent loader: micro-batches from latent shards, in the video loader's order.

Threads read each array from its offset straight into the training tensor and compare its CRC-32. As in the
video loader, `step(t)` returns what the plan says, whatever was read before. A clip that failed to decode
during encoding is replaced by the plan's fallback clip, as it would be online.
"""

import os
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.data.latents.folder import LatentFolder, Rows, numbers
from trainer.model.encoders.precision import DTYPES
from vidcurate.errors import InputError, MediaError, ShardError, StorageError
from vidcurate.loader import clip_view, fallback_clips
from vidcurate.loader.fallback_clips import Event
from vidcurate.loader.loader import fps_of
from vidcurate.loader.rank_loader import MOST_AHEAD, RankLoader
from vidcurate.loader.spec import LoaderSpec
from vidcurate.sampler import order
from vidcurate.sampler.bucket_shapes import Bucket
from vidcurate.sampler.plan import Cell, MicroBatchPlan, Plan

_READ_THREADS = 4  # at least: a network file system serves several requests in parallel
_READ_TRIES = 4
_SHAPE = ("channels", "latent_frames", "latent_height", "latent_width")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentBatch:
    """B encoded clips of one shape: `latents` [B, C, T, H, W], and the posterior's `variance` or None.

    `texts`: each clip's features of its caption's tokens [L, C]. All are on the CPU in their stored dtype.
    The other fields are those of `vidcurate.loader.loader.MicroBatch`.
    """

    position: int
    bucket: Bucket
    cell: str
    clip_ids: tuple[str, ...]
    latents: Tensor
    variance: Tensor | None
    texts: tuple[Tensor, ...]
    fps: NDArray[np.float32]
    level: NDArray[np.int32]
    source: tuple[str, ...]
    start_frame: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Place:
    """Location of an array in a shard, and its clip."""

    shard: str
    offset: int
    size: int
    crc32: int
    clip_id: str


@dataclass(slots=True, kw_only=True)
class _Started:
    """A micro-batch being read: per slot the latent row, its text, and a future.

    The future of a slot that needs a fallback clip has a MediaError.
    """

    plan: MicroBatchPlan
    latents: Tensor
    variance: Tensor | None
    texts: list[Tensor]
    rows: list[int]  # of the latents' table
    futures: "list[Future[None]]"


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def read_array(folder: LatentFolder, place: _Place, into: Tensor) -> None:
    """Fill a contiguous tensor with an array of a shard.

    Raises ShardError, naming shard and clip, for truncated or changed bytes, StorageError for a failing disk
    or network.
    """
    path = folder.path / place.shard
    wanted = _bytes_of(into)
    if len(wanted) != place.size:
        raise ShardError(
            f"{path}: clip {place.clip_id!r} has an array of {place.size} bytes where its shape needs "
            f"{len(wanted)}; the table was altered. Copy it again."
        )
    for attempt in range(_READ_TRIES):
        try:
            with open(path, "rb", buffering=0) as file:
                done = 0
                while done < place.size and (
                    got := os.preadv(file.fileno(), [wanted[done:]], place.offset + done)
                ):
                    done += got
            if done < place.size:
                raise ShardError(
                    f"{path}: ends {place.size - done} bytes before clip {place.clip_id!r} does. "
                    "Copy this shard again."
                )
            crc32 = zlib.crc32(wanted)
            if crc32 == place.crc32:
                return
            if attempt:  # read again: the first transfer may have corrupted the bytes
                raise ShardError(
                    f"{path}: clip {place.clip_id!r} has CRC-32 {crc32:08x}, the table says "
                    f"{place.crc32:08x}. Copy the shard again, or delete it and encode again."
                )
        except OSError as error:
            if attempt + 1 == _READ_TRIES or isinstance(error, FileNotFoundError):
                raise StorageError(
                    f"{path}: clip {place.clip_id!r} cannot be read ({error.strerror})."
                ) from error
            time.sleep(0.1 * 4**attempt)


class LatentLoader(RankLoader[_Started]):
    """The micro-batches of rank `rank` of `world_size`. Use as a context manager, or call `close`.

    `num_views`, at most the folder's, `caption_weights` (one for each of the folder's captions, null: they
    take turns) and `caption_weights_from` as in the recipe. `variance`: also read the posterior's. `pin`:
    read into page-locked memory, for a GPU. `on_event` receives the same events as the video loader's.
    """

    def __init__(
        self,
        folder: LatentFolder,
        plan: Plan,
        spec: LoaderSpec,
        *,
        num_views: int,
        caption_weights: Sequence[float] | None = None,
        caption_weights_from: Mapping[int, Sequence[float]] | None = None,
        variance: bool = False,
        rank: int = 0,
        world_size: int = 1,
        pin: bool = False,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        super().__init__(plan, spec, rank=rank, world_size=world_size, on_event=on_event)
        self.folder = folder
        if variance and not folder.has_variance:
            raise InputError(
                f"{folder.path}: stores no posterior variance, but the recipe samples the posterior."
            )
        self._num_views, self._with_variance, self._pin = num_views, variance, pin
        self._caption_weights, self._later_weights = caption_weights, caption_weights_from or {}
        self._columns = {
            name: numbers(folder.latents, name)
            for name in ("first_frame", "offset", "size", "crc32", *_SHAPE)
        }
        self._texts = {
            name: numbers(folder.texts, name)
            for name in ("offset", "size", "crc32", "num_tokens", "channels")
        }
        self._mean_text_bytes = float(np.mean(self._texts["size"])) if len(folder.texts) else 0.0
        kept = folder.manifest["kept"]
        self._latent_dtype, self._text_dtype = DTYPES[kept["latent_dtype"]], DTYPES[kept["text_dtype"]]
        self._clip_bytes = {cell.name: self._bytes_of_clip(cell) for cell in plan.cells}
        self._pool = ThreadPoolExecutor(max(_READ_THREADS, spec.num_workers), "vidcurate-latents")

    def step(self, step: int) -> list[LatentBatch]:
        """Return this rank's micro-batches of optimizer step `step`, in the order in which to run them.

        Steps may be requested in any order and repeatedly. The loader prefetches the next steps. Raises
        ShardError, StorageError, and VidcurateError if too many clips failed.
        """
        current = [self._take_or_start(position) for position in self._positions(step)]
        self._prefetch(step + 1)
        return [self._finish(started) for started in current]

    def load(self, parts: Sequence[MicroBatchPlan]) -> list[LatentBatch]:
        """Return these micro-batches (of `order.one_epoch`, for evaluation). Errors as for `step`."""
        return [self._finish(started) for started in [self._start(part) for part in parts]]

    def process_ids(self) -> list[int]:
        """Return no process ids: this loader starts no decode process."""
        return []

    def close(self) -> None:
        """Stop the threads. Returned tensors stay usable."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._started.clear()

    # ── ahead ───────────────────────────────────────────────────────────────────────────────────────────────

    def _prefetch(self, step: int) -> None:
        """Prefetch from `step` on within `prefetch_bytes`; drop everything else."""
        kept: dict[int, _Started] = {}
        size = 0.0
        for position in self._positions_ahead(step):
            cell = self.plan.cells[order.cell_at(self.plan, position)[0]]
            size += cell.micro_batch_size * (self._clip_bytes[cell.name] + self._mean_text_bytes)
            if (kept and size > self.spec.prefetch_bytes) or len(kept) == MOST_AHEAD:
                break
            kept[position] = self._take_or_start(position)
        for started in self._started.values():
            for future in started.futures:
                future.cancel()
        self._started = kept

    def _bytes_of_clip(self, cell: Cell) -> int:
        first = np.zeros(1, dtype=np.int64)
        (row,), _ = self._found_in(cell, cell.rows[:1], first, first)
        return int(np.prod(self._shape(row))) * self._latent_dtype.itemsize * (1 + self._with_variance)

    def _shape(self, row: int) -> tuple[int, int, int, int]:
        c, t, h, w = (int(self._columns[name][row]) for name in _SHAPE)
        return c, t, h, w

    # ── one micro-batch ─────────────────────────────────────────────────────────────────────────────────────

    def _empty(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, pin_memory=self._pin)

    def _captions_of(self, part: MicroBatchPlan, slots: Sequence[int]) -> Rows:
        """Return the numbers of the captions that these slots show."""
        if self._caption_weights is None:
            epochs = part.epochs[list(slots)]
            return clip_view.caption_number(epochs, self._num_views, self.folder.num_captions)
        draws = (order.slot_seed(self.plan.seed, part.position, slot, "caption") for slot in slots)
        step = order.step_of(self.plan, part.position)
        weights = clip_view.weights_at(self._caption_weights, self._later_weights, step)
        return np.array([clip_view.drawn_caption(draw, weights) for draw in draws])

    def _found_in(
        self, cell: Cell, clip_rows: Rows, epochs: Rows, caption: Rows
    ) -> tuple[list[int], list[int]]:
        """Return the latent and text rows of these clips in these epochs, with these captions."""
        bucket, index = cell.bucket, self.folder.index
        view = clip_view.view_number(epochs, self._num_views)
        latents = self.folder.find_latents(bucket, clip_rows, view)
        texts = self.folder.find_texts(clip_rows, caption)
        for what, found in ((f"latent in {bucket.name}", latents), ("text", texts)):
            if (found < 0).any():
                clip_id = index.word("clip_id", int(clip_rows[found < 0][0]))
                raise ShardError(f"{self.folder.path}: has no {what} of clip {clip_id!r}. Encode it.")
        return latents.tolist(), texts.tolist()

    def _start(self, part: MicroBatchPlan) -> _Started:
        caption = self._captions_of(part, range(len(part.rows)))
        found, texts = self._found_in(self.plan.cells[part.cell], part.rows, part.epochs, caption)
        shape = (len(found), *self._shape(found[0]))
        latents = self._empty(*shape, dtype=self._latent_dtype)
        variance = self._empty(*shape, dtype=self._latent_dtype) if self._with_variance else None
        started = _Started(plan=part, latents=latents, variance=variance, texts=[], rows=found, futures=[])
        for slot, (latent, text) in enumerate(zip(found, texts, strict=True)):
            started.texts.append(self._text_buffer(text))
            started.futures.append(self._pool.submit(self._read, started, slot, latent, text))
        return started

    def _text_buffer(self, text: int) -> Tensor:
        length, channels = int(self._texts["num_tokens"][text]), int(self._texts["channels"][text])
        return self._empty(length, channels, dtype=self._text_dtype)

    def _read(self, started: _Started, slot: int, latent: int, text: int) -> None:
        """Fill a slot. Raises MediaError for a clip that failed to decode, ShardError, StorageError."""
        table, columns = self.folder.latents, self._columns
        kind = table.column("failure_kind")[latent].as_py()
        clip_id = table.column("clip_id")[latent].as_py()
        if kind is not None:
            raise MediaError(table.column("failure_reason")[latent].as_py(), kind=kind)
        shard, size = table.column("shard")[latent].as_py(), int(columns["size"][latent])
        place = _Place(shard, int(columns["offset"][latent]), size, int(columns["crc32"][latent]), clip_id)
        read_array(self.folder, place, started.latents[slot])
        if started.variance is not None:
            offset, crc32 = (table.column(f"variance_{name}")[latent].as_py() for name in ("offset", "crc32"))
            read_array(self.folder, _Place(shard, offset, size, crc32, clip_id), started.variance[slot])
        shard = self.folder.texts.column("shard")[text].as_py()
        offset, size, crc32 = (int(self._texts[name][text]) for name in ("offset", "size", "crc32"))
        read_array(self.folder, _Place(shard, offset, size, crc32, clip_id), started.texts[slot])

    def _finish(self, started: _Started) -> LatentBatch:
        part, index = started.plan, self.folder.index
        rows = part.rows.tolist()
        for slot, future in enumerate(started.futures):
            try:
                future.result()
            except MediaError as error:
                rows[slot] = self._substitute(started, slot, rows, error)
        self._failures.add_read(len(rows))
        cell = self.plan.cells[part.cell]
        return LatentBatch(
            position=part.position,
            bucket=cell.bucket,
            cell=cell.name,
            clip_ids=tuple(index.word("clip_id", row) for row in rows),
            latents=started.latents,
            variance=started.variance,
            texts=tuple(started.texts),
            fps=fps_of(index, cell.bucket, rows),
            level=index.level[rows].astype(np.int32),
            source=tuple(index.word("source_dataset", row) for row in rows),
            start_frame=self._columns["first_frame"][started.rows].astype(np.int64),
        )

    def _substitute(self, started: _Started, slot: int, rows: list[int], error: MediaError) -> int:
        index = self.folder.index

        def read(row: int) -> None:
            part, clip = started.plan, np.array([row])
            epochs, caption = part.epochs[slot : slot + 1], self._captions_of(part, [slot])
            (latent,), (text,) = self._found_in(self.plan.cells[part.cell], clip, epochs, caption)
            started.rows[slot], started.texts[slot] = latent, self._text_buffer(text)
            self._read(started, slot, latent, text)

        row, _ = fallback_clips.substitute_clip(
            self.plan,
            started.plan,
            slot,
            rows,
            failed=(index.word("clip_id", rows[slot]), error),
            clip_id_of=lambda row: index.word("clip_id", row),
            read=read,
            failures=self._failures,
            on_event=self._on_event,
        )
        return row
