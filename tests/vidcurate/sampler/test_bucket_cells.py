"""From an index and a recipe's data section to cells: levels, sources, phases, small cells, sizes by cost."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vidcurate.errors import InputError, RecipeError
from vidcurate.recipe.recipe import parse
from vidcurate.sampler import buckets, mixture, order
from vidcurate.sampler.build_plan import plan_of
from vidcurate.sampler.plan import Plan
from vidcurate.sampler.spec import PlanSpec
from vidcurate.shards import index, index_file
from vidcurate.shards.index import Index

BUCKETS = """
sizes: {32px: {"0.50": [24, 48], "1.00": [32, 32]}, 64px: {"1.00": [64, 64]}}
table: {32px: {4: [1.0, 3], 8: [1.0, 2]}, 64px: {8: [1.0, 6]}}
"""


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """400 clips of three levels and two sources in 40 shards; five fill 64px, of level 1."""
    folder, count = tmp_path_factory.mktemp("cells"), 400
    numbers = range(count)
    sides = [(64, 64) if n in (3, 33, 63, 93, 123) else (32, 32) if n % 3 else (24, 48) for n in numbers]
    rows: dict[str, Any] = {
        "sample_key": [f"clip-{n}" for n in numbers],
        "clip_id": [f"clip-{n}" for n in numbers],
        "source_id": [f"video-{n}" for n in numbers],
        "source_dataset": ["mira" if n % 4 == 0 else "openvid" if n % 4 < 3 else None for n in numbers],
        "fold": ["train"] * count,
        "level": [1 + n // 10 % 3 for n in numbers],
        "caption": ["a clip"] * count,
        "shard": [f"train-{n // 10:06d}.tar" for n in numbers],
        "json_offset": [1000 * (n % 10) for n in numbers],
        "json_size": [2] * count,
        "json_crc32c": [0] * count,
        "video_offset": [1000 * (n % 10) + 100 for n in numbers],
        "video_size": [10] * count,
        "video_extension": ["mp4"] * count,
        "video_crc32c": [0] * count,
        "width": [width for _, width in sides],
        "height": [height for height, _ in sides],
        "fps": [24.0] * count,
        "num_frames": [8 if n % 2 else 5 for n in numbers],
        "duration_seconds": [0.3] * count,
        "noun_count": [n for n in numbers],
    }
    index_file.write_index(folder, rows)
    return index.read_index(folder, check_files=False)


def planned(clips: Index, text: str = "", buckets: str = BUCKETS, **more: Any) -> Plan:
    spec = parse(json.dumps({"buckets": parse_yaml(buckets), **parse_yaml(text), **more}), PlanSpec)
    return plan_of(clips, spec, seed=5)


def parse_yaml(text: str) -> dict[str, Any]:
    from vidcurate.recipe import yaml_text

    return yaml_text.document(text, "test")[0] if text.strip() else {}


def shown(plan: Plan, index: Index, first: int, end: int) -> dict[str, float]:
    """Return the share of each level among the clips of some steps."""
    rows = np.concatenate(
        [b.rows for step in range(first, end) for b in order.step_micro_batches(plan, step)]
    )
    levels, counts = np.unique(index.level[rows], return_counts=True)
    return {str(level): count / len(rows) for level, count in zip(levels, counts, strict=True)}


# ── sources and phases ──────────────────────────────────────────────────────────────────────────────────────


def test_weights_by_source_are_shares_of_the_clips_shown(clips: Index) -> None:
    plan = planned(clips, "{cells_by: source, weights: {mira: 3, openvid: 1}, micro_batches_per_step: 8}")
    assert {cell.name.split("/")[0] for cell in plan.cells} == {"source-mira", "source-openvid"}
    read = [b for step in range(100) for b in order.step_micro_batches(plan, step)]
    mira = sum(len(b.rows) for b in read if plan.cells[b.cell].name.startswith("source-mira"))
    assert mira / sum(len(b.rows) for b in read) == pytest.approx(0.75, abs=0.01)
    everything = planned(clips, "{cells_by: source, levels: [2]}")
    assert {cell.name.split("/")[0] for cell in everything.cells} == {
        "source-mira",
        "source-openvid",
        "source-unknown",
    }
    assert {int(clips.level[row]) for cell in everything.cells for row in cell.rows} == {2}
    with pytest.raises(
        InputError, match="no clip of source pexels in fold train; known sources: mira, openv"
    ):
        planned(clips, "{cells_by: source, weights: {pexels: 1}}")


CURRICULUM = """
micro_batches_per_step: 6
curriculum:
  - {levels: [1], steps: 50}
  - {levels: [1, 2], steps: 100, ramp_steps: 40}
  - {weights: {"2": 1, "3": 3}, epochs: 2, ramp_steps: 20, ramp: cosine}
  - {levels: [3]}
