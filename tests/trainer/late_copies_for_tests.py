"""A GPU's copies as a machine without one can have them: they are made when they are made."""

import weakref
from collections.abc import Callable, Iterable
from threading import Event, Thread
from typing import cast

import torch
from torch import Tensor

from trainer.run_folder.checkpoint.device_copy import Copies

Pairs = Iterable[tuple[Tensor, Tensor]]


class LateEvent:
    """Stands for torch.cuda.Event: over when a thread has made the copies, which first waits for `go`.

    Like a GPU it keeps no tensor: one that was freed is not copied.
    """

    def __init__(self, pairs: Pairs, go: Event, limit_seconds: float) -> None:
        self._pairs = [(target, weakref.ref(source)) for target, source in pairs]
        self._go, self._limit_seconds = go, limit_seconds
        self._thread = Thread(target=self._copy, daemon=True)
        self._thread.start()

    def _copy(self) -> None:
        self._go.wait(self._limit_seconds)
        with torch.no_grad():
            for target, there in self._pairs:
                source = there()
                if source is not None:
                    target.copy_(source)

    def query(self) -> bool:
        return not self._thread.is_alive()

    def synchronize(self) -> None:
        self._thread.join()


def late(go: Event, limit_seconds: float) -> Callable[[Pairs, object], Copies]:
    """Return a replacement of `device_copy.begin` whose copies begin at `go`, or after `limit_seconds`."""

    def begin(pairs: Pairs, beside: object) -> Copies:
        return Copies(cast(torch.cuda.Event, LateEvent(pairs, go, limit_seconds)))

    return begin
