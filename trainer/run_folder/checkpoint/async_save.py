"""Saves a run's checkpoints, now or in the background, one at a time.

In the background the tensors are copied to the host while the loop computes its next step (`copies`); before
it changes one of them it calls `let_copies_end`. A process of each rank writes and hashes the rank's files
(`save_process`), led by a thread of the rank; the threads talk over a line of their own, rename and move
LATEST. An error there is raised by the next `wait`; the loop asks every rank after every step whether there
is one.
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

# How long a run that fails lets a save in the background end; with a rank gone it could not.
LAST_WAIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint that is written. `stall_seconds` is how long the loop stood still for it in all."""

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
        self._apart: SaveProcess | None = None
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
        """Write a checkpoint and delete what `keep_last`, `keep_every` and `keep_before` leave out.

        `state` returns what state.json holds; all ranks ask it together. In the background this returns once
        that is known and the copies are begun, and `wait` gives the result: until `let_copies_end` nobody
        may change the tensors. The save before must be over (`wait`). Raises StorageError, on every rank.
        """
        assert self._thread is None, "a save is in progress; wait for it first"
        began = time.perf_counter()

        def work(kept: Mapping[str, Any], apart: SaveProcess | None = None) -> None:
            world = self.world.background
            path = checkpoint.save(self.run, step, tensors, kept, world, apart)
            deleted = mesh.run_on_first_rank(
                lambda: retention.keep_checkpoints(self.run, keep_last, keep_every, keep_before), world
            )
            seconds = time.perf_counter() - began
            self._saved = Saved(path=path, step=step, seconds=seconds, stall_seconds=0.0, deleted=deleted)

        if not in_background:
            work(state())
            self._stall_seconds = time.perf_counter() - began
            return

        def work_apart(kept: Mapping[str, Any], apart: SaveProcess, under_way: Copies) -> None:
            try:
                under_way.wait()
                work(kept, apart)
            except Exception as error:  # noqa: BLE001 - raised by `wait`
                self._error = error

        with torch.no_grad():
            pieces = {part: parts.pieces_of(values) for part, values in tensors.items()}
        apart = self._process_for(pieces)
        kept = state()  # before the copies: its own small ones would wait for them
        self._copies = device_copy.begin_copy(
            (
                (apart.tensors[part][name], piece)
                for part, theirs in pieces.items()
                for name, piece in theirs.items()
            ),
            self._beside,
        )
        self._stall_seconds = time.perf_counter() - began
        # A daemon: a rank that fails must end, even while the others' silence keeps the save waiting. It
        # holds the tensors, so none is freed while it is copied, whatever the loop has instead by then.
        arguments = (kept, apart, self._copies)
        self._thread = threading.Thread(target=work_apart, args=arguments, name="saver", daemon=True)
        self._thread.start()

    def let_copies_end(self) -> None:
        """Wait until the tensors of a save in the background are copied: from then on they may change."""
        under_way, self._copies = self._copies, Copies()
        if not under_way.are_over:
            began = time.perf_counter()
            under_way.wait()
            self._stall_seconds += time.perf_counter() - began

    def prepare(self, tensors: Parts) -> SaveProcess:
        """Start the process for saves in the background, with memory for copies: seconds for a large model.

        Without it the first such save does; it is kept for all that follow. Raises StateError.
        """
        return self._process_for({part: parts.pieces_of(values) for part, values in tensors.items()})

    def _process_for(self, pieces: Parts) -> SaveProcess:
        kinds = {part: parts.kinds(theirs) for part, theirs in pieces.items()}
        if self._apart is None or not self._apart.fits(kinds):
            if self._apart is not None:
                self._apart.close()
            self._apart = SaveProcess(kinds, pinned=self.world.device.type == "cuda")
        return self._apart

    @property
    def failed(self) -> bool:
        """Whether a save in the background has failed on this rank; `wait` raises why."""
        return self._error is not None

    def take(self) -> Saved | None:
        """Return the save that has ended since the last call, if one has; never waits, never raises."""
        if self._error is not None or (self._thread is not None and self._thread.is_alive()):
            return None
        self._thread = None
        saved, self._saved = self._saved, None
        return replace(saved, stall_seconds=self._stall_seconds) if saved else None  # the loop's to know

    def wait(self) -> Saved | None:
        """Wait for the save in the background, if there is one, and return it. Raises its error."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return self.take()

    def close(self) -> None:
        """Let the process end; after an error elsewhere a save in progress has LAST_WAIT_SECONDS."""
        if self._thread is not None:
            self._thread.join(LAST_WAIT_SECONDS)
        if self._apart is not None:
            self._apart.close()
