"""Forged and damaged plans and manifests of latents: one line, and no file elsewhere is touched."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.trainer.data.latents.made import encode, files
from trainer.data.latents.folder import open_folder
from trainer.data.latents.write import BUILD, read_record, write_table
from vidcurate.errors import ShardError, VidcurateError

Plan = dict[str, Any]


@pytest.fixture
def begun(shards: Path, latents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of latents to which another length is being added: begun, and then killed."""
    out = shutil.copytree(latents, tmp_path / "out")

    class Killed(Exception):
        pass

    def kill(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("trainer.data.latents.precompute.write_shard", kill)
        with pytest.raises(Killed):
            encode(shards, out, "stages.0.data.views=3")
    assert (out / BUILD / "plan.json").exists()
    return out


def test_a_plan_cut_at_any_byte_is_one_line(shards: Path, begun: Path) -> None:
    path = begun / BUILD / "plan.json"
    whole = path.read_bytes()
    for size in range(0, len(whole) - 2, max(1, len(whole) // 12)):
        path.write_bytes(whole[:size])
        with pytest.raises(VidcurateError, match=r"plan\.json: is damaged"):
            encode(shards, begun, "stages.0.data.views=3")


FORGED: dict[str, Callable[[Plan], Any]] = {
    "a list": lambda plan: [plan],
    "nested": lambda plan: "[" * 100_000,
    "without digest": lambda plan: {name: plan[name] for name in plan if name != "digest"},
    "without clips": lambda plan: {name: plan[name] for name in plan if name != "clips"},
    "replaces a number": lambda plan: plan | {"replaces": 3},
    "replaces numbers": lambda plan: plan | {"replaces": [3]},
    "replaces a file above": lambda plan: plan | {"replaces": ["../mine.txt"]},
    "replaces a name with NUL": lambda plan: plan | {"replaces": ["a\0b"]},
    "replaces the folder": lambda plan: plan | {"replaces": ["."]},
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED.keys())
def test_a_forged_plan_is_one_line_and_deletes_nothing(
    shards: Path, begun: Path, forge: Callable[[Plan], Any]
) -> None:
    mine = begun.parent / "mine.txt"
    mine.write_text("mine")
    path = begun / BUILD / "plan.json"
    forged = forge(json.loads(path.read_text()))
    path.write_text(forged if isinstance(forged, str) else json.dumps(forged))
    with pytest.raises(VidcurateError) as raised:
        encode(shards, begun, "stages.0.data.views=3")
    assert len(str(raised.value).splitlines()) == 1
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("name", ["../mine.txt", "/{folder}/mine.txt", "a/../../mine.txt", "a\0b", "", 7])
def test_a_forged_manifest_names_no_file_elsewhere(
    shards: Path, latents: Path, tmp_path: Path, name: str | int
) -> None:
    out = shutil.copytree(latents, tmp_path / "out")
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    manifest = json.loads((out / "manifest.json").read_text())
    word = name.format(folder=tmp_path) if isinstance(name, str) else name
    manifest["shards"].append(manifest["shards"][0] | {"name": word})
    (out / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ShardError, match=r"manifest\.json: "):
        encode(shards, out, "stages.0.data.views=3")
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("value", [None, -1, "x", [3], {"a": 1}])
def test_a_forged_manifest_is_refused_by_its_key_before_a_step(
    latents: Path, tmp_path: Path, value: object
) -> None:
    whole = json.loads((latents / "manifest.json").read_text())
    out = shutil.copytree(latents, tmp_path / "out")
    for key in whole.keys() - {"format", "version"}:
        manifest = {name: each for name, each in whole.items() if name != key}
        if value is not None and type(value) is not type(whole[key]):
            manifest[key] = value
        (out / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(ShardError, match=rf"manifest\.json: {key}[.:]") as raised:
            open_folder(out)
        assert len(str(raised.value).splitlines()) == 1


@pytest.fixture(scope="module")
def whole(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a folder that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole") / "out"
    encode(shards, out, "stages.0.data.views=3")
    return files(out)


@pytest.mark.parametrize(
    "forged",
    [
        [], 3, {}, {"bytes": "many"}, {"sha256": 7}, {"digest": None}, {"name": "../mine.txt"}, {"bytes": -1},
        {"samples": []}, "pipe",
    ],
    ids=str,
)  # fmt: skip
def test_a_shard_whose_record_is_forged_is_encoded_again(
    shards: Path, begun: Path, whole: dict[str, bytes], forged: Any
) -> None:
    for path in (begun / BUILD).glob("*.tar.parquet"):
        table, facts = pq.read_table(path), read_record(path)
        assert facts is not None
        path.unlink()
        if forged == "pipe":
            os.mkfifo(path)
        else:
            write_table(path, table, facts | forged if isinstance(forged, dict) and forged else forged)
    encode(shards, begun, "stages.0.data.views=3")
    assert files(begun) == whole


def test_a_pipe_in_place_of_a_plan_is_waited_for_by_nobody(shards: Path, begun: Path) -> None:
    (begun / BUILD / "plan.json").unlink()
    os.mkfifo(begun / BUILD / "plan.json")
    with pytest.raises(VidcurateError, match="it is no regular file"):
        encode(shards, begun, "stages.0.data.views=3")
