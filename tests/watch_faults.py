"""Ranks with one fault each, put in where a user's machine would have it, for tests/faults/test_watch_*.py.

`python -c "from tests.watch_faults import run; run('hangs_in_the_loader', 1, 3, [WORDS])"` is
`python -m trainer WORDS` in which rank 1 has the fault in its third step.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.forked_runs import Forked, Forks
from tests.trainer.shards_for_tests import events
from trainer.__main__ import main
from trainer.distributed import mesh
from trainer.health import clock_steps
from trainer.health.watch import monitor, monitor_process
from trainer.health.watch import spec as watch_spec
from trainer.health.watch.spec import SLOW_RANK_STEPS
from trainer.run_folder import metrics, process_table
from trainer.training import micro_batch, resume
from trainer.training.guard import rerun_step
from vidcurate.loader import loader


def hangs_in_the_loader(at: int) -> None:
    """The loader does not come back from one step."""
    read = loader.Loader.step

    def waits_for_a_clip(self: Any, number: int) -> Any:
        while number == at:
            time.sleep(0.2)
        return read(self, number)

    loader.Loader.step = waits_for_a_clip  # type: ignore[method-assign, assignment]


def hangs_before_a_collective(at: int) -> None:
    """One rank never comes to the sum over the ranks."""
    _before_the_sum(at, lambda: time.sleep(600))


def holds_the_lock(at: int) -> None:
    """A C function that never returns keeps the interpreter's lock; a monitor process is there by then."""
    _before_the_sum(at, lambda: (_wait_for_a_monitor(), ctypes.PyDLL(None).sleep(600)))


def holds_the_lock_before_it_is_watched(at: int) -> None:
    """A C function keeps the interpreter's lock in the first second: the rank cannot start its monitor."""
    _before_the_sum(at, lambda: ctypes.PyDLL(None).sleep(600))


def dies(at: int) -> None:
    """The process is killed, as by the kernel when memory runs out."""
    _before_the_sum(at, lambda: os.kill(os.getpid(), signal.SIGKILL))


def _wait_for_a_monitor() -> None:
    module, until = monitor_process.__name__, time.monotonic() + MOST_SECONDS
    while not any(
        module in word
        for child in process_table.children(os.getpid())
        for word in process_table.command_line(child)
    ):
        assert time.monotonic() < until, "no monitor process started"
        time.sleep(0.05)


def _before_the_sum(at: int, act: Callable[[], object]) -> None:
    add, calls = mesh.sum_over_ranks, 0

    def never_gets_there(values: Any, world: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at + 1:
            act()
        return add(values, world)

    mesh.sum_over_ranks = never_gets_there


def is_slow(at: int) -> None:
    """Every micro-batch takes 0.4 s longer, and on a busy machine six times as long as it takes there."""
    add_gradient = micro_batch.add_gradient

    def slow(*arguments: Any, **named: Any) -> Any:
        began = time.monotonic()
        result = add_gradient(*arguments, **named)
        time.sleep(max(0.4, 6 * (time.monotonic() - began)))
        return result

    micro_batch.add_gradient = slow  # type: ignore[assignment]


def has_a_clock_that_is_set_back(at: int) -> None:
    """From one step on, the host's clock is 17 s behind what it was; the watch looks every 0.1 s."""
    clocks, add_gradient, steps = clock_steps.read_clocks, micro_batch.add_gradient, 0

    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal steps
        steps += 1
        return add_gradient(*arguments, **named)

    def clocks_set_back() -> tuple[float, float]:
        real, monotonic = clocks()
        return real - 17.0 * (steps > at), monotonic

    monitor.TICK_SECONDS = 0.1
    micro_batch.add_gradient = counted  # type: ignore[assignment]
    clock_steps.read_clocks = clocks_set_back


LONG_SECONDS = 5.0  # more than SPEC's stall_seconds


def begins_slowly(at: int) -> None:
    """The first micro-batch of each training takes long, as when it compiles; a watcher is there by then."""
    add_gradient, trainings = micro_batch.add_gradient, set()

    def first_is_slow(tools: Any, *arguments: Any, **named: Any) -> Any:
        if tools.recipe.output not in trainings:
            trainings.add(tools.recipe.output)
            time.sleep(LONG_SECONDS)
            print(f"watched by {len(process_table.children(os.getpid()))} process", flush=True)
        return add_gradient(tools, *arguments, **named)

    micro_batch.add_gradient = first_is_slow  # type: ignore[assignment]


def goes_back_slowly(at: int) -> None:
    """To load the checkpoint of a rollback takes long."""
    load = resume.restore

    def slow_disk(*arguments: Any) -> Any:
        time.sleep(LONG_SECONDS)
        return load(*arguments)

    resume.restore = slow_disk  # type: ignore[assignment]


def computes_again_slowly(at: int) -> None:
    """A suspicious step takes long when it is computed again."""
    compute = rerun_step.compute

    def slow_compute(*arguments: Any) -> Any:
        time.sleep(LONG_SECONDS)
        return compute(*arguments)

    rerun_step.compute = slow_compute  # type: ignore[assignment]


def run(fault: str, rank: int, at: int, words: Sequence[str], slow_rank_steps: int = SLOW_RANK_STEPS) -> None:
    """Train with `fault` in `rank` at its step `at` (from 0), and end with the training's exit code."""
    watch_spec.SLOW_RANK_STEPS = slow_rank_steps
    if int(os.environ.get("RANK", "0")) == rank:
        globals()[fault](at)
    sys.exit(main(words))


# ── the tests' side ─────────────────────────────────────────────────────────────────────────────────────────

SPEC = (
    "sample=null",
    "stages.0.steps=400",
    "stages.0.checkpoint_every=2",
    "loader.num_workers=0",
    "watch.stall_seconds=4",
)
MOST_SECONDS = 300.0


@contextmanager
def faulty(
    forks: Forks, words: Sequence[str], fault: str, *, rank: int, ranks: int, at: int = 3, **constants: int
) -> Iterator[Forked]:
    """Run `ranks` processes of which one has `fault`; what is left at the end is killed."""
    program = (
        f"from tests.watch_faults import run; run({fault!r}, {rank}, {at}, {list(words)!r}, **{constants!r})"
    )
    started = forks.start(["-c", program], ranks=ranks)
    began = {pid: process_table.start_time(pid) for pid in started.pids}
    try:
        yield started
    finally:
        for pid in started.pids:
            if began[pid] is not None and process_table.start_time(pid) == began[pid]:
                os.kill(pid, signal.SIGKILL)
        started.codes()


def stall_of(run: Path) -> dict[str, Any]:
    """Return the one event `stall` of a run; it may come a moment after the ranks have ended."""
    until = time.monotonic() + MOST_SECONDS
    while not (found := events(run, "stall")) and time.monotonic() < until:
        time.sleep(0.1)
    (stall,) = found
    return stall


def wait_for_steps(run: Path, count: int) -> None:
    until = time.monotonic() + MOST_SECONDS
    while len(metrics.read_metrics(run / metrics.METRICS)) < count:
        assert time.monotonic() < until, "the run makes no steps"
        time.sleep(0.05)
