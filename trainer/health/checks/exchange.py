"""Exchange of check results between the ranks over torch's store, with time-outs.

torch's collectives would wait for a rank that hangs; here a silent rank is a result like any other. The board
uses the store of torch's rendezvous.
"""

import json
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

from trainer.distributed.mesh import World


class Board:
    """JSON values by name, in torch's store; every rank can put and take. A world of one uses a dict."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._own: dict[str, str] = {}
        self._store = PrefixStore("preflight", _get_default_store()) if world.size > 1 else None

    def put(self, name: str, value: Any) -> None:
        text = json.dumps(value)
        if self._store is None:
            self._own[name] = text
        else:
            self._store.set(name, text)

    def is_first_to(self, name: str, rank: int) -> bool:
        """Return whether this rank asks first; where the store is gone, rank 1 is the first."""
        if self._store is None:
            return True
        try:
            return int(self._store.add(name, 1)) == 1
        except (dist.DistError, RuntimeError):
            return rank == 1

    def take(self, name: str, seconds: float) -> Any:
        """Return the value `name`, waiting at most `seconds`; None after the time-out."""
        if self._store is None:
            return json.loads(self._own[name]) if name in self._own else None
        try:
            self._store.wait([name], timedelta(seconds=max(seconds, 0.01)))
        except (dist.DistError, RuntimeError):
            return None
        return json.loads(self._store.get(name))

    def take_all(self, name: str, seconds: float) -> dict[int, Any]:
        """Return every rank's `name/RANK`; None for a rank that is silent for `seconds` in total."""
        until = time.monotonic() + seconds
        return {
            rank: self.take(f"{name}/{rank}", until - time.monotonic()) for rank in range(self.world.size)
        }
