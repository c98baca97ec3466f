"""The torch dataset: the order of the plan, on any number of ranks, resumed anywhere."""

import itertools
import json
import pickle
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.loader_runs import clips as facts_of
from tests.loader_runs import make
from vidcurate.errors import InputError, RecipeError, StateError
from vidcurate.loader.torch import ClipBatch, ClipDataset, dataset
from vidcurate.recipe.recipe import parse
from vidcurate.sampler.build_plan import clips_of_step, plan_of
from vidcurate.sampler.spec import PlanSpec
from vidcurate.shards.index import read_index

PLAN: dict[str, Any] = {
    "buckets": {
        "sizes": {"32px": {"0.50": [24, 48], "1.00": [32, 32]}},
        "table": {"32px": {"4": [1.0, 3], "8": [[1.0, 0.6], 2]}},
    },
    "micro_batches_per_step": 6,
    "small_cells": "shrink",
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("torch")).folder


def read(
    clips: ClipDataset | DataLoader[Any] | StatefulDataLoader,
) -> list[tuple[int, tuple[str, ...], float]]:
    return [(one["step"], tuple(one["clip_ids"]), float(one["pixels"].sum())) for one in clips]


@pytest.fixture(scope="module")
def whole(shards: Path) -> list[tuple[int, tuple[str, ...], float]]:
    return read(dataset(shards, PLAN, num_steps=4, seed=3))


def test_the_clips_of_a_step_are_those_of_the_plan(shards: Path, whole: list[Any]) -> None:
    index = read_index(shards)
    plan = plan_of(index, parse(json.dumps(PLAN), PlanSpec, where="plan.json"), seed=3)
    for step in range(4):
        wanted = sorted(clip.clip_id for clip in clips_of_step(plan, index, step))
        assert sorted(clip for number, ids, _ in whole if number == step for clip in ids) == wanted


