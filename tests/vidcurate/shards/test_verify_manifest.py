"""A manifest that says other than the index, or was edited, is named by verify."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.shard_runs import build_for_readers
from tests.vidcurate.shards.test_verify import reported, sign
from vidcurate.errors import StorageError
from vidcurate.shards.manifest import read_manifest


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    return build_for_readers(tmp_path)


def test_a_manifest_that_says_other_than_the_index_is_named(shards: Path) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["content_fingerprint"] = "0" * 32
        manifest["totals"]["rows_written"] = 35
        manifest["shards"][1]["structure_fingerprint"] = "0" * 32

    name = json.loads((shards / "manifest.json").read_text())["shards"][1]["name"]
    sign(shards, change)
    said = reported(shards, "index")
    assert any(
        "says '00000000000000000000000000000000' for content_fingerprint, the index" in x for x in said
    )
    assert any("says 35 for rows_written, the index gives 36" in line for line in said)
    assert any(line.startswith(f"manifest.json: {name}: says") for line in said)
    (shards / "manifest.json").write_text("{")
    assert any("manifest.json: cannot be read as JSON" in line for line in reported(shards, "index"))
    (shards / "manifest.json").unlink()
    (shards / "manifest.json").mkdir()
    with pytest.raises(StorageError, match=r"manifest\.json: cannot be read \(it is no regular file\)"):
        read_manifest(shards)


def test_every_count_of_the_manifest_is_compared(shards: Path) -> None:
    path = shards / "manifest.json"
    text = path.read_text()
    forged: list[tuple[tuple[str | int, ...], Any]] = [
        *((("totals", name), value) for name in json.loads(text)["totals"] for value in (0, 99, None)),
        (("shards", 0, "clips"), 1),
        (("shards", 0, "fold"), "validation"),
        (("shards", 0, "level"), 7),
        (("extensions", "mp4"), 5),
        (("integrity_levels", "full"), 9),
    ]
    for place, value in forged:
        manifest = json.loads(text)
        inside = manifest
        for key in place[:-1]:
            inside = inside[key]
        if inside.get(place[-1]) == value:
            continue
        inside[place[-1]] = value
        path.write_text(json.dumps(manifest))
        said = reported(shards, "index")
        assert any(line.startswith("manifest.json: ") for line in said), (place, said)


def test_a_forged_manifest_is_named_and_nothing_unforeseen(shards: Path) -> None:
    path = shards / "manifest.json"
    text = path.read_text()
    places = [(key,) for key in json.loads(text)]
    places += [("totals", "rows_written"), ("index", "blake3"), ("index", "bytes"), ("integrity_levels", "x")]
    places += [("shards", 0), *(("shards", 0, key) for key in json.loads(text)["shards"][0])]
    num_refused = 0
    for place in places:
        for value in (None, -1, "../x", {}, [1], 10**400, "\ud800", "a\0"):
            forged = json.loads(text)
            inside = forged
            for key in place[:-1]:
                inside = inside[key]
            inside[place[-1]] = value
            path.write_text(json.dumps(forged))
            num_refused += any("was edited or cut" in line for line in reported(shards, "index"))
    path.write_text("[" * 100_000)
    assert any("cannot be read as JSON" in line for line in reported(shards, "index"))
    assert num_refused > 70
