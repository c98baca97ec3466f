"""Asynchronous checkpoint saves: one at a time, in the foreground or background.

In the background, `device_copy` copies the tensors to the host while the training loop computes its next
step; before the loop changes a tensor, it calls `wait_for_copies`. A save process beside each rank writes and
hashes the rank's files (`save_process`), led by a thread of the rank. The threads communicate over a separate
process group, rename the folder and move LATEST. The next `wait` raises an error of the background save; the
loop asks every rank after every step whether there is one.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.distributed import mesh
from trainer.distributed.mesh import World
from trainer.run_folder.checkpoint import checkpoint, device_copy, parts, retention
from trainer.run_folder.checkpoint.device_copy import Copies
from trainer.run_folder.checkpoint.save_process import SaveProcess

Parts = Mapping[str, Mapping[str, Tensor]]

# How long a failing run waits for a background save; after a lost rank the save cannot end.
LAST_WAIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A finished save. `stall_seconds`: how long the training loop waited for it in total."""

    path: Path
    step: int
    seconds: float
    stall_seconds: float
    deleted: list[str]


class AsyncSaver:
    """The checkpoints of one run. All ranks call the same methods in the same order."""

    def __init__(self, run: Path, world: World) -> None:
        self.run, self.world = run, world
        self._beside = device_copy.stream(world.device)
        self._copies = Copies()
        self._stall_seconds = 0.0
        self._process: SaveProcess | None = None
        self._thread: threading.Thread | None = None
        self._saved: Saved | None = None
        self._error: Exception | None = None

    def save(
        self,
        step: int,
        tensors: Parts,
        state: Callable[[], Mapping[str, Any]],
        *,
        keep_last: int,
        keep_every: int | None = None,
        keep_before: int | None = None,
        in_background: bool = False,
    ) -> None:
        """Write a checkpoint, then delete those that `keep_last`, `keep_every` and `keep_before` exclude.

        `state` returns the content of state.json, a collective call. In the background, `save` returns after
        `state` returned and the copies started, and `wait` returns the result: until `wait_for_copies` the
        caller must not change the tensors. The previous save must be finished (`wait`). Raises StorageError,
        on every rank.
        """
        assert self._thread is None, "a save is in progress; wait for it first"
        began = time.perf_counter()

        def work(kept: Mapping[str, Any], process: SaveProcess | None = None) -> None:
            world = self.world.background
            path = checkpoint.save(self.run, step, tensors, kept, world, process)
            deleted = mesh.run_on_first_rank(
                lambda: retention.keep_checkpoints(self.run, keep_last, keep_every, keep_before), world
            )
            seconds = time.perf_counter() - began
            self._saved = Saved(path=path, step=step, seconds=seconds, stall_seconds=0.0, deleted=deleted)

        if not in_background:
            work(state())
            self._stall_seconds = time.perf_counter() - began
            return

        def work_in_background(kept: Mapping[str, Any], process: SaveProcess, under_way: Copies) -> None:
            try:
                under_way.wait()
                work(kept, process)
            except Exception as error:  # noqa: BLE001 - raised by `wait`
                self._error = error

        with torch.no_grad():
            shards = {part: parts.local_shards(values) for part, values in tensors.items()}
        process = self._process_for(shards)
        kept = state()  # before the copies: the small copies in `state` would wait for them
        self._copies = device_copy.begin_copy(
            (
                (process.tensors[part][name], shard)
                for part, theirs in shards.items()
                for name, shard in theirs.items()
            ),
            self._beside,
        )
        self._stall_seconds = time.perf_counter() - began
        # A daemon thread: a failing rank must exit even while the save waits for other ranks. The thread
        # references the tensors, so that none is freed during its copy.
        arguments = (kept, process, self._copies)
        self._thread = threading.Thread(target=work_in_background, args=arguments, name="saver", daemon=True)
        self._thread.start()

    def wait_for_copies(self) -> None:
        """Wait until the tensors of a background save are copied; afterwards they may change."""
        under_way, self._copies = self._copies, Copies()
        if not under_way.are_over:
            began = time.perf_counter()
            under_way.wait()
            self._stall_seconds += time.perf_counter() - began

    def prepare(self, tensors: Parts) -> SaveProcess:
        """Start the save process and allocate memory for copies: takes seconds for a large model.

        Without this call the first background save starts the process, which serves all later saves. Raises
        StateError.
        """
        return self._process_for({part: parts.local_shards(values) for part, values in tensors.items()})

    def _process_for(self, shards: Parts) -> SaveProcess:
        kinds = {part: parts.kinds(theirs) for part, theirs in shards.items()}
        if self._process is None or not self._process.fits(kinds):
            if self._process is not None:
                self._process.close()
            self._process = SaveProcess(kinds, pinned=self.world.device.type == "cuda")
        return self._process

    @property
    def failed(self) -> bool:
        """Whether a background save has failed on this rank; `wait` raises the error."""
        return self._error is not None

    def take(self) -> Saved | None:
        """Return the save that finished since the last call, if any; never waits, never raises."""
        if self._error is not None or (self._thread is not None and self._thread.is_alive()):
            return None
        self._thread = None
        saved, self._saved = self._saved, None
        return replace(saved, stall_seconds=self._stall_seconds) if saved else None  # the loop's to know

    def wait(self) -> Saved | None:
        """Wait for the background save, if any, and return it. Raises its error."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return self.take()

    def close(self) -> None:
        """End the save process; give a save in progress LAST_WAIT_SECONDS to finish."""
        if self._thread is not None:
            self._thread.join(LAST_WAIT_SECONDS)
        if self._process is not None:
            self._process.close()
