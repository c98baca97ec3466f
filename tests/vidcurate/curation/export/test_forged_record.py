"""Forged EXPORT.json: every value replaced, removed, doubled; only what cannot do harm is taken."""

import copy
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests import shard_runs
from tests.vidcurate.curation.export import clip_runs
from tests.vidcurate.curation.export.exported import exported
from vidcurate.curation.clip_table import table
from vidcurate.curation.export import record
from vidcurate.curation.export.clips import ExportSpec, plan
from vidcurate.curation.export.stage import run_export
from vidcurate.errors import InputError, StorageError, TableError

_VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 1 << 31, 1 << 80, 0.5, 1e30, float("nan"),
    "", "x", "hf", "../x", [], [1], {}, {"x": 1},
)  # fmt: skip


def _places(found: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from _places(value, (*path, key))


def _forged(whole: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (what was done, record) of each forgery."""
    for path in _places(whole):
        for value in (*_VALUES, "removed", "doubled"):
            made = copy.deepcopy(whole)
            *above, last = path
            inside: Any = made
            for key in above:
                inside = inside[key]
            if value == "removed":
                del inside[last]
            elif value == "doubled":
                if isinstance(inside, list):
                    inside.insert(last, copy.deepcopy(inside[last]))
                else:
                    inside[f"{last}2"] = inside[last]
            elif json.dumps(inside[last]) == json.dumps(value):
                continue
            else:
                inside[last] = value
            yield f"{'.'.join(map(str, path))} {value!r}", made


# What passes and does no harm. A trainer that is taken off the list keeps the manifests that it has; a failed
# clip's kind and problem are only shown, and have the form that a kind and a problem have.
_HARMLESS = ("trainers.0 'removed'", "trainers.1 'removed'", "failed.0.kind 'x'", "failed.0.kind 'hf'")
_HARMLESS_TEXTS = {"failed.0.problem": ("x", "hf", "../x")}


@pytest.fixture(scope="module", params=["wan2.1", ""])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three clips, one of them damaged, and its export for two trainers."""
    folder = tmp_path_factory.mktemp("forged")
    clip_runs.make_run(folder, lambda name: name in ("exact.mp4", "dots.mp4", "faster.mp4"))
    (folder / "videos/faster.mp4").write_bytes(b"no video")
    exported(folder, "out", ExportSpec(model=request.param or None), ["hf", "musubi"])
    return folder


def test_no_forgery_of_a_record_passes_that_does_harm(folder: Path) -> None:
    path = folder / "out" / record.RECORD
    whole = json.loads(path.read_text())
    planned = plan(folder / "run", ExportSpec(model=whole["spec"]["model"]), folder / "videos")
    record.check_same(whole, planned, folder / "out")
    passed, tried = set(), 0
    for name, made in _forged(whole):
        tried += 1
        path.write_text(json.dumps(made))
        with suppress(InputError, StorageError):
            found = record.read_record(folder / "out")
            assert found is not None
            record.check_same(found, planned, folder / "out")
            passed.add(name)
    harmless = {*_HARMLESS, *(f"{key} {text!r}" for key, texts in _HARMLESS_TEXTS.items() for text in texts)}
    assert passed == harmless
    assert tried > 1000


def test_a_key_of_a_forged_table_writes_nothing_outside_the_export(folder: Path, tmp_path: Path) -> None:
    row = table.scan(folder / "run", "split").collect().row(0, named=True) | {"sample_key": "../../x"}
    shard_runs.write_table(tmp_path / "run", [row])

    with pytest.raises(TableError, match=r"split\.parquet: the sample key '\.\./\.\./x' is none that ingest"):
        run_export(tmp_path / "run", tmp_path / "out/out", ["hf"], ExportSpec(), videos=folder / "videos")

    assert [path.name for path in tmp_path.iterdir()] == ["run"]
