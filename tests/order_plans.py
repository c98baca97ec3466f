"""Plans over made-up clips, and what a step is to a test: its clips."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from vidcurate import rng
from vidcurate.sampler import order
from vidcurate.sampler import plan as sampler_plan
from vidcurate.sampler.bucket_shapes import Bucket
from vidcurate.sampler.curriculum import Phase
from vidcurate.sampler.plan import Plan


def bucket(micro_batch_size: int, *, resolution: str = "32px", num_frames: int = 8, side: int = 32) -> Bucket:
    return Bucket(
        resolution=resolution,
        num_frames=num_frames,
        aspect="1.00",
        height=side,
        width=side,
        micro_batch_size=micro_batch_size,
    )


def plan(
    cells: Sequence[tuple[int, int, int]],
    *,
    micro_batches_per_step: int = 4,
    seed: int = 7,
    run: int = 1,
    phases: Sequence[Phase] = (),
    clips_per_block: int | None = None,
    blocks_together: int = 1,
) -> Plan:
    """Return the plan of cells given as (clips, micro-batch size, weight); rows count on over cells.

    Cell i is called cell-0i. With `clips_per_block` so many rows that follow each other are a block.
    """
    made: list[sampler_plan.Cell] = []
    first = 0
    total = sum(clips for clips, _, _ in cells)
    for number, (clips, size, weight) in enumerate(cells):
        rows = np.arange(first, first + clips)
        hashes = rng.id_hashes([f"clip-{row}" for row in rows])
        shape = bucket(size, num_frames=8 * (1 + number % 3))
        made.append(
            sampler_plan.make_cell(
                f"cell-{number:02d}",
                shape,
                rows,
                hashes,
                weight,
                block=rows // clips_per_block if clips_per_block else None,
                num_blocks=-(-total // clips_per_block) if clips_per_block else 1,
                blocks_together=blocks_together,
            )
        )
        first += clips
    return sampler_plan.make_plan(
        made, seed=seed, micro_batches_per_step=micro_batches_per_step, run=run, phases=phases
    )


@st.composite
def curricula(draw: st.DrawFn, num_cells: int, run: int) -> list[Phase]:
    """Return one to four phases over so many cells, with and without ramps and weights of 0."""
    phases: list[Phase] = []
    first = 0
    for _ in range(draw(st.integers(1, 4))):
        weights = draw(
            st.lists(st.sampled_from([0, 1, 2, 7, 1000]), min_size=num_cells, max_size=num_cells).filter(any)
        )
        turns = run * draw(st.integers(1, 40))
        ramp = run * draw(st.integers(0, turns // run)) if phases else 0
        phases.append(
            Phase(
                first=first,
                weights={f"cell-{number:02d}": weight for number, weight in enumerate(weights)},
                ramp_turns=ramp,
                ramp=draw(st.sampled_from(["linear", "cosine"])),
            )
        )
        first += turns
    return phases


@st.composite
def settings_of_plans(draw: st.DrawFn) -> dict[str, Any]:
    """Return the settings of a plan of any kind: from fewer clips than a micro-batch holds to many times as
    many, of constant weights or with a curriculum, in runs, over blocks."""
    cell = st.tuples(st.integers(1, 60), st.integers(1, 12), st.integers(1, 1000))
    cells = draw(st.lists(cell, min_size=1, max_size=6))
    run = draw(st.sampled_from([1, 1, 1, 2, 3]))
    return {
        "cells": cells,
        "micro_batches_per_step": run * draw(st.integers(1, 9 // run)),
        "seed": draw(st.integers(0, 2**40)),
        "run": run,
        "phases": draw(st.one_of(st.just(()), curricula(len(cells), run))),
        "clips_per_block": draw(st.sampled_from([None, 1, 5, 17])),
        "blocks_together": draw(st.integers(1, 4)),
    }


plans = settings_of_plans().map(lambda settings: plan(**settings))


def rows_of(plan: Plan, step: int) -> list[tuple[int, list[int]]]:
    """Return (position, rows) of every micro-batch of a step."""
    return [(batch.position, batch.rows.tolist()) for batch in order.step_micro_batches(plan, step)]


def stream(one: Plan, num_turns: int) -> list[int]:
    """Return the rows that a plan of one cell reads, in order."""
    return [row for k in range(num_turns) for row in order.micro_batch(one, k).rows.tolist()]
