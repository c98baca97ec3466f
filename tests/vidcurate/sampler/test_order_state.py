"""A state is small, and means nothing but what it was saved with: each difference is named, with its flag."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.journal_runs import SEED, SPEC, Clips, clips, make_index
from vidcurate.errors import StateError
from vidcurate.sampler.build_plan import plan_of
from vidcurate.sampler.order_state import (
    FLAGS,
    LoaderState,
    StateComparison,
    check_state,
    compare_states,
    state_of,
)
from vidcurate.sampler.spec import PlanSpec
from vidcurate.shards.index import Index

THEN = clips(range(24))


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return make_index(tmp_path_factory.mktemp("state") / "old", THEN)


@pytest.fixture(scope="module")
def state(old: Index) -> LoaderState:
    return state_of(old, plan_of(old, SPEC, seed=SEED), 10, "f" * 32)


def without(*names: str) -> Clips:
    return {name: clip for name, clip in THEN.items() if name not in names}


def but(name: str, **facts: Any) -> Clips:
    return {**THEN, name: replace(THEN[name], **facts)}


def arguments(state: LoaderState, now: Index, old: Index | None, spec: PlanSpec, seed: int) -> dict[str, Any]:
    return {
        "state": state,
        "index": now,
        "plan": plan_of(now, spec, seed=seed),
        "old_index": old,
        "replan": lambda then: plan_of(then, spec, seed=seed),
    }


def refusal(state: LoaderState, now: Index, old: Index | None = None, *accept: str, **more: Any) -> str:
    given = arguments(state, now, old, more.pop("spec", SPEC), more.pop("seed", SEED))
    with pytest.raises(StateError) as caught:
        check_state(**given, accept=accept)
    message = str(caught.value)
    assert message.startswith(f"the loader state of step 10 does not belong to {now.place} and")
    assert "--start-from-scratch" in message
    return message


# What was changed, and per kind what the message says of it. The flags are those of the kinds.
LEVEL_SETTINGS = {"weights": {"1": 1.0, "2": 9.0}}
CHANGES: dict[str, tuple[Clips, dict[str, Any], dict[str, str]]] = {
    "added": (
        {**THEN, **clips([30, 31])},
        {},
        {"added": "2 clips added (train-00003.tar: clip/30, clip/31)"},
    ),
    "removed": (
        without("clip/3", "clip/20"),
        {},
        {"removed": "2 clips removed in 2 shards (train-00000.tar: clip/3; train-00002.tar: clip/20)"},
    ),
    "an edited caption": (
        but("clip/8", caption="edited"),
        {},
        {"content": "1 clip with another caption or video (train-00001.tar: clip/8)"},
    ),
    "another level": (
        but("clip/8", level=1),
        {},
        {"plan": "1 clip with another fold, level, size, length or frame rate (train-00001.tar: clip/8)"},
    ),
    "other weights": (THEN, LEVEL_SETTINGS, {"plan": "another plan over the same clips"}),
    "another M": (
        THEN,
        {"micro_batches_per_step": 8},
        {"plan": "the state has 3 micro-batches per step, the"},
    ),
    "all at once": (
        {**but("clip/8", caption="edited"), **clips([30])},
        LEVEL_SETTINGS,
        {
            "added": "1 clip added (train-00003.tar: clip/30)",
            "content": "clip/8",
            "plan": "another plan over the same clips",
        },
    ),
}


@pytest.mark.parametrize("name", list(CHANGES))
def test_each_kind_of_change_is_named_with_its_flag_and_needs_it(
    name: str, state: LoaderState, old: Index, tmp_path: Path
) -> None:
    made, settings, wanted = CHANGES[name]
    now, spec = make_index(tmp_path / "now", made), SPEC.model_copy(update=settings)
    message = refusal(state, now, old, spec=spec)
    flags = [FLAGS[kind] for kind in wanted]
    for text in wanted.values():
        assert text in message
    assert f"accept the change with {' '.join(flags)}, or start" in message
    given = arguments(state, now, old, spec, SEED)
    assert {finding.kind for finding in check_state(**given, accept=flags).findings} == set(wanted)
    for left_out in flags:
        short = refusal(state, now, old, *(flag for flag in flags if flag != left_out), spec=spec)
        assert left_out in short


def test_moved_and_resharded_clips_are_no_difference(state: LoaderState, old: Index, tmp_path: Path) -> None:
    for number, changed in enumerate([{"per_shard": 5}, {"mixed_by": 1}, {"per_shard": 100, "mixed_by": 2}]):
        now = make_index(tmp_path / str(number), THEN, **changed)  # type: ignore[arg-type]
        assert check_state(**arguments(state, now, old, SPEC, SEED)) == StateComparison(findings=())


def test_what_nothing_accepts_says_to_begin_anew(state: LoaderState, old: Index, tmp_path: Path) -> None:
    every = tuple(FLAGS.values())
    assert "the state has seed 5, the recipe 6 (set seed=5)" in refusal(state, old, None, *every, seed=6)
    ours = replace(state, algorithm_version=0)
    assert "version 0 of the order, this program version 1" in refusal(ours, old, None, *every)
    more = make_index(tmp_path / "more", {**THEN, **clips([30])})
    unknown = refusal(state, more, None, *every)
    assert "the state has 24 clips" in unknown
    assert "no copy of the old index" in unknown
    # An index of yet another time would name the wrong clips.
    assert "no copy of the old index" in refusal(
        state, more, make_index(tmp_path / "yet", clips(range(9))), *every
    )
    other = make_index(tmp_path / "other", clips(range(100, 124)))
    assert "none of the 24 old clips is among the 24 new ones: another data set" in refusal(
        state, other, old, *every
    )
    assert "accept the change" not in unknown


def test_without_the_index_of_then_edited_content_is_seen_but_not_named(
    state: LoaderState, tmp_path: Path
) -> None:
    now = make_index(tmp_path / "now", but("clip/8", caption="edited"))
    assert "captions or videos were changed. Either" in refusal(state, now)
    checked = compare_states(**arguments(state, now, None, SPEC, SEED))
    assert checked.flags == ("--accept-content",)
    assert checked.difference is None


def test_a_state_is_small_and_survives_json(old: Index) -> None:
    words = tuple(
        f"step {10**12 + number}: 1000000 added, 1000000 removed, 50 content" for number in range(40)
    )
    plan = plan_of(old, SPEC, seed=2**62)
    full = state_of(old, plan, 10**15, "f" * 32, "e" * 32, journal="d" * 32, changes=words)
    text = full.to_json()
    assert len(text) < 2048
    assert full.changes == words[-8:]
    assert LoaderState.from_json(text) == full
    for bad in (
        "",
        "[]",
        "{}",
        text[:-2],
        text.replace("state-2", "state-9"),
        text.replace(f"{10**15}", '"1"'),
    ):
        with pytest.raises(StateError, match="not a loader state"):
            LoaderState.from_json(bad)
    fields = json.loads(text)
    with pytest.raises(StateError, match="not a loader state"):
        LoaderState.from_json(json.dumps({**fields, "more": 1}))
    with pytest.raises(StateError, match="not a loader state"):
        LoaderState.from_json(json.dumps({**fields, "changes": [1]}))


def test_a_state_of_the_format_before_journals_is_read(state: LoaderState) -> None:
    fields = json.loads(state.to_json())
    for name in ("delivered_hash", "journal", "changes"):
        del fields[name]
    assert LoaderState.from_json(json.dumps({**fields, "format": "vidcurate-loader-state-1"})) == state
