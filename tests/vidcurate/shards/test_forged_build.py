"""Forged and damaged files of a set under construction: nothing elsewhere is deleted, shards are whole."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.shard_runs import build, contents, make_run, rows
from vidcurate.errors import InputError
from vidcurate.shards.write_shard import BUILD, CHANGED_BY_A_CUT, PLACES

Json = Any


class Killed(Exception):
    """The process ends here."""


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose set of shards is written but for its index, and then killed."""
    make_run(tmp_path, rows())

    def kill(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("vidcurate.shards.build._index_rows", kill)
        with pytest.raises(Killed):
            build(tmp_path)
    assert len(list((tmp_path / "shards" / BUILD).glob("*.tar.json"))) == 9
    return tmp_path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The bytes of a set that nothing disturbed."""
    home = tmp_path_factory.mktemp("whole")
    make_run(home, rows())
    build(home)
    return contents(home / "shards")


@pytest.mark.parametrize("name", ["../mine.txt", "/{home}/mine.txt", "a/../../mine.txt"])
@pytest.mark.parametrize("key", ["shards", "replaces"])
def test_a_forged_plan_deletes_nothing_elsewhere(begun: Path, key: str, name: str) -> None:
    mine = begun / "mine.txt"
    mine.write_text("mine")
    path = begun / "shards" / BUILD / "plan.json"
    plan = json.loads(path.read_text())
    plan[key].append(name.format(home=begun))
    path.write_text(json.dumps(plan))
    before = contents(begun)
    with pytest.raises(InputError, match="which build-shards did not write"):
        build(begun)
    assert contents(begun) == before


@pytest.mark.parametrize("plan", [[], 3, None, {}, {"plan_sha256": 1}, {"shards": [1], "replaces": []}])
def test_a_plan_of_another_shape_is_refused_and_nothing_is_deleted(begun: Path, plan: Json) -> None:
    (begun / "shards" / BUILD / "plan.json").write_text(json.dumps(plan))
    before = contents(begun)
    with pytest.raises(InputError, match="which build-shards did not write"):
        build(begun)
    assert contents(begun) == before


def _with(name: str, value: Json) -> Callable[[Json], Json]:
    return lambda record: record | {name: value}


FORGED: dict[str, Callable[[Json], Json]] = {
    "a list": lambda record: [record],
    "cut": lambda record: {},
    "positions twice": lambda record: record | {"positions": [0] * len(record["positions"])},
    "positions beyond": lambda record: record | {"positions": [n + 99 for n in record["positions"]]},
    "positions of words": lambda record: record | {"positions": ["0" for _ in record["positions"]]},
    "a place less": lambda record: record | {"video_size": record["video_size"][1:]},
    "failed": _with("failed", [{}]),
    "changed": _with("changed", {"0": {"clip_id": 7}}),
    "changed to words": _with("changed", {"0": {CHANGED_BY_A_CUT[0]: "wide"}}),
    **{f"{name} none": _with(name, None) for name in ("positions", "changed", *PLACES)},
    **{
        f"{name} {value}"[:40]: (
            lambda record, name=name, value=value: record | {name: [value] * len(record["positions"])}
        )
        for name in PLACES
        for value in ([], {}, -1, 2**70, 1.5)
    },
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED.keys())
def test_a_shard_whose_record_is_forged_is_written_again(
    begun: Path, whole: dict[str, str], forge: Callable[[Json], Json]
) -> None:
    path = begun / "shards" / BUILD / "train-level1-000000.tar.json"
    path.write_text(json.dumps(forge(json.loads(path.read_text()))))
    build(begun)
    assert contents(begun / "shards") == whole
