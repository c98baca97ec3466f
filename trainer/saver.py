"""Saves a run's checkpoints, now or in the background, one at a time.

In the background the loop waits for a copy of the tensors on the CPU and goes on. A process of each rank
writes and hashes its files (`save_process`), led by a thread of the rank; the threads talk over a line of
their own, rename and move LATEST. An error there is raised by the next `wait`; the loop asks every rank after
every step whether there is one.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer import checkpoint, mesh, parts
from trainer.mesh import World
from trainer.save_process import SaveProcess

Parts = Mapping[str, Mapping[str, Tensor]]

# How long a run that fails lets a save in the background end; with a rank gone it could not.
LAST_WAIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint that is written. `stall_seconds` is how long the loop stood still for it."""

    path: Path
    step: int
    seconds: float
    stall_seconds: float
    deleted: list[str]


class Saver:
    """The checkpoints of one run. All ranks call the same methods in the same order."""

    def __init__(self, run: Path, world: World) -> None:
        self.run, self.world = run, world
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
        the tensors are copied, and `wait` gives the result. The save before must be over (`wait`). Raises
        StorageError, on every rank.
        """
        assert self._thread is None, "a save is in progress; wait for it first"
        began = time.perf_counter()

        def work(kept: Mapping[str, Any], apart: SaveProcess | None, stall_seconds: float | None) -> None:
            world = self.world.background
            path = checkpoint.save(self.run, step, tensors, kept, world, apart)
            deleted = mesh.first_does(
                lambda: checkpoint.keep(self.run, keep_last, keep_every, keep_before), world
            )
            seconds = time.perf_counter() - began
            self._saved = Saved(
                path=path,
                step=step,
                seconds=seconds,
                stall_seconds=seconds if stall_seconds is None else stall_seconds,
                deleted=deleted,
            )

        if not in_background:
            work(state(), None, None)
            return

        def work_apart(*arguments: Any) -> None:
            try:
                work(*arguments)
            except Exception as error:  # noqa: BLE001 - raised by `wait`
                self._error = error

        apart = self.prepare(tensors)
        kept = self._copy(tensors, apart, state)
        arguments = (kept, apart, time.perf_counter() - began)
        # A daemon: a rank that fails must end, even while the others' silence keeps the save waiting.
        self._thread = threading.Thread(target=work_apart, args=arguments, name="saver", daemon=True)
        self._thread.start()

    def prepare(self, tensors: Parts) -> SaveProcess:
        """Start the process for saves in the background, with memory for copies: seconds for a large model.

        Without it the first such save does; it is kept for all that follow. Raises StateError.
        """
        kinds = {part: parts.kinds(parts.pieces_of(values)) for part, values in tensors.items()}
        if self._apart is None or not self._apart.fits(kinds):
            if self._apart is not None:
                self._apart.close()
            self._apart = SaveProcess(kinds, pinned=self.world.device.type == "cuda")
        return self._apart

    @torch.no_grad()
    def _copy(
        self, tensors: Parts, apart: SaveProcess, state: Callable[[], Mapping[str, Any]]
    ) -> Mapping[str, Any]:
        """Copy this rank's pieces to where `apart` reads them; return `state`, asked meanwhile."""
        on_gpu = self.world.device.type == "cuda"
        beside = torch.cuda.Stream() if on_gpu else None  # type: ignore[no-untyped-call]
        if beside is not None:
            beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):  # nothing without a stream
            for part, values in tensors.items():
                for name, piece in parts.pieces_of(values).items():
                    apart.tensors[part][name].copy_(piece, non_blocking=on_gpu)
        kept = state()
        if on_gpu:
            torch.cuda.synchronize()
        return kept

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
        return saved

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