@pytest.mark.parametrize("world_size", [2, 3, 6])
def test_any_number_of_ranks_reads_the_same_each_as_many(
    shards: Path, whole: list[Any], world_size: int
) -> None:
    ranks = [
        read(dataset(shards, PLAN, num_steps=4, seed=3, rank=rank, world_size=world_size))
        for rank in range(world_size)
    ]
    assert {len(rank) for rank in ranks} == {24 // world_size}
    assert {len(dataset(shards, PLAN, num_steps=4, world_size=world_size)) for _ in ranks} == {
        24 // world_size
    }
    assert sorted(batch for rank in ranks for batch in rank) == sorted(whole)


@pytest.mark.parametrize("taken", [0, 1, 5, 6, 13, 24])
def test_it_resumes_after_any_batch_and_reads_the_rest(shards: Path, whole: list[Any], taken: int) -> None:
    clips = dataset(shards, PLAN, num_steps=4, seed=3)
    assert len(list(itertools.islice(clips, taken))) == taken
    state = json.loads(json.dumps(clips.state_dict()))

    resumed = dataset(shards, PLAN, num_steps=4, seed=3)
    resumed.load_state_dict(state)

    assert read(resumed) == whole[taken:]


def test_a_state_at_the_end_of_a_step_is_good_for_other_ranks_and_within_one_is_not(
    shards: Path, whole: list[Any]
) -> None:
    clips = dataset(shards, PLAN, num_steps=4, seed=3, rank=1, world_size=2)
    states = [clips.state_dict() for _ in clips]

    rest = []
    for rank in range(3):
        resumed = dataset(shards, PLAN, num_steps=4, seed=3, rank=rank, world_size=3)
        resumed.load_state_dict(states[5])  # three batches of each rank a step
        rest += read(resumed)
        with pytest.raises(StateError, match="within step 2 on 2 ranks, and there are now 3"):
            resumed.load_state_dict(states[6])
    assert sorted(rest) == sorted(whole[12:])


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 calls it
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_stateful_data_loader_resumes_it(shards: Path, whole: list[Any], num_workers: int) -> None:
    loader = StatefulDataLoader(
        dataset(shards, PLAN, num_steps=4, seed=3), batch_size=None, num_workers=num_workers
    )
    batches = iter(loader)
    for _ in range(7):
        next(batches)
    state = loader.state_dict()
    del batches

    again = StatefulDataLoader(
        dataset(shards, PLAN, num_steps=4, seed=3), batch_size=None, num_workers=num_workers
    )
    again.load_state_dict(state)

    assert read(again) == whole[7:]


def test_decode_workers_change_nothing(shards: Path, whole: list[Any]) -> None:
    loader = DataLoader(dataset(shards, PLAN, num_steps=4, seed=3, num_workers=2), batch_size=None)
    assert read(loader) == whole


def test_pixels_have_the_shape_range_and_type_asked_for(shards: Path) -> None:
    batch: ClipBatch = next(iter(dataset(shards, PLAN, num_steps=1, dtype=torch.bfloat16)))
    size, channels, frames, height, width = batch["pixels"].shape
    assert (channels, batch["pixels"].dtype) == (3, torch.bfloat16)
    assert (frames, size) in {(4, 3), (8, 2)}
    assert (height, width) in {(24, 48), (32, 32)}
    assert -1 <= batch["pixels"].min() < 0 < batch["pixels"].max() <= 1
    captions = {fact["clip_id"]: fact["caption"] for fact in facts_of()}
    assert batch["captions"] == [captions[clip] for clip in batch["clip_ids"]]


def test_what_would_repeat_or_lose_clips_is_refused(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Torch joins each worker of a loader that raised for so many seconds: five.
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)
    with pytest.raises(InputError, match="no multiple of 4 ranks"):
        dataset(shards, PLAN, num_steps=1, world_size=4)
    with pytest.raises(InputError, match="each read every clip"):
        list(DataLoader(dataset(shards, PLAN, num_steps=1), batch_size=None, num_workers=2))
    with pytest.raises(RecipeError, match="micro_batches_per_stap"):
        dataset(shards, {**PLAN, "micro_batches_per_stap": 2}, num_steps=1)
    clips = dataset(shards, PLAN, num_steps=2, seed=3)
    with pytest.raises(StateError, match="seed 3, the recipe 4"):
        dataset(shards, PLAN, num_steps=2, seed=4).load_state_dict(clips.state_dict())
    with pytest.raises(StateError, match="not a state of ClipDataset"):
        clips.load_state_dict({"num_taken": 3})
    other = make(tmp_path / "other", count=12)
    with pytest.raises(StateError, match="the index now"):
        dataset(other.folder, PLAN, num_steps=2, seed=3).load_state_dict(clips.state_dict())


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_worker_of_a_data_loader_reads_the_same_and_the_state_is_its_own(
    shards: Path, whole: list[Any], context: str
) -> None:
    clips = dataset(shards, PLAN, num_steps=1, seed=3)
    loader = DataLoader(clips, batch_size=None, num_workers=1, multiprocessing_context=context)
    before = clips.state_dict()

    assert read(loader) == whole[:6]
    with pytest.raises(StateError, match="does not know which were trained"):
        clips.state_dict()
    clips.load_state_dict(before)
    assert clips.state_dict() == before


def test_a_pickled_dataset_reads_on_from_its_state(shards: Path, whole: list[Any]) -> None:
    clips = dataset(shards, PLAN, num_steps=4, seed=3)
    list(itertools.islice(clips, 7))

    assert read(pickle.loads(pickle.dumps(clips))) == whole[7:]


def test_passes_that_end_early_continue_and_a_finished_dataset_is_empty(
    shards: Path, whole: list[Any]
) -> None:
    clips = dataset(shards, PLAN, num_steps=2, seed=3, num_workers=1)
    for _ in clips:
        break
    with pytest.raises(KeyError), closing(iter(clips)) as batches:
        next(batches)["nothing"]
    assert read(clips) == whole[2:12]
    assert read(clips) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("num_taken", value) for value in (-1, 6, 10**9, 1e400, "x", None)),
        *(("world_size", value) for value in (0, -1, None)),
        *(("step", value) for value in (-1, 1 << 60, 1.0, True)),
    ],
)
def test_a_forged_state_is_refused(shards: Path, key: str, value: object) -> None:
    clips = dataset(shards, PLAN, num_steps=1, seed=3)
    state = clips.state_dict()
    if key == "step":
        state["loader"] = json.dumps(json.loads(state["loader"]) | {key: value})
    else:
        state[key] = value

    with pytest.raises(StateError, match=r"^not a"):
        clips.load_state_dict(state)
    with pytest.raises(StateError, match=r"^not a"):
        clips.load_state_dict(state | {"loader": "[" * 100_000})


@pytest.mark.parametrize(
    "given",
    [
        {"rank": 1},
        {"rank": -1},
        {"world_size": 0},
        {"num_workers": -1},
        {"num_steps": -1},
        {"dtype": torch.int8},
        {"captions": ()},
        {"captions": "caption"},
        {"captions": ("caption", "lnog")},
    ],
)
def test_arguments_that_would_read_something_else_are_refused(shards: Path, given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(given))):
        dataset(shards, PLAN, **{"num_steps": 1, **given})