"""


def test_levels_come_in_turn_with_ramps(clips: Index) -> None:
    plan = planned(clips, CURRICULUM)
    assert plan.phases[:3] == (0, 50, 150)
    assert shown(plan, clips, 0, 50) == {"1": 1.0}
    ramp, after = shown(plan, clips, 50, 90), shown(plan, clips, 90, 150)
    even = {level: count for level, count in shown(planned(clips, "{levels: [1, 2]}"), clips, 0, 400).items()}
    assert after == pytest.approx(even, abs=0.02)
    assert ramp["2"] == pytest.approx(even["2"] / 2, abs=0.03)
    third = shown(plan, clips, 150 + 20, plan.phases[3])
    assert third["3"] == pytest.approx(0.75, abs=0.02)
    assert shown(plan, clips, plan.phases[3], plan.phases[3] + 50) == {"3": 1.0}
    read = [b for step in range(150, plan.phases[3]) for b in order.step_micro_batches(plan, step)]
    asked = 2 * np.sum(clips.level > 1)
    assert sum(len(b.rows) for b in read) == pytest.approx(asked, rel=0.1)
    last_of_level_1 = next(n for n, cell in enumerate(plan.cells) if cell.name.startswith("level-1"))
    assert mixture.position_of(plan.mixture, last_of_level_1, 10**6) is None


def test_a_curriculum_is_refused_where_it_says_nothing_or_two_things() -> None:
    for text, complaint in (
        ("[{levels: [1]}, {levels: [2]}]", "curriculum.0 needs steps or epochs"),
        ("[{levels: [1], steps: 4}]", "curriculum.0 lasts to the end"),
        ("[{levels: [1], weights: {'1': 1}}]", "one of levels, sources and weights"),
        ("[{levels: [1], ramp_steps: 4}]", "there is nothing to ramp from"),
        (
            "[{levels: [1], steps: 4}, {levels: [2], steps: 3, ramp_steps: 5}, {levels: [1]}]",
            "ramp_steps 5 is longer than the steps 3",
        ),
        ("[{levels: [1], steps: 4, epochs: 2}, {levels: [1]}]", "steps or epochs, not both"),
        ("[{sources: [mira]}]", "curriculum.0 names other things than cells_by=level"),
    ):
        with pytest.raises(RecipeError, match=complaint.replace(".", r"\.")):
            parse(f"{{buckets: {{table: {{144p: {{51: [1.0, 2]}}}}}}, curriculum: {text}}}", PlanSpec)


def test_a_phase_without_clips_or_with_too_long_a_ramp_is_refused(clips: Index) -> None:
    with pytest.raises(InputError, match="no clip of level 9 in fold train"):
        planned(clips, "{curriculum: [{levels: [1], steps: 3}, {levels: [9]}]}")
    with pytest.raises(
        InputError, match=r"curriculum\.1 has a ramp of 5000 steps, but 1 epochs are \d+ steps"
    ):
        planned(
            clips,
            "{curriculum: [{levels: [1], steps: 3}, "
            "{levels: [2], epochs: 1, ramp_steps: 5000}, {levels: [1]}]}",
        )


# ── small cells ─────────────────────────────────────────────────────────────────────────────────────────────


def test_small_cells_are_shrunk_or_merged_as_asked(clips: Index) -> None:
    shrunk = planned(clips, small_cells="shrink")
    small = [cell for cell in shrunk.cells if len(cell.rows) < cell.bucket.micro_batch_size]
    assert small
    assert {note["event"] for note in shrunk.notes} == {"small_cell"}
    merged = planned(clips)
    assert merged.fingerprint == planned(clips, small_cells="merge").fingerprint
    assert all(len(cell.rows) >= cell.bucket.micro_batch_size for cell in merged.cells)
    assert merged.num_clips == shrunk.num_clips
    for note in merged.notes:
        assert note["event"] == "merged_cell"
        assert str(note["into"]).split("/")[0] == str(note["cell"]).split("/")[0]  # of the same level
        assert str(note["into"]).endswith("32px-8f-1.00")  # the nearest shape that is no larger and no longer
    assert {note["cell"] for note in merged.notes} == {cell.name for cell in small}
    alone = "{sizes: {64px: {'1.00': [64, 64]}}, table: {64px: {8: [1.0, 500]}}}"
    with pytest.raises(InputError, match="they fit no other bucket that has clips"):
        planned(clips, buckets=alone)


# ── blocks ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_blocks_follow_the_shards_and_every_clip_is_read_once_a_pass(clips: Index) -> None:
    plan = planned(clips, "{levels: [1], blocks: {shards_per_block: 2, blocks_together: 2}}")
    assert plan.fingerprint != planned(clips, "{levels: [1]}").fingerprint
    for cell in plan.cells:
        assert cell.blocks is not None
        assert int(cell.blocks.sizes.sum()) == len(cell.rows)
        block = np.repeat(np.arange(len(cell.blocks.sizes)), cell.blocks.sizes)
        shards = clips.shard_number[cell.rows]
        for number in range(len(cell.blocks.sizes)):
            assert len(set(shards[block == number].tolist())) <= 2
    largest = max(range(len(plan.cells)), key=lambda number: len(plan.cells[number].rows))
    read = [b for k in range(400) if (b := order.micro_batch(plan, k)).cell == largest]
    rows = np.concatenate([b.rows for b in read])
    count = len(plan.cells[largest].rows)
    assert sorted(rows[:count]) == sorted(rows[count : 2 * count]) == sorted(plan.cells[largest].rows)


# ── micro-batches sized by measured seconds ─────────────────────────────────────────────────────────────────


@pytest.fixture
def costs(tmp_path: Path) -> Path:
    path = tmp_path / "costs.json"
    seconds = {"32px": {"4": 0.03, "8": 0.07}}
    reported = {"measured_on": "a test", "seconds_per_micro_batch": 0.1, "seconds_per_clip": seconds}
    path.write_text(json.dumps(reported))
    return path


def test_micro_batches_are_as_large_as_the_seconds_allow(clips: Index, costs: Path) -> None:
    table = f"""
        sizes: {{32px: {{"1.00": [32, 32]}}}}
        table: {{32px: {{4: [1.0, auto], 8: [1.0, auto]}}}}
        cost_table: {costs}
        micro_batch_seconds: 0.45
    """
    assert [b.micro_batch_size for b in buckets.all_buckets(parse(table, buckets.BucketSpec))] == [5, 11]
    by_hand = table.replace("4: [1.0, auto], 8: [1.0, auto]", "4: [1.0, 11], 8: [1.0, 5]")
    assert planned(clips, buckets=table).fingerprint == planned(clips, buckets=by_hand).fingerprint
    short = table.replace("0.45", "0.05")  # not even one clip: one it is
    assert {b.micro_batch_size for b in buckets.all_buckets(parse(short, buckets.BucketSpec))} == {1}


def test_auto_needs_a_table_that_has_the_bucket(costs: Path) -> None:
    with pytest.raises(
        RecipeError, match=r"table.32px.4 is auto; that needs cost_table and micro_batch_seconds"
    ):
        parse('{sizes: {32px: {"1.00": [32, 32]}}, table: {32px: {4: [1.0, auto]}}}', buckets.BucketSpec)
    text = f"{{table: {{144p: {{51: [1.0, auto]}}}}, cost_table: {costs}, micro_batch_seconds: 1.0}}"
    with pytest.raises(
        RecipeError, match=r"no seconds_per_clip for 144p with 51 frames \(known: 32px x 4, 32px x 8\)"
    ):
        buckets.all_buckets(parse(text, buckets.BucketSpec))


# ── the published choice ────────────────────────────────────────────────────────────────────────────────────


def test_a_recipe_can_ask_for_the_published_choice_by_row_number(clips: Index) -> None:
    text = BUCKETS.replace("[1.0, 3]", "[0.5, 3]").replace("8: [1.0, 2]", "8: [[1.0, 0.5], 2]")
    plan = planned(clips, buckets=text + "published: true")
    spec = parse(text + "published: true", buckets.BucketSpec)
    found = buckets.assign(spec, clips.words("clip_id"), clips.num_frames, clips.height, clips.width, 5)
    wanted = {row: found.buckets[number] for row, number in enumerate(found.bucket) if number >= 0}
    assert {int(row): cell.bucket for cell in plan.cells for row in cell.rows} == wanted
    assert 0 < len(wanted) < len(clips)
