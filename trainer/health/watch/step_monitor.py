"""Step monitor: find ranks slower than the others and a falling rate, every step."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.distributed.mesh import World
from trainer.health.watch import spec as watch_spec
from trainer.health.watch import throughput
from trainer.health.watch.spec import Policy, WatchSpec
from trainer.health.watch.stop_requests import Stop
from trainer.run_folder import jsonl, process_records


class StepWatch:
    """Sees each step's figures, the same on all ranks, and asks for a stop where the recipe says so."""

    def __init__(self, spec: WatchSpec, run: Path, world: World, stop: Stop) -> None:
        self._spec, self._run, self._world, self._stop = spec, run, world, stop
        self._ranks = throughput.SlowRanks(1 + spec.max_slowdown, watch_spec.SLOW_RANK_STEPS)
        self._rate = throughput.Throughput(watch_spec.THROUGHPUT_DROP)
        self._hosts: dict[int, str] = {}

    def add(
        self,
        step: int,
        own: Sequence[throughput.OwnSeconds],
        buckets: Sequence[str],
        tokens_per_second: float,
    ) -> None:
        """Take the figures of a step. Raises StorageError when an event cannot be written."""
        for slow in self._ranks.add(own):
            facts = self._of_slow(slow)
            text = (
                f"rank {slow.rank} on {facts['host']} takes {slow.factor:.2f} times as long as the others, "
                f"by {slow.by}: {slow.seconds:.2f} s a step for {slow.seconds_of_others:.2f}"
            )
            self._tell("slow_rank", step, self._spec.on_slow_rank, facts, text)
        if not self._world.is_first:  # the rate is by each rank's clock: one of them decides
            return
        if drop := self._rate.add(buckets, tokens_per_second):
            facts = {
                "buckets": drop.mix,
                "tokens_per_second": drop.tokens_per_second,
                "usual": drop.usual,
                "share": drop.share,
            }
            text = (
                f"throughput is {100 * drop.share:.0f} % below its median: "
                f"{drop.tokens_per_second:,.0f} tokens/s for {drop.usual:,.0f} ({drop.mix})"
            )
            self._tell("throughput_drop", step, "warn", facts, text)

    def _of_slow(self, slow: throughput.SlowRank) -> dict[str, Any]:
        if slow.rank not in self._hosts and self._world.is_first:
            self._hosts = {one.rank: one.host for one in process_records.read_records(self._run)}
        return {
            "rank": slow.rank,
            "host": self._hosts.get(slow.rank),
            "by": slow.by,
            "factor": slow.factor,
            "seconds": slow.seconds,
            "seconds_of_others": slow.seconds_of_others,
            "data_seconds": slow.data_seconds,
            "compute_seconds": slow.compute_seconds,
            "steps": slow.steps,
        }

    def _tell(self, name: str, step: int, policy: Policy, facts: dict[str, Any], text: str) -> None:
        if self._world.is_first:
            jsonl.record_event(self._run, name, step, **facts, policy=policy)
            print(f"step {step}: {text}", file=sys.stderr, flush=True)
        if policy != "warn":
            self._stop.name = self._stop.name or name
