"""The workers of a Ray cluster: a hand on each CPU that was asked for, with a killable worker of its own.

A hand lives as long as the stage. It gives its chunks to a process of `workers` on its node, so that crashes
and time limits are rows here as they are locally. A hand that is lost with its node is replaced and its chunk
done again. Every node needs this package in the same version, and the videos under the same paths or URLs.
"""

import importlib.util
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, Self, TypeVar

from vidcurate import __version__
from vidcurate.errors import InputError, VidcurateError
from vidcurate.executor.worker_processes import Row, Workers

T = TypeVar("T")
_TRIES = 3  # a chunk whose hand was lost


class _RayActor(Generic[T]):
    """What runs on a node."""

    def __init__(
        self,
        function: Callable[[T], Row],
        on_crash: Callable[[T], Row],
        on_timeout: Callable[[T], Row],
        time_limit_seconds: float | None,
    ) -> None:
        self._workers = Workers(
            function, 1, on_crash=on_crash, on_timeout=on_timeout, time_limit_seconds=time_limit_seconds
        )

    def version(self) -> str:
        return __version__

    def work(self, items: Sequence[T]) -> list[Row]:
        ((_, rows),) = self._workers.run([(0, items)])
        return rows


def joined() -> Any:
    """Return Ray, connected: to the cluster of RAY_ADDRESS or of this machine, else to one started here.

    Raises InputError when Ray is not installed or the cluster does not answer.
    """
    if importlib.util.find_spec("ray") is None:
        raise InputError("--engine ray: Ray is not installed. Run `pip install 'vidcurate[ray]'`.")
    import ray

    if not ray.is_initialized():
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise InputError(f"--engine ray: the cluster cannot be reached ({error}).") from error
    return ray


def num_cpus() -> int:
    """Return the CPUs of the whole cluster. Raises InputError as `joined` does."""
    return max(1, int(joined().cluster_resources().get("CPU", 1)))


class Cluster(Generic[T]):
    """Runs `function` on chunks of items on a cluster; otherwise as `workers.Workers` does."""

    def __init__(
        self,
        function: Callable[[T], Row],
        num_workers: int,
        *,
        on_crash: Callable[[T], Row],
        on_timeout: Callable[[T], Row],
        time_limit_seconds: float | None,
    ) -> None:
        self._ray = joined()
        remote = self._ray.remote(num_cpus=1, max_restarts=0)(_RayActor)
        self._make: Callable[[], Any] = lambda: remote.remote(
            function, on_crash, on_timeout, time_limit_seconds
        )
        self._num_workers = num_workers
        self._hands: list[Any] = []

    def __enter__(self) -> Self:
        self._hands = [self._make() for _ in range(self._num_workers)]
        return self

    def __exit__(self, *_: object) -> None:
        for hand in self._hands:
            self._ray.kill(hand)

    def run(self, chunks: Iterable[tuple[int, Sequence[T]]]) -> Iterator[tuple[int, list[Row]]]:
        """Yield (number, rows) of each chunk as it is finished. Raises what `function` raises."""
        waiting = deque((number, items, 1) for number, items in chunks)
        running: dict[Any, tuple[Any, tuple[int, Sequence[T], int]]] = {}
        checking = {hand.version.remote(): hand for hand in self._hands}
        while waiting or running:
            ready, _ = self._ray.wait([*running, *checking], num_returns=1)
            (answer,) = ready
            if answer in checking:
                hand = checking.pop(answer)
                self._check_version(answer)
            else:
                hand, job = running.pop(answer)
                try:
                    yield job[0], self._ray.get(answer)
                except self._ray.exceptions.RayActorError as error:  # the node, or the hand on it, is gone
                    if job[2] == _TRIES:
                        raise VidcurateError(
                            f"--engine ray: a chunk of clips lost its worker {_TRIES} times ({error}). "
                            "Run the same command again: finished chunks are kept."
                        ) from error
                    waiting.appendleft((job[0], job[1], job[2] + 1))
                    self._hands.remove(hand)
                    hand = self._make()
                    self._hands.append(hand)
                except self._ray.exceptions.RayTaskError as error:
                    raise error.cause from error
            if waiting:
                job = waiting.popleft()
                running[hand.work.remote(list(job[1]))] = (hand, job)

    def _check_version(self, answer: Any) -> None:
        try:
            theirs = self._ray.get(answer)
        except self._ray.exceptions.RayError as error:
            raise VidcurateError(f"--engine ray: a worker did not start ({error}).") from error
        if theirs != __version__:
            raise InputError(
                f"--engine ray: a node has vidcurate {theirs}, this is {__version__}; install one."
            )
