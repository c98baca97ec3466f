"""Plan of an index: the cell of each clip, how often each is shown, and the clips of a step."""

from pathlib import Path

import pytest

from tests.loader_runs import (
    clips,
    plan_of,
    write_shards,
)
from vidcurate.errors import InputError, ShardError
from vidcurate.sampler import order
from vidcurate.sampler.build_plan import clips_of_step, steps_of_clip
from vidcurate.sampler.plan import Plan
from vidcurate.shards.index import Index


def test_every_clip_is_in_one_cell_or_left_out_with_a_reason(folder: Path) -> None:
    facts = clips(12)
    facts[0] |= {"height": 9, "width": 9}
    facts[1] |= {"num_frames": 3}
    facts[2] |= {"fps": None}
    facts[3] |= {"width": None}
    payloads = {fact["clip_id"]: b"not read here" for fact in facts}
    small = write_shards(folder / "left_out", facts, payloads)
    made = plan_of(small, fold=None)
    ids = small.words("clip_id").to_pylist()
    left = {reason: [ids[row] for row in rows] for reason, rows in made.left_out.items()}
    assert left == {
        "too_small": ["clip/0.0", "clip/3.0"],
        "too_short": ["clip/1.0"],
        "not_drawn": [],
        "unknown_fps": ["clip/2.0"],
    }
    held = [ids[row] for cell in made.cells for row in cell.rows]
    assert sorted(held) == sorted(set(ids) - {name for names in left.values() for name in names})


def test_clips_are_shown_equally_often_without_weights_and_by_weight_with_them(opened: Index) -> None:
    even = plan_of(opened)
    steps = order.steps_for_epochs(even, 20)
    shown = [
        n * cell.micro_batch_size / len(cell.rows)
        for n, cell in zip(order.micro_batches_before(even, steps), even.cells, strict=True)
    ]
    assert max(shown) - min(shown) < 1.5
    assert sum(shown) / len(shown) == pytest.approx(20, abs=1)
    skewed = plan_of(opened, weights={"1": 3.0, "2": 1.0})
    clips_of = {1: 0, 2: 0}
    for n, cell in zip(order.micro_batches_before(skewed, 1000), skewed.cells, strict=True):
        clips_of[int(cell.name[6])] += n * cell.micro_batch_size
    assert clips_of[1] / clips_of[2] == pytest.approx(3, rel=0.01)


def test_levels_are_chosen_by_name_or_by_weight(opened: Index) -> None:
    for chosen in ({"levels": [2]}, {"weights": {"2": 1.0}}, {"weights": {"1": 0.0, "2": 0.5}}):
        assert {cell.name[:7] for cell in plan_of(opened, **chosen).cells} == {"level-2"}
    with pytest.raises(InputError, match=r"no clip of level 4 in fold train; known levels: 1, 2\."):
        plan_of(opened, levels=[1, 4])
    with pytest.raises(InputError, match="no clip of level 3"):
        plan_of(opened, weights={"3": 1.0})
    with pytest.raises(InputError, match="above 0 for a level with clips"):
        plan_of(opened, weights={"1": 0.0})
    with pytest.raises(InputError, match="a level is a whole number"):
        plan_of(opened, weights={"hard": 1.0})
    with pytest.raises(InputError, match="no clip is in the fold"):
        plan_of(opened, fold="test")


def test_a_step_names_its_clips_and_a_clip_its_steps(opened: Index, plan: Plan) -> None:
    for step in (0, 7, 10**6):
        found = clips_of_step(plan, opened, step)
        assert [(clip.position, clip.slot) for clip in found] == [
            (batch.position, slot)
            for batch in order.step_micro_batches(plan, step)
            for slot in range(len(batch.rows))
        ]
        for clip in found:
            assert clip.caption == f"caption of clip {int(clip.clip_id[5:-2])}, ünï"
    shown = [
        step for step in range(40) for clip in clips_of_step(plan, opened, step) if clip.clip_id == "clip/4.0"
    ]
    assert steps_of_clip(plan, opened, "clip/4.0", count=len(shown)) == tuple(shown)
    assert steps_of_clip(plan, opened, "clip/11.0") == ()  # of the other fold
    with pytest.raises(ShardError, match=r"no clip 'clip/99.0'"):
        steps_of_clip(plan, opened, "clip/99.0")
