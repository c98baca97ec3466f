"""Change log runs: data sets without videos, deliberate changes, and the state of the resumed run."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from vidcurate.recipe.recipe import parse
from vidcurate.sampler import order
from vidcurate.sampler.build_plan import plan_of
from vidcurate.sampler.order_state import FLAGS, LoaderState, check_state, state_of
from vidcurate.sampler.plan import Plan
from vidcurate.sampler.plan_changes import change_log
from vidcurate.sampler.plan_changes.change_log import Journal
from vidcurate.sampler.spec import PlanSpec
from vidcurate.shards.index import Index, read_index
from vidcurate.shards.index_file import write_index

SEED = 5
SPEC_TEXT = """
    micro_batches_per_step: 3
    small_cells: shrink
    buckets:
      sizes: {32px: {"0.50": [24, 48], "1.00": [32, 32]}}
      table: {32px: {4: [1.0, 3], 8: [[1.0, 0.6], 2]}}
"""
SPEC = parse(SPEC_TEXT, PlanSpec)


@dataclass(frozen=True)
class Clip:
    level: int
    width: int
    num_frames: int
    caption: str = "a clip"


Clips = dict[str, Clip]


def clips(numbers: Iterable[int]) -> Clips:
    """Return clips of two levels, two shapes and two lengths."""
    return {
        f"clip/{number}": Clip(1 + number % 3 // 2, 64 if number % 5 == 0 else 32, 6 if number % 2 else 9)
        for number in numbers
    }


def make_index(folder: Path, made: Clips, *, per_shard: int = 7, mixed_by: int | None = None) -> Index:
    """Write the index of these clips, in their order or shuffled, and open it; there are no shards."""
    folder.mkdir(parents=True)
    names = list(made)
    if mixed_by is not None:
        Random(mixed_by).shuffle(names)
    rows: dict[str, list[object]] = {}
    for place, name in enumerate(names):
        clip = made[name]
        for column, value in {
            "sample_key": name.replace("/", "_"),
            "clip_id": name,
            "source_id": name,
            "source_dataset": "made",
            "fold": "train",
            "level": clip.level,
            "caption": clip.caption,
            "shard": f"train-{place // per_shard:05d}.tar",
            "json_offset": 512 + 4096 * (place % per_shard),
            "json_size": 10,
            "json_crc32c": 1,
            "video_offset": 2048 + 4096 * (place % per_shard),
            "video_size": 100,
            "video_extension": "mp4",
            "video_crc32c": 1,
            "width": clip.width,
            "height": 32,
            "fps": 8.0,
            "num_frames": clip.num_frames,
            "duration_seconds": clip.num_frames / 8,
            "noun_count": 1,
            "frame_map": None,
        }.items():
            rows.setdefault(column, []).append(value)
    write_index(folder, rows)
    return read_index(folder, check_files=False)


@dataclass
class Run:
    """A run over a data set that changes: what a trainer would do, without training."""

    folder: Path
    made: Clips
    spec: PlanSpec = SPEC
    index: Index = field(init=False)
    plan: Plan = field(init=False)
    changes: Journal = ()
    name: str = ""
    count: int = 0

    def __post_init__(self) -> None:
        self.index = self._index(None)
        self.plan = plan_of(self.index, self.spec, seed=SEED)

    @property
    def journal_folder(self) -> Path:
        return self.folder / "journal"

    def _index(self, mixed_by: int | None) -> Index:
        self.count += 1
        return make_index(self.folder / f"index-{self.count}", self.made, mixed_by=mixed_by)

    def state(self, step: int) -> LoaderState:
        words = tuple(change.to_text() for change in self.changes)
        return state_of(self.index, self.plan, step, "f" * 32, "e" * 32, journal=self.name, changes=words)

    def resume(
        self,
        step: int,
        made: Clips | None = None,
        spec: PlanSpec | None = None,
        *,
        mixed_by: int | None = None,
        accept: Iterable[str] = tuple(FLAGS.values()),
    ) -> Plan:
        """Change data or recipe when `step` is the next one, and resume if `accept` allows it."""
        state, old_index, old_spec = LoaderState.from_json(self.state(step).to_json()), self.index, self.spec
        self.made, self.spec = self.made if made is None else made, spec or self.spec
        index = self._index(mixed_by)
        fresh = plan_of(index, self.spec, seed=SEED)
        verdict = check_state(
            state,
            index,
            fresh,
            old_index=old_index,
            replan=lambda old: plan_of(old, self.spec, seed=SEED),
            accept=tuple(accept),
        )
        self.index = index
        if verdict.findings:
            self.changes = change_log.extend_change_log(
                self.journal_folder,
                self.changes,
                state,
                verdict,
                index,
                fresh,
                old_index,
                lambda: plan_of(old_index, old_spec, seed=SEED),
            )
            self.name = change_log.write_change_log(self.journal_folder, self.changes)
        self.plan = self.replayed(fresh)
        return self.plan

    def replayed(self, fresh: Plan) -> Plan:
        """Return the plan as a new process finds it."""
        if not self.name:
            return fresh
        kept = change_log.read_change_log(self.journal_folder, self.name)
        assert kept == self.changes
        if not any(change.plan_file for change in kept):
            return fresh
        plan = change_log.replay_changes(self.journal_folder, kept, self.index)
        assert plan.fingerprint == fresh.fingerprint
        return replace(plan, costs=None)

    def names(self, plan: Plan, rows: Iterable[int]) -> list[str]:
        return [
            self.index.word("clip_id", row) if row < len(self.index) else plan.gone[row - plan.num_rows]
            for row in rows
        ]

    def reported(self, last_step: int, first_step: int = 0) -> list[tuple[str, list[str]]]:
        """Return (cell, clips) of each micro-batch of these steps."""
        found = []
        for step in range(first_step, last_step):
            for batch in order.step_micro_batches(self.plan, step):
                cell = order.at_position(self.plan, batch.position).cells[batch.cell]
                found.append((cell.name, self.names(self.plan, batch.rows.tolist())))
        return found
