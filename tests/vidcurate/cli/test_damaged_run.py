"""A damaged file of a run is named in one line, and is no fault of the program."""

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from vidcurate.cli.main import main
from vidcurate.curation.clip_table import stage_json
from vidcurate.errors import TableError


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of forty captions, with levels and a report."""
    folder = tmp_path_factory.mktemp("made")
    rows = [{"clip_id": f"c{n}", "video": f"{n}.mp4", "caption": f"a dog {'runs ' * n}"} for n in range(40)]
    pl.DataFrame(rows).write_csv(folder / "captions.csv")
    run = folder / "run"
    commands: list[list[object]] = [
        ["ingest", folder / "captions.csv", "--out", run],
        ["score", run, "--set", "noun_engine=builtin"],
        ["filter", run],
        ["split-by-difficulty", run, "--set", "levels=2"],
    ]
    for words in commands:
        with pytest.raises(SystemExit, match="0"):
            main([str(word) for word in words])
    return run


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def failed(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Run a command that must fail, and return its one line."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert ended.value.code in (1, 2)
    said = capsys.readouterr().err.strip().splitlines()
    assert said[-1].startswith("error: ")
    assert "unforeseen" not in said[-1]
    return said[-1]


DAMAGES = {
    "empty": b"",
    "another byte": b'{"a": "\xb3"}',
    "cut": b'{"a": ',
    "another form": b"3",
    "brackets": b"[" * 100_000,
}
READERS = {
    "levels.json": "report",
    "funnel.json": "card",
    "reconcile.json": "report",
    "costs.jsonl": "report",
    "shards/manifest.json": "inspect",
}


CASES = [
    (name, damage) for name in READERS for damage in DAMAGES if (name, damage) != ("costs.jsonl", "empty")
]


@pytest.mark.parametrize(("name", "damage"), CASES)
def test_a_damaged_json_file_is_named(
    run: Path, name: str, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).write_bytes(DAMAGES[damage])

    assert name in failed(capsys, READERS[name], run)


@pytest.mark.parametrize("command", [["report"], ["inspect"], ["split-by-difficulty", "--set", "levels=3"]])
def test_a_damaged_table_is_named(run: Path, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "score.parquet"
    data = bytearray(path.read_bytes())
    data[4:2000] = bytes(1996)  # the pages; the footer is whole
    path.write_bytes(data)
    for later in ("filter", "split"):
        (run / f"{later}.parquet").unlink(missing_ok=True)

    assert str(path) in failed(capsys, command[0], run, *command[1:])


def test_a_file_beside_a_table_is_an_object_or_a_list(tmp_path: Path) -> None:
    path = tmp_path / "levels.json"
    assert stage_json.read_object(path) is None
    assert stage_json.read_objects(path) == []
    with pytest.raises(TableError, match="it is missing"):
        stage_json.require_object(path)
    path.write_text(json.dumps([{"a": 1}]))
    assert stage_json.read_objects(path) == [{"a": 1}]
    with pytest.raises(TableError, match="no JSON object"):
        stage_json.read_object(path)
    path.write_text("[3]")
    with pytest.raises(TableError, match="no list"):
        stage_json.read_objects(path)
