"""Map a function over shards in threads or processes; yield results as they end."""

import signal
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait
from multiprocessing import resource_tracker
from typing import Any, TypeVar

from joblib import Parallel, delayed
from joblib.externals.loky.process_executor import BrokenProcessPool

from vidcurate.errors import ShardError
from vidcurate.executor.child_processes import group_signals_blocked

T = TypeVar("T")
R = TypeVar("R")


def in_threads(
    function: Callable[[T], R],
    tasks: Iterable[T],
    num_workers: int,
    stop: Callable[[], None] = lambda: None,
) -> Generator[R]:
    """Yield the result of each task. At most one task is queued; the rest stay in the iterable.

    At the end, also after an error, `in_threads` calls `stop`, which should end waiting tasks soon, and joins
    the threads.
    """
    pool = ThreadPoolExecutor(num_workers)
    running: set[Future[R]] = set()
    try:
        for task in tasks:
            running.add(pool.submit(function, task))
            if len(running) > num_workers:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        yield from (future.result() for future in as_completed(running))
    finally:
        stop()
        pool.shutdown(wait=True, cancel_futures=True)


def started(pool: Parallel, calls: Iterable[Any]) -> Iterator[Any]:
    """Return the results of the calls by a pool of processes that ignore Ctrl-C, while they start too.

    This process handles it and kills them. The pool returns generators (`return_as`).
    """
    resource_tracker.ensure_running()  # its start unblocks the signals (Python 3.11)
    with group_signals_blocked([signal.SIGINT]):
        results: Iterator[Any] = pool(calls)
    return results


def in_processes(
    function: Callable[[T], R], tasks: Iterable[T], num_workers: int, *, doing: str
) -> Iterator[R]:
    """Yield the result of each task. Raises ShardError, with `doing` in it, when a process dies."""
    pool = Parallel(
        n_jobs=num_workers,
        return_as="generator_unordered",
        batch_size=1,
        pre_dispatch="2*n_jobs",
        max_nbytes=None,
    )
    try:
        yield from started(pool, (delayed(function)(task) for task in tasks))
    except BrokenProcessPool as error:
        raise ShardError(
            f"a worker died while it {doing} (killed, out of memory, or a crash inside a decoder). "
            "Run the same command again: finished shards are kept."
        ) from error
