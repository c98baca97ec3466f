"""Ray actors that map a function over chunks of clips, one actor per CPU.

An actor lives as long as the stage. The actor passes its chunks to a worker process on its node, so crashes
and timeouts become rows exactly as they do locally. When an actor is lost with its node, `RayWorkers` starts
a new one and runs its chunk again. Every node needs this package in the same version, and the videos under
the same paths or URLs.
"""

import importlib.util
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, Self, TypeVar

from vidcurate import __version__
from vidcurate.errors import InputError, VidcurateError
from vidcurate.executor.worker_processes import Row, Work, WorkerProcesses

T = TypeVar("T")
_TRIES = 3  # of a chunk whose actor was lost


class _RayActor(Generic[T]):
    """Actor on a node: owns one worker process."""

    def __init__(self, work: Work[T]) -> None:
        self._workers = WorkerProcesses(work, 1)

    def version(self) -> str:
        return __version__

    def work(self, items: Sequence[T]) -> list[Row]:
        ((_, rows),) = self._workers.run([(0, items)])
        return rows


def connect_ray() -> Any:
    """Connect to the Ray cluster of RAY_ADDRESS or of this machine, or start one; return module `ray`.

    Raises InputError when Ray is not installed or the cluster does not answer.
    """
    if importlib.util.find_spec("ray") is None:
        raise InputError("--engine ray: Ray is not installed. Run `pip install 'vidcurate[ray]'`.")
    import ray

    if not ray.is_initialized():
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise InputError(
                f"--engine ray: cannot connect to the cluster ({error}). Check RAY_ADDRESS and `ray status`."
            ) from error
    return ray


def num_cpus() -> int:
    """Return the number of CPUs of the whole cluster. Raises InputError as `connect_ray` does."""
    return max(1, int(connect_ray().cluster_resources().get("CPU", 1)))


class RayWorkers(Generic[T]):
    """Pool of Ray actors with the interface of `WorkerProcesses`."""

    def __init__(self, work: Work[T], num_workers: int) -> None:
        self._ray = connect_ray()
        remote = self._ray.remote(num_cpus=1, max_restarts=0)(_RayActor)
        self._make: Callable[[], Any] = lambda: remote.remote(work)
        self._num_workers = num_workers
        self._actors: list[Any] = []

    def __enter__(self) -> Self:
        self._actors = [self._make() for _ in range(self._num_workers)]
        return self

    def __exit__(self, *_: object) -> None:
        for actor in self._actors:
            self._ray.kill(actor)

    def run(self, chunks: Iterable[tuple[int, Sequence[T]]]) -> Iterator[tuple[int, list[Row]]]:
        """Yield (number, rows) of each chunk as it is finished. Raises what `function` raises."""
        waiting = deque((number, items, 1) for number, items in chunks)
        running: dict[Any, tuple[Any, tuple[int, Sequence[T], int]]] = {}
        checking = {actor.version.remote(): actor for actor in self._actors}
        while waiting or running:
            ready, _ = self._ray.wait([*running, *checking], num_returns=1)
            (answer,) = ready
            if answer in checking:
                actor = checking.pop(answer)
                self._check_version(answer)
            else:
                actor, job = running.pop(answer)
                try:
                    yield job[0], self._ray.get(answer)
                except self._ray.exceptions.RayActorError as error:  # the node or its actor died
                    if job[2] == _TRIES:
                        raise VidcurateError(
                            f"--engine ray: a chunk of clips lost its actor {_TRIES} times ({error}). "
                            "Run the same command again: finished chunks are kept."
                        ) from error
                    waiting.appendleft((job[0], job[1], job[2] + 1))
                    self._actors.remove(actor)
                    actor = self._make()
                    self._actors.append(actor)
                except self._ray.exceptions.RayTaskError as error:
                    raise error.cause from error
            if waiting:
                job = waiting.popleft()
                running[actor.work.remote(list(job[1]))] = (actor, job)

    def _check_version(self, answer: Any) -> None:
        try:
            theirs = self._ray.get(answer)
        except self._ray.exceptions.RayError as error:
            raise VidcurateError(f"--engine ray: an actor did not start ({error}).") from error
        if theirs != __version__:
            raise InputError(
                f"--engine ray: a node has vidcurate {theirs}, this machine {__version__}. "
                "Install the same version on all nodes."
            )
